"""Explicit residency worked out by hand: transfers, first computation, preemption, redone work."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from sim_scenarios import ROUND_COSTS, Scripted, keep, random_workload, singles
from topas.errors import CapacityError, StateError
from topas.policies import Plan, QueueView, RequestView
from topas.sim import Engine, EngineOptions, RunResult, Workload

Answer = Callable[[float, QueueView], Plan]


def _admit_all(now: float, view: QueueView) -> Plan:
    return keep(view, admit=[r.id for r in view.waiting])


def _run(
    workload: Workload, answer: Answer, options: EngineOptions | None = None, **costs: object
) -> tuple[RunResult, Scripted]:
    policy = Scripted(answer)
    engine = Engine(workload, policy, dataclasses.replace(ROUND_COSTS, **costs), options)
    result = engine.run()
    left = [holder for holder in engine.pool.holders() if isinstance(holder, int)]
    assert not left, "a request kept its memory"
    return result, policy


def test_a_new_prefix_is_computed_and_later_loaded() -> None:
    tasks = [("A", 0.0, 50, 4), ("A", 100.0, 50, 4)]
    result, policy = _run(singles({"A": 100}, tasks), _admit_all)
    # 1.5 prefill + 4; the prefix leaves 5.5-6.5; then 1 s transfer, 0.5 prefill, 4 steps
    assert result.finish_s == {0: pytest.approx(5.5), 1: pytest.approx(105.5)}
    assert policy.services == [pytest.approx(5.5), pytest.approx(4.5)]  # transfers are no service
    counters = result.counters
    assert (counters.cold_prefixes, counters.loads, counters.load_tokens) == (1, 1, 100)
    assert (counters.recomputed_prefixes, counters.hits) == (0, 0)
    # asked at: arrival, completion, end of offload, arrival, end of load (the boundary),
    # completion, end of the second offload
    assert policy.asked == pytest.approx([0.0, 5.5, 6.5, 100.0, 101.0, 105.5, 106.5])


def test_free_offload_leaves_no_transfer_behind() -> None:
    tasks = [("A", 0.0, 50, 4), ("A", 5.6, 50, 4)]
    slow, _ = _run(singles({"A": 100}, tasks), _admit_all)
    # taken back at 5.6 while it is still leaving: no transfer at all
    assert slow.finish_s[1] == pytest.approx(5.6 + 0.5 + 4)
    assert slow.counters.loads == 0
    free = EngineOptions(offload_copies=False)
    fast, _ = _run(singles({"A": 100}, tasks), _admit_all, free)
    assert fast.finish_s[1] == pytest.approx(5.6 + 1.0 + 0.5 + 4)
    assert fast.counters.loads == 1


def test_others_run_while_a_prefix_is_on_its_way() -> None:
    tasks = [("B", 0.0, 0, 1), ("A", 10.0, 0, 8), ("B", 10.0, 0, 2)]
    result, _ = _run(singles({"A": 100, "B": 300}, tasks), _admit_all)
    # B computed 0-3, done 4, copied out 4-7. At 10: A is computed 10-11 and decodes, B is copied in
    # 10-13, starts at the boundary 13 and is done at 15
    assert result.finish_s == {0: 4.0, 1: 19.0, 2: 15.0}


def test_transfers_are_serialised_and_leaving_ones_go_first() -> None:
    script = {"B0": False}

    def answer(now: float, view: QueueView) -> Plan:
        if now >= 50.0 and not script["B0"] and any(r.agent == "C" for r in view.waiting):
            script["B0"] = True
            stop = [r.id for r in view.running if r.agent == "A"]
            return keep(view, admit=[r.id for r in view.waiting], preempt=stop)
        later = [r.id for r in view.waiting if r.agent != "A" or not view.running]
        return keep(view, admit=later)

    tasks = [("B", 0.0, 0, 1), ("C", 20.0, 0, 1), ("A", 40.0, 0, 20), ("B", 50.0, 0, 5)]
    tasks += [("C", 50.0, 0, 5)]
    workload = singles({"A": 200, "B": 300, "C": 400}, tasks)
    result, _ = _run(workload, answer, kv_capacity=960)
    # at 50 A (prefilled 40-42, decoding) goes: copied out 50-52, then B in 52-55 and C in 55-59
    assert result.finish_s[3] == pytest.approx(55 + 5)
    # C's load ends at 59, B's batch has boundaries at whole seconds, C decodes 59-64
    assert result.finish_s[4] == pytest.approx(59 + 5)
    assert result.counters.preemptions == 1
    # when all is done A is loaded again and decodes all its 20 tokens: the plan at 64 drops B and C
    # (B left at 60 and is out by 63; C goes 64-68), A in 68-70
    assert result.finish_s[2] == pytest.approx(70 + 20)


@pytest.mark.parametrize(
    ("model", "end", "redone"),
    [
        # A: prefill 0-1.5, decodes 10 of 20 by 11.5, stopped. B: 11.5 out to 12.5, computed
        # 12.5-13.5, decodes to 18.5; B out 18.5-19.5, A in 19.5-20.5, then
        ("decode", 20.5 + 0.5 + 20, 10),  # all again
        ("prefill", 20.5 + 0.6 + 10, 10),  # input and generated tokens prefilled, the rest decoded
        ("kept", 20.5 + 10, 0),  # goes on where it was
    ],
)
def test_preempted_work_is_redone_as_the_model_says(model: str, end: float, redone: int) -> None:
    def answer(now: float, view: QueueView) -> Plan:
        waiting = {r.agent: r.id for r in view.waiting}
        running = {r.agent: r.id for r in view.running}
        if "B" in waiting and "A" in running:
            return keep(view, admit=[waiting["B"]], preempt=[running["A"]])
        return keep(view, admit=[] if "B" in running else list(waiting.values()))

    workload = singles({"A": 100, "B": 100}, [("A", 0.0, 50, 20), ("B", 11.0, 0, 5)])
    options = EngineOptions(redo_model=model)  # type: ignore[arg-type]
    result, policy = _run(workload, answer, options, kv_capacity=190)
    assert result.finish_s[1] == pytest.approx(18.5)
    assert result.finish_s[0] == pytest.approx(end)
    assert result.counters.preemptions == 1
    assert result.counters.redone_tokens == redone
    # service: the last attempt, and what was kept of the first (1.5 + 10)
    expected = {"decode": 20.5, "prefill": 11.5 + 10.6, "kept": 11.5 + 10}
    assert policy.services[1] == pytest.approx(expected[model])


def test_a_prefix_that_leaves_before_it_was_computed_costs_no_transfer() -> None:
    # B is prefilled 0-9 with A queued behind; A is stopped at 9, before its prefill, and comes
    # back at 10
    def answer(now: float, view: QueueView) -> Plan:
        if now == 9.0:
            return keep(view, preempt=[r.id for r in view.running if r.agent == "A"])
        return keep(view, admit=[r.id for r in view.waiting])

    tasks = [("B", 0.0, 500, 1), ("A", 0.0, 0, 1), ("B", 9.0, 0, 1)]
    result, _ = _run(singles({"A": 100, "B": 400}, tasks), answer, kv_capacity=1100)
    assert result.finish_s == {0: 10.0, 1: 12.0, 2: 12.0}
    counters = result.counters
    assert (counters.preemptions, counters.cold_prefixes) == (1, 2)
    assert (counters.loads, counters.recomputed_prefixes, counters.offloads) == (0, 0, 2)


def test_an_incoming_prefix_may_be_dropped_and_taken_again() -> None:
    # A's load (50-51) is under way when its request is stopped; it is loaded in full the next time
    def answer(now: float, view: QueueView) -> Plan:
        if 50.0 < now < 51.0:
            return keep(view, preempt=[r.id for r in view.running if r.agent == "A"])
        waiting = [r.id for r in view.waiting if r.agent == "B" or now < 50.5 or now > 60]
        return keep(view, admit=waiting)

    tasks = [("A", 0.0, 0, 1), ("A", 50.0, 0, 1), ("B", 50.5, 0, 1), ("B", 70.0, 0, 1)]
    result, _ = _run(singles({"A": 100, "B": 0}, tasks), answer)
    assert result.counters.preemptions == 1
    assert result.counters.loads == 1
    assert result.finish_s[1] == pytest.approx(72.0)  # 70-71 loaded, one step


def test_zero_length_prefixes_and_free_transfers() -> None:
    tasks = [("A", 0.0, 0, 4), ("B", 0.0, 0, 4), ("A", 50.0, 0, 4)]
    result, _ = _run(singles({"A": 0, "B": 100}, tasks), _admit_all, kv_bytes_per_token=0.0)
    assert result.finish_s == {0: 5.0, 1: 5.0, 2: 54.0}


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        (Plan([1]), StateError, "names no resident"),
        (Plan([1], resident=frozenset("Z")), StateError, "unknown agent 'Z'"),
        (Plan([1], resident=frozenset()), StateError, "not those of its requests"),
        (Plan([1], resident=frozenset("AB")), StateError, "not those of its requests"),
        (Plan([1, 2], resident=frozenset("AB")), CapacityError, "800 tokens for prefixes and 304"),
    ],
)
def test_illegal_plans_are_refused(plan: Plan, error: type[Exception], message: str) -> None:
    workload = singles({"A": 400, "B": 400}, [("A", 0.0, 50, 102), ("B", 0.0, 50, 102)])
    with pytest.raises(error, match=message):
        _run(workload, lambda now, view: plan)


def test_a_limit_on_running_requests_is_checked() -> None:
    workload = singles({"A": 100}, [("A", 0.0, 0, 4)] * 3)
    with pytest.raises(StateError, match="runs 3 requests, 2 are allowed"):
        _run(workload, _admit_all, EngineOptions(max_running=2))


def test_a_policy_in_circles_is_stopped_and_its_tasks_are_listed() -> None:
    # case 3: A and B replace each other at each event; nothing ever finishes
    def answer(now: float, view: QueueView) -> Plan:
        if view.running:
            return keep(
                view,
                admit=[r.id for r in view.waiting],
                preempt=[r.id for r in view.running],
            )
        return keep(view, admit=[view.waiting[0].id] if view.waiting else [])

    workload = singles({"A": 500, "B": 500}, [("A", 0.0, 50, 100), ("B", 3.0, 50, 100)])
    options = EngineOptions(stall_limit=200)
    result, _ = _run(workload, answer, options, kv_capacity=700)
    assert "circles" in result.stopped
    assert "request 1 (task 0, stage 'only') is unserved since 0 s" in result.stopped
    assert result.unfinished == [0, 1]
    assert result.counters.preemptions >= 100


def _thrash(seed: int) -> Answer:
    """A legal plan drawn at random: some agents leave, and of the other requests some that fit."""
    rng = random.Random(seed)

    def answer(now: float, view: QueueView) -> Plan:
        agents = sorted({r.agent for r in (*view.waiting, *view.running)})
        drop = {agent for agent in agents if rng.random() < 0.2}
        kept = [r for r in view.running if r.agent not in drop]
        offered = [r for r in view.waiting if r.agent not in drop and rng.random() < 0.8]
        admit = _that_fit(offered, kept, _WORKLOADS[seed].agents)
        if not admit and not kept:
            return keep(view, admit=[] if view.running else [r.id for r in view.waiting[:1]])
        return keep(view, admit=admit, preempt=[r.id for r in view.running if r not in kept])

    return answer


def _that_fit(
    offered: Sequence[RequestView], kept: Sequence[RequestView], prefixes: Mapping[str, int]
) -> list[int]:
    there = {r.agent for r in kept}
    free = 1000 - sum(map(_reservation, kept)) - sum(prefixes[agent] for agent in there)
    admit = []
    for request in sorted(offered, key=lambda r: r.id):
        need = _reservation(request)
        need += 0 if request.agent in there else prefixes[request.agent]
        if need <= free:
            free -= need
            there.add(request.agent)
            admit.append(request.id)
    return admit


def _reservation(request: RequestView) -> int:
    return request.input_tokens + request.max_new_tokens


_WORKLOADS = {seed: random_workload(seed, huge=seed % 2 == 0) for seed in range(60)}


MEMORY_RULES: list[dict[str, Any]] = [
    {},
    {"reservation": "estimated", "new_token_ratio": 0.1, "retract_decode_steps": 2},
    {"reuse_context": True, "host_cache_tokens": 200, "page_size": 10},
]


@pytest.mark.parametrize("rules", MEMORY_RULES)
@pytest.mark.parametrize("model", ["decode", "prefill", "kept"])
@pytest.mark.parametrize("offload", [True, False])
def test_random_plans_never_break_the_pool_and_lose_no_task(
    rules: dict[str, Any], model: str, offload: bool
) -> None:
    options = EngineOptions(
        redo_model=model,  # type: ignore[arg-type]
        offload_copies=offload,
        stall_limit=5000,
        **rules,
    )
    preemptions = 0
    for seed, workload in _WORKLOADS.items():
        result, _ = _run(workload, _thrash(seed), options)
        ended = [*result.finish_s, *result.cancelled, *result.unfinished]
        assert sorted(map(str, ended)) == sorted(str(task.id) for task in workload.tasks)
        assert not result.stopped
        assert result.peak_kv_tokens <= 1000
        preemptions += result.counters.preemptions
    assert preemptions > 100
