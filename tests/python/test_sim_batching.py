"""What a batch is made of, and what a decision costs: exact times, and nothing lost in any mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_scenarios import ROUND_COSTS, Scripted, keep, random_workload, singles
from topas.policies import POLICY_NAMES, Fcfs, Plan, QueueView, RequestView, make_policy
from topas.sim import Engine, EngineCosts, EngineOptions, Workload, make_workload, run_policy
from topas.sim.options import BATCHINGS
from topas.sim.profiles import config_fields

CHUNKED = EngineOptions(batching="chunked", chunked_prefill_tokens=100)
MIXED = EngineOptions(batching="mixed", chunked_prefill_tokens=100)
#: A pass with prefills has a fixed cost of half a second.
FIXED = dataclasses.replace(ROUND_COSTS, prefill_fixed_s=0.5)
GROWING = dataclasses.replace(
    ROUND_COSTS,
    decode_fixed_s=0.05,
    decode_s_per_context_token=1e-5,
    prefill_fixed_s=0.01,
    prefill_s_per_token=0.002,
)


class _Services(Fcfs):
    """First come, first served; remembers the services it is told, and its times."""

    def __init__(self) -> None:
        self.services: dict[int, float] = {}
        self.times: list[float] = []

    def task_arrived(self, now: float, task: object, workflow: str) -> None:
        self.times.append(now)

    def plan(self, now: float, view: QueueView) -> Plan:
        self.times.append(now)
        return super().plan(now, view)

    def request_completed(self, now: float, request: RequestView, service_s: float) -> None:
        self.times.append(now)
        self.services[request.id] = service_s


def _times(
    requests: Sequence[tuple[str, float, int, int]],
    options: EngineOptions,
    costs: EngineCosts = ROUND_COSTS,
) -> list[float]:
    workload = singles({"A": 0, "P": 100}, requests)
    finish_s = Engine(workload, Fcfs(), costs, options).run().finish_s
    return [finish_s[task] for task in range(len(requests))]


def test_a_chunk_holds_several_requests_and_cuts_the_last() -> None:
    # tokens: prefix 100, then 50 + 50; a pass costs 0.5 s and 1 s for 100 tokens; 4 steps
    requests = [("P", 0.0, 50, 4), ("P", 0.0, 50, 4)]
    assert _times(requests, CHUNKED, FIXED) == [pytest.approx(7.0)] * 2
    # all 200 in one pass
    wide = dataclasses.replace(CHUNKED, chunked_prefill_tokens=200)
    assert _times(requests, wide, FIXED) == [pytest.approx(6.5)] * 2
    # whole prefills: 150 and 50
    assert _times(requests, EngineOptions(), FIXED) == [pytest.approx(7.0)] * 2
    # passes of 70, 70 and 60
    narrow = dataclasses.replace(CHUNKED, chunked_prefill_tokens=70)
    assert _times(requests, narrow, FIXED) == [pytest.approx(7.5)] * 2


def test_decoding_waits_for_all_chunks() -> None:
    # first: prefill to 0.5, a step to 1.5; second: chunks to 2.5, 3.5, 4.0; then both decode
    assert _times([("A", 0.0, 50, 4), ("A", 1.0, 250, 4)], CHUNKED) == [
        pytest.approx(7.0),
        pytest.approx(8.0),
    ]


def test_a_request_that_comes_between_chunks_joins_the_last() -> None:
    # chunks to 1 and 2, then 50 + 10 tokens to 2.6; 4 steps; the second's service starts at 2
    policy = _Services()
    workload = singles({"A": 0}, [("A", 0.0, 250, 4), ("A", 0.5, 10, 4)])
    result = Engine(workload, policy, ROUND_COSTS, CHUNKED).run()
    assert list(result.finish_s.values()) == [pytest.approx(6.6)] * 2
    assert policy.services == {1: pytest.approx(6.6), 2: pytest.approx(4.6)}
    # whole prefills: the first to 2.5, the second to 2.6
    assert (
        _times([("A", 0.0, 250, 4), ("A", 0.5, 10, 4)], EngineOptions()) == [pytest.approx(6.6)] * 2
    )


def test_a_mixed_step_decodes_beside_the_chunk() -> None:
    # first: prefill to 0.5, a step to 1.5. Second: 99 tokens a step beside one decoded token, to
    # 3.49 and 5.48, the last 52 to 7.0: the first has its 4 tokens; the second decodes to 9.0
    assert _times([("A", 0.0, 50, 4), ("A", 1.0, 250, 2)], MIXED) == [
        pytest.approx(7.0),
        pytest.approx(9.0),
    ]


def test_decoded_tokens_count_into_the_chunk() -> None:
    # the second's 199 tokens do not go into two steps beside a decoded token: steps from 1.5 to
    # 3.49, 5.48 and, with one token, 6.49, where the first is done; the second decodes to 8.49
    assert _times([("A", 0.0, 50, 4), ("A", 1.0, 199, 2)], MIXED) == [
        pytest.approx(6.49),
        pytest.approx(8.49),
    ]


def test_a_mixed_step_has_no_fixed_cost_of_a_prefill() -> None:
    # first: 0.5 + 0.5, a step to 2.0; a step beside 60 tokens to 3.6; then 2 and 4 steps
    assert _times([("A", 0.0, 50, 4), ("A", 1.5, 60, 4)], MIXED, FIXED) == [
        pytest.approx(5.6),
        pytest.approx(7.6),
    ]


def test_a_chunk_full_of_decoded_tokens_still_prefills_one() -> None:
    one = dataclasses.replace(MIXED, chunked_prefill_tokens=1)
    # 2 tokens alone to 0.02; then the second's 2 tokens beside two steps of 1.01 s
    assert _times([("A", 0.0, 2, 5), ("A", 0.0, 2, 1)], one) == [
        pytest.approx(0.02 + 2 * 1.01 + 3.0),
        pytest.approx(0.02 + 2 * 1.01 + 1.0),
    ]


def test_a_mixed_step_grows_with_the_context_it_started_with() -> None:
    costs = dataclasses.replace(ROUND_COSTS, decode_s_per_context_token=0.01)
    # first: prefill to 0.5, steps with contexts 50 (to 2.0), 51 beside 20 tokens (to 3.71),
    # then 52 + 20
    assert (
        _times([("A", 0.0, 50, 3), ("A", 1.0, 20, 1)], MIXED, costs)
        == [pytest.approx(2.0 + 1.51 + 0.2 + 1.72)] * 2
    )


@pytest.mark.parametrize(
    ("redo", "end_s", "service_s"),
    [("kept", 7.0, 5.0), ("decode", 8.0, 5.0), ("prefill", 8.0, 5.0)],
)
def test_a_preemption_between_chunks(redo: Any, end_s: float, service_s: float) -> None:
    # the first chunk of request 1 ends at 1; request 2 runs to 3; 300 or 200 tokens are left
    def answer(now: float, view: QueueView) -> Plan:
        waiting = [request.id for request in view.waiting]
        if waiting == [2]:
            return keep(view, admit=[2], preempt=[1])
        return keep(view, admit=waiting if not view.running else [])

    policy = Scripted(answer)
    options = dataclasses.replace(CHUNKED, redo_model=redo)
    workload = singles({"A": 0}, [("A", 0.0, 300, 2), ("A", 0.5, 100, 1)])
    result = Engine(workload, policy, ROUND_COSTS, options).run()
    assert result.finish_s == {1: pytest.approx(3.0), 0: pytest.approx(end_s)}
    assert policy.services == [pytest.approx(2.0), pytest.approx(service_s)]
    assert result.counters.prefill_tokens == (400 if redo == "kept" else 500)


def test_half_a_prefix_is_lost_with_the_request_that_computed_it() -> None:
    def answer(now: float, view: QueueView) -> Plan:
        waiting = [request.id for request in view.waiting]
        if waiting == [2]:
            return keep(view, admit=[2], preempt=[1])
        return keep(view, admit=waiting if not view.running else [])

    options = dataclasses.replace(CHUNKED, redo_model="kept")
    workload = singles({"P": 150, "A": 0}, [("P", 0.0, 50, 1), ("A", 0.5, 100, 1)])
    result = Engine(workload, Scripted(answer), ROUND_COSTS, options).run()
    # 100 tokens of the prefix to 1; request 2 to 3; all 200 tokens to 5, a step
    assert result.finish_s == {1: pytest.approx(3.0), 0: pytest.approx(6.0)}
    assert result.counters.cold_prefixes == 2  # P and A, which is empty
    assert result.counters.recomputed_prefixes == 0
    assert result.counters.prefill_tokens == 100 + 100 + 200


def _engine(workload: Workload, name: str, options: EngineOptions) -> Engine:
    policy = make_policy(name, config_fields(workload, GROWING, options))
    return Engine(workload, policy, GROWING, options)


def _needed(workload: Workload) -> tuple[int, int]:
    """Dynamic input and output tokens of all requests."""
    rounds = [item for task in workload.tasks for stage in task.stages for item in stage]
    return sum(r.input_tokens for r in rounds), sum(r.output_tokens for r in rounds)


@pytest.mark.parametrize("name", POLICY_NAMES)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    batching=st.sampled_from(BATCHINGS),
    chunk=st.sampled_from([1, 7, 64, 100_000]),
    charge=st.sampled_from([0.0, 0.03, 2.0]),
)
def test_tokens_computed_are_those_that_are_needed(
    name: str, seed: int, batching: Any, chunk: int, charge: float
) -> None:
    workload = random_workload(seed, tasks=6)
    engine = _engine(
        workload,
        name,
        EngineOptions(
            batching=batching,
            chunked_prefill_tokens=chunk,
            charge_decisions_s=charge,
            redo_model="kept",
        ),
    )
    result = engine.run()
    assert set(result.finish_s) == {task.id for task in workload.tasks}
    counters = result.counters
    inputs, outputs = _needed(workload)
    assert counters.decode_tokens == outputs
    used = {
        stage.agent for task in workload.tasks for stage in workload.workflows[task.workflow].stages
    }
    prefixes = sum(workload.agents[agent] for agent in used) + counters.recomputed_tokens
    if counters.preemptions:  # what was computed of a prefix may have been lost
        assert counters.prefill_tokens >= inputs + prefixes
    else:
        assert counters.prefill_tokens == inputs + prefixes
    assert counters.cold_prefixes == len(used)
    assert result.peak_kv_tokens <= 1000
    assert set(engine.pool.holders()) <= set(workload.agents)
    assert result.end_s >= charge * counters.decisions


@pytest.mark.parametrize("name", POLICY_NAMES)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    batching=st.sampled_from(["chunked", "mixed"]),
    chunk=st.sampled_from([16, 150]),
    redo=st.sampled_from(["decode", "prefill", "kept"]),
    limit=st.sampled_from([None, 40.0]),
)
def test_no_task_is_lost_in_any_mode(
    name: str, seed: int, batching: Any, chunk: int, redo: Any, limit: float | None
) -> None:
    workload = random_workload(seed, huge=True)
    options = EngineOptions(
        batching=batching, chunked_prefill_tokens=chunk, redo_model=redo, max_time_s=limit
    )
    engine = _engine(workload, name, options)
    result = engine.run()
    accounted = [*result.finish_s, *result.cancelled, *result.unfinished]
    assert len(accounted) == len(set(accounted))
    assert set(accounted) == set(result.arrival_s)
    assert limit is not None or not result.unfinished
    assert result.peak_kv_tokens <= 1000
    if not result.unfinished:
        assert set(engine.pool.holders()) <= set(workload.agents)
        assert not engine.memory.running


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("name", ["fcfs", "lpm", "topas"])
def test_many_steps_at_once_equal_single_steps(name: str, batching: Any) -> None:
    for seed in range(20):
        workload = random_workload(seed, huge=seed % 4 == 0)
        options = EngineOptions(
            batching=batching,
            chunked_prefill_tokens=90,
            charge_decisions_s=0.02 * (seed % 2),
        )
        at_once = _engine(workload, name, options).run()
        single = _engine(workload, name, dataclasses.replace(options, coalesce=False)).run()
        assert at_once.finish_s == pytest.approx(single.finish_s, rel=1e-9)
        assert at_once.cancelled == single.cancelled
        assert at_once.counters == single.counters
        assert at_once.end_s == pytest.approx(single.end_s, rel=1e-9)


def test_a_chunk_without_end_differs_from_whole_prefills_in_sharing_only() -> None:
    # one request at a time: the modes cannot differ
    requests = [("P", 100.0 * i, 30 + i, 5) for i in range(5)]
    whole = _times(requests, EngineOptions(), FIXED)
    for batching in ("chunked", "mixed"):
        assert _times(requests, EngineOptions(batching=batching), FIXED) == pytest.approx(whole)


def test_a_decision_stops_the_engine_for_its_time() -> None:
    # decision to 0.25, prefill to 0.75, steps to 2.75; decision to 3.0, prefill to 3.5; 2, 4 steps
    charged = EngineOptions(charge_decisions_s=0.25)
    requests = [("A", 0.0, 50, 4), ("A", 2.0, 50, 4)]
    assert _times(requests, charged) == [pytest.approx(5.5), pytest.approx(7.5)]


def test_the_clock_never_goes_back_when_decisions_are_slow() -> None:
    policy = _Services()
    workload = singles({"A": 0, "P": 100}, [("A", 0.5 * i, 30, 3) for i in range(8)])
    result = Engine(workload, policy, ROUND_COSTS, EngineOptions(charge_decisions_s=5.0)).run()
    assert len(result.finish_s) == 8
    assert policy.times == sorted(policy.times)


def test_an_arrival_a_rounding_error_after_a_boundary_is_no_step_back() -> None:
    # decisions to 0.3 and 0.6; the third arrival is at 0.6000000000000001
    policy = _Services()
    workload = singles({"A": 0}, [("A", 0.2 * i, 0, 5) for i in (0, 1, 3)])
    Engine(workload, policy, ROUND_COSTS, EngineOptions(charge_decisions_s=0.3)).run()
    assert 0.2 * 3 in policy.times
    assert policy.times == sorted(policy.times)


@pytest.mark.parametrize(("arrival_s", "end_s"), [(6.5, 10.5), (5.0, 10.0)])
def test_transfers_and_arrivals_while_the_policy_decides(arrival_s: float, end_s: float) -> None:
    def answer(now: float, view: QueueView) -> Plan:
        return keep(view, admit=[request.id for request in view.waiting])

    options = EngineOptions(charge_decisions_s=2.0)
    workload = singles({"P": 100, "Q": 100}, [("P", 0.0, 0, 1), ("Q", arrival_s, 0, 1)])
    policy = Scripted(answer)
    result = Engine(workload, policy, ROUND_COSTS, options).run()
    # P: decision to 2, prefix to 3, step to 4; a decision to 6 drops P, which is copied out to 7.
    # Q: decision from 6.5 (or from 6, as it came during a decision) for 2 s, prefix 1 s, step
    assert result.finish_s == {0: pytest.approx(4.0), 1: pytest.approx(end_s)}
    assert result.counters.offloads == 2
    assert policy.asked == sorted(policy.asked)


def test_modes_reach_the_built_in_workloads() -> None:
    workload = make_workload("chain-3", tasks=10, rate=0.1, seed=1)
    runs = {
        batching: run_policy(
            workload,
            "topas",
            costs=EngineCosts(prefill_fixed_s=0.01),
            options=EngineOptions(batching=batching, chunked_prefill_tokens=2048),
        )[0]
        for batching in BATCHINGS
    }
    assert all(run.finished == 10 for run in runs.values())
    assert len({run.mean_jct_s for run in runs.values()}) == 3


# ---- a prefix that the batch itself computes


def _in_batch(mode: Any, requests: Sequence[tuple[str, float, int, int]], **more: Any) -> Any:
    options = dataclasses.replace(CHUNKED, in_batch_prefixes=mode, **more)
    workload = singles({"A": 0, "P": 100}, requests)
    return Engine(workload, Fcfs(), FIXED, options).run()


@pytest.mark.parametrize(
    ("mode", "ends"),
    [
        # One pass of 100 + 10 + 10 + 20 tokens: 1.9 s, then 4 steps.
        ("shared", [5.9, 5.9, 5.9]),
        # A pass of 100 + 10 + 20 tokens: 1.8 s; the second of P in one of 10: to 2.4.
        ("deferred", [6.4, 6.4, 6.4]),
        # A pass of 100 + 10 + 100 + 10 + 20 tokens: 2.9 s.
        ("repeated", [6.9, 6.9, 6.9]),
    ],
)
def test_who_computes_a_prefix_in_a_batch(mode: Any, ends: list[float]) -> None:
    requests = [("P", 0.0, 10, 4), ("P", 0.0, 10, 4), ("A", 0.0, 20, 4)]
    result = _in_batch(mode, requests, chunked_prefill_tokens=1000)
    assert list(result.finish_s.values()) == pytest.approx(ends)
    repeated = 100 if mode == "repeated" else 0
    assert result.counters.repeated_prefix_tokens == repeated
    assert result.counters.prefill_tokens == 140 + repeated
    assert result.counters.cold_prefixes == 2
    assert result.counters.recomputed_prefixes == 0


def test_a_cut_request_goes_on_before_deferred_ones() -> None:
    # Chunks of 120: prefix and 10 of request 1, 10 of request 3, which is cut; then its other 50
    # and request 2, which was deferred.
    requests = [("P", 0.0, 10, 1), ("P", 0.0, 30, 1), ("A", 0.0, 60, 1)]
    result = _in_batch("deferred", requests, chunked_prefill_tokens=120)
    # 0.5 + 1.2, 0.5 + 0.8; all three decode from 3.0 on
    assert list(result.finish_s.values()) == pytest.approx([4.0] * 3)
    assert result.counters.decode_steps == 1


def test_only_what_was_missing_when_the_batch_began_is_repeated() -> None:
    # Chunks of 80: 80 of the prefix; its last 20, request 1's 10, then request 2 computes these 20
    # again and 10 of its own.
    requests = [("P", 0.0, 10, 1), ("P", 0.0, 10, 1)]
    result = _in_batch("repeated", requests, chunked_prefill_tokens=80)
    assert result.counters.repeated_prefix_tokens == 20
    assert result.counters.prefill_tokens == 140
    assert list(result.finish_s.values()) == pytest.approx([1.3 + 1.1 + 1.0] * 2)


@pytest.mark.parametrize("mode", ["shared", "deferred", "repeated"])
def test_whole_prefills_compute_a_prefix_once(mode: Any) -> None:
    requests = [("P", 0.0, 10, 4), ("P", 0.0, 10, 4), ("A", 0.0, 20, 4)]
    result = _in_batch(mode, requests, batching="prefill-first")
    assert result.counters.prefill_tokens == 140
    assert list(result.finish_s.values()) == pytest.approx([1.6 + 0.6 + 0.7 + 4] * 3)


@pytest.mark.parametrize("batching", ["chunked", "mixed"])
def test_a_prefix_is_computed_once_in_any_mode_when_it_is_there(batching: Any) -> None:
    for mode in ("shared", "deferred", "repeated"):
        requests = [("P", 50.0 * i, 10, 4) for i in range(3)]
        result = _in_batch(mode, requests, batching=batching)
        assert result.counters.prefill_tokens == 130
