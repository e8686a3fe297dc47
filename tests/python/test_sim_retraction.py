"""Admission by estimate, as SGLang does it: the new-token ratio, and what happens if it errs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_scenarios import ROUND_COSTS, Scripted, dense_workload, keep, singles
from topas.errors import ConfigError, StateError
from topas.policies import POLICY_NAMES, Fcfs, Plan, QueueView, RequestView, make_policy
from topas.sim import Engine, EngineCosts, EngineOptions, Workload, make_workload, run_policy
from topas.sim.compute import Compute
from topas.sim.counters import Counters
from topas.sim.memory.admission import NewTokenRatio
from topas.sim.memory.lru import LruMemory
from topas.sim.memory.pool import KvPool
from topas.sim.memory.prefix import Prefix
from topas.sim.options import BATCHINGS
from topas.sim.profiles import config_fields
from topas.sim.request import Request

#: The ratio is one half and stays so.
HALF = EngineOptions(reservation="estimated", new_token_ratio=0.5, min_new_token_ratio_factor=1.0)
#: Nothing is expected: whatever has room for its own prompt and output is admitted.
BOLD = dataclasses.replace(HALF, new_token_ratio=1e-9)
GROWING = dataclasses.replace(
    ROUND_COSTS,
    decode_fixed_s=0.05,
    decode_s_per_context_token=1e-5,
    prefill_fixed_s=0.01,
    prefill_s_per_token=0.002,
)


class Told(Fcfs):
    """First come, first served; writes down whom the engine retracted, and when."""

    def __init__(self) -> None:
        self.retracted: list[tuple[float, int, int]] = []

    def request_retracted(self, now: float, request: RequestView) -> None:
        self.retracted.append((now, request.id, request.max_new_tokens))


def _engine(
    requests: Sequence[tuple[str, float, int, int]],
    options: EngineOptions,
    agents: dict[str, int] | None = None,
    policy: Any = None,
    **costs: object,
) -> Engine:
    workload = singles(agents or {"A": 0}, requests)
    costs_ = dataclasses.replace(ROUND_COSTS, **costs)
    return Engine(workload, policy or Told(), costs_, options, timeline=True)


# ---- the ratio


def _request(id_: int, input_tokens: int, max_new: int, generated: int = 0) -> Request:
    request = Request(id_, id_, 0, "s", "A", 0, 0, 0.0, 0.0, 0, input_tokens, max_new, max_new)
    request.generated_tokens = generated
    return request


def test_the_ratio_falls_to_its_least_value() -> None:
    ratio = NewTokenRatio(EngineOptions())
    assert ratio.value == 0.7
    ratio.decoded(300)
    assert ratio.value == pytest.approx(0.7 - 0.5 * (0.7 - 0.098))
    ratio.decoded(299)
    assert ratio.value > 0.098
    ratio.decoded(1)
    assert ratio.value == pytest.approx(0.098)
    ratio.decoded(1000)
    assert ratio.value == pytest.approx(0.098)
    ratio.reset()
    assert ratio.value == 0.7


def test_a_retraction_estimates_the_ratio_anew() -> None:
    ratio = NewTokenRatio(EngineOptions())
    ratio.retracted([_request(1, 10, 400, 100), _request(2, 10, 600, 50)])
    ratio.decoded(1)  # the step that was short of memory
    assert ratio.value == pytest.approx((150 + 2 * 20) / 1001)
    ratio.decoded(1)
    assert ratio.value == pytest.approx(190 / 1001 - (0.7 - 0.098) / 600)
    ratio.retracted([_request(1, 10, 100, 95)])
    ratio.decoded(1)
    assert ratio.value == 1.0


# ---- admission


def test_a_new_request_counts_in_full_and_a_running_one_by_the_ratio() -> None:
    # At 11 s the first has 110 tokens and may generate 490: 245 are expected. The second needs
    # 600: 845 of the 890 that are free. At 407 s both have grown by 395 and the pool is full.
    requests = [("A", 0.0, 100, 500), ("A", 10.5, 100, 500)]
    engine = _engine(requests, HALF)
    result = engine.run()
    # request 2 goes; the first has its last 95 steps; then 495 tokens are prefilled, 105 steps
    assert result.finish_s == {0: pytest.approx(502.0), 1: pytest.approx(611.95)}
    assert (result.counters.retractions, result.counters.retracted_tokens) == (1, 395)
    assert result.counters.preemptions == result.counters.redone_tokens == 0
    assert result.counters.prefill_tokens == 100 + 100 + 495
    assert result.counters.decode_tokens == 1000
    assert result.peak_kv_tokens == 1000
    # the estimate of what is left: the ratio of 407 s is that of admission, 0.5
    assert engine.policy.retracted == [(pytest.approx(407.0), 2, 395 + int(105 * 0.5) + 1)]
    stays = [(s.request, s.admitted_s, s.ended_s, s.finished) for s in result.timeline]
    assert stays == [
        (2, pytest.approx(11.0), pytest.approx(407.0), False),
        (1, pytest.approx(0.0), pytest.approx(502.0), True),
        (2, pytest.approx(502.0), pytest.approx(611.95), True),
    ]


@pytest.mark.parametrize(("output", "together"), [(450, True), (451, False)])
def test_the_rule_is_exact(output: int, together: bool) -> None:
    # the first: 110 of 500 when the second comes; 245 expected; 645 of 890 are left for the second
    requests = [("A", 0.0, 100, 500), ("A", 10.5, 195, output)]
    result = _engine(requests, dataclasses.replace(HALF, max_time_s=20.0)).run()
    assert (result.counters.admissions == 2) is together


@pytest.mark.parametrize(("output", "together"), [(400, True), (401, False)])
def test_requests_of_one_pass_count_in_full(output: int, together: bool) -> None:
    requests = [("A", 0.0, 100, 400), ("A", 0.0, 100, output)]
    result = _engine(requests, dataclasses.replace(HALF, max_time_s=20.0)).run()
    assert (result.counters.admissions == 2) is together


def test_what_a_request_may_generate_is_clipped() -> None:
    # of both requests 50 tokens count at most: together they are admitted, and one is retracted
    clipped = dataclasses.replace(HALF, clip_max_new_tokens=50)
    requests = [("A", 0.0, 100, 600), ("A", 0.0, 100, 600)]
    result = _engine(requests, clipped).run()
    assert result.counters.peak_batch == 2
    assert result.counters.retractions == 1
    assert _engine(requests, HALF).run().counters.peak_batch == 1


def test_admission_stops_at_the_first_that_does_not_fit() -> None:
    requests = [("A", 0.0, 100, 500), ("A", 1.0, 500, 400), ("A", 2.0, 10, 10)]
    result = _engine(requests, HALF).run()
    assert result.finish_s[2] > result.finish_s[0]


def test_policies_see_what_is_reserved() -> None:
    seen: dict[int, int] = {}

    class Look(Told):
        def request_ready(self, now: float, request: RequestView) -> None:
            seen[request.id] = request.max_new_tokens

    _engine([("A", 0.0, 100, 500), ("A", 0.0, 100, 1)], HALF, policy=Look()).run()
    assert seen == {1: 251, 2: 1}


# ---- retraction


def _batch(*requests: Request, capacity: int, **options: Any) -> tuple[LruMemory, list[Request]]:
    """Requests that decode in a pool which they fill up to ``capacity``."""
    prefixes = {"A": Prefix("A", 0)}
    counters, pool = Counters(), KvPool(capacity)
    compute = Compute(ROUND_COSTS, prefixes, counters)
    memory = LruMemory(pool, prefixes, compute, counters, dataclasses.replace(BOLD, **options))
    kept = [request.generated_tokens for request in requests]
    for request in requests:
        request.generated_tokens = 0
    memory.apply(0.0, Plan([r.id for r in requests]), {r.id: r for r in requests})
    while len(compute.decoding) < len(requests):
        compute.advance(0.0, 0.0)
    for request, generated in zip(requests, kept, strict=True):
        request.generated_tokens = generated
        pool.resize(request.id, request.own_tokens)
    return memory, list(requests)


def _retracted(memory: LruMemory) -> list[int]:
    waiting: dict[int, Request] = {}
    while (request := memory.next_retraction(begun=bool(waiting))) is not None:
        memory.retract(0.0, request, waiting)
    return list(waiting)


def test_the_fewest_tokens_go_first_then_the_longest_prompt_then_the_last() -> None:
    # the four fill the pool: 105 + 94 + 104 + 104
    requests = [
        _request(1, 100, 30, 5),
        _request(2, 90, 30, 4),
        _request(3, 100, 30, 4),
        _request(4, 100, 30, 4),
    ]
    memory, _ = _batch(*requests, capacity=407, clip_max_new_tokens=1)
    assert _retracted(memory) == [4]  # 104 are free: room for 20 steps of three
    requests = [dataclasses.replace(r, generated_tokens=r.generated_tokens) for r in requests]
    memory, _ = _batch(*requests, capacity=407, clip_max_new_tokens=1, retract_decode_steps=100)
    assert _retracted(memory) == [4, 3]  # 100 steps of two need 200: 208 are free
    requests = [dataclasses.replace(r, generated_tokens=r.generated_tokens) for r in requests]
    memory, _ = _batch(*requests, capacity=407, clip_max_new_tokens=1, retract_decode_steps=300)
    assert _retracted(memory) == [4, 3, 2]  # one stays, whatever it lacks


def test_no_retraction_while_a_step_has_memory() -> None:
    for capacity, gone in ((211, []), (210, [2])):
        requests = _request(1, 100, 50, 5), _request(2, 100, 50, 4)
        memory, _ = _batch(*requests, capacity=capacity, clip_max_new_tokens=1)
        assert _retracted(memory) == gone


def test_a_request_that_cannot_go_on_is_named() -> None:
    memory, _ = _batch(_request(7, 100, 50, 5), capacity=160)
    memory.pool.charge("somebody else", 55)
    with pytest.raises(
        StateError, match=r"request 7 \(task 7, stage 's'\) cannot go on: it has 105"
    ):
        memory.next_retraction(begun=False)


def test_the_others_step_on_before_anything_is_admitted() -> None:
    # All are admitted at once, again and again; each retraction pays for a step of the others.
    requests = [("A", 0.0, 100, 800), ("A", 0.0, 100, 800), ("A", 0.0, 100, 800)]
    options = dataclasses.replace(BOLD, clip_max_new_tokens=1, retract_decode_steps=1)
    result = _engine(requests, options).run()
    assert len(result.finish_s) == 3
    assert result.counters.decode_tokens == 2400
    assert 0 < result.counters.retractions <= result.counters.decode_steps
    assert not result.stopped


def test_idle_prefixes_go_before_a_request_is_retracted() -> None:
    # Q's prefix of 400 stays after its request and is evicted as the others grow
    requests = [("Q", 0.0, 0, 1), ("A", 10.0, 100, 300), ("A", 10.0, 100, 300)]
    result = _engine(requests, HALF, {"A": 100, "Q": 400}).run()
    assert result.counters.retractions == 0
    assert result.counters.peak_batch == 2


def test_many_steps_stop_where_memory_runs_out() -> None:
    for batching in BATCHINGS:
        options = dataclasses.replace(BOLD, batching=batching, chunked_prefill_tokens=60)
        requests = [("A", 3.0 * i, 30 + i, 200 + 17 * i) for i in range(8)]
        at_once = _engine(requests, options).run()
        single = _engine(requests, dataclasses.replace(options, coalesce=False)).run()
        assert at_once.counters.retractions > 0
        assert at_once.counters == single.counters
        assert at_once.finish_s == pytest.approx(single.finish_s, rel=1e-9)


def test_idle_resets_the_ratio() -> None:
    options = EngineOptions(reservation="estimated", new_token_ratio_decay_steps=10)
    engine = _engine([("A", 0.0, 10, 100), ("A", 500.0, 10, 5)], options)
    engine.run()
    assert engine.memory.ratio.value == pytest.approx(0.7 - 5 * (0.7 - 0.098) / 10)


# ---- pages


def test_requests_and_prefixes_have_whole_pages() -> None:
    pool = KvPool(1000, 64)
    assert pool.capacity == 960
    pool.charge("a", 65)
    assert (pool.used, pool.held("a"), "a" in pool) == (128, 128, True)
    pool.resize("a", 128)
    assert pool.used == 128
    pool.resize("a", 129)
    assert pool.used == pool.peak == 192
    with pytest.raises(StateError, match="holds nothing"):
        pool.resize("b", 1)
    # prefix 100 → 128, input and output 54 → 64: eight requests fit into 960 - 128 = 832, 13 do
    engine = _engine([("A", 0.0, 50, 4)] * 14, EngineOptions(page_size=64), {"A": 100})
    result = engine.run()
    assert result.counters.peak_batch == 13
    assert result.peak_kv_tokens == 960


def test_a_request_that_fits_by_tokens_but_not_by_pages_is_cancelled_by_name() -> None:
    options = EngineOptions(page_size=64)
    result = _engine([("A", 0.0, 800, 50)], options, {"A": 100}).run()
    assert "prefix 100 + reservation 896 = 1024 tokens, capacity 960" in result.cancelled[0]
    assert _engine([("A", 0.0, 800, 50)], EngineOptions(), {"A": 100}).run().finish_s


def test_growth_takes_whole_pages() -> None:
    # 15 pages of 64; each request begins its second page at its 14th token
    options = dataclasses.replace(BOLD, page_size=64, clip_max_new_tokens=1)
    result = _engine([("A", 0.0, 50, 60)] * 10, options).run()
    assert result.counters.peak_batch == 10
    assert result.counters.retractions > 0
    fine = _engine([("A", 0.0, 50, 45)] * 10, dataclasses.replace(options, page_size=1)).run()
    assert fine.counters.retractions == 0


# ---- explicit residency


def _all(now: float, view: QueueView) -> Plan:
    return keep(view, admit=[r.id for r in view.waiting])


def test_a_plan_is_walked_and_what_does_not_fit_waits() -> None:
    # Estimated, each needs 100 + 201 tokens: the plan is legal. The engine starts the first at 0
    # and the second when it has room for its 400: after the first has ended.
    requests = [("A", 0.0, 100, 400), ("A", 0.0, 100, 450), ("A", 0.0, 10, 10)]
    result = _engine(requests, HALF, policy=Scripted(_all)).run()
    first = {span.request: span.started_s for span in result.timeline}
    assert first[1] == pytest.approx(0.0)
    # 1.0 prefill, 400 steps: the second and, in its shade, the third
    assert first[2] == pytest.approx(401.0)
    assert first[3] == pytest.approx(402.0)
    assert {span.admitted_s for span in result.timeline} == {0.0}
    assert result.counters.retractions == 0


def test_a_retracted_request_is_planned_again() -> None:
    told: list[int] = []

    class Watch(Scripted):
        def request_retracted(self, now: float, request: RequestView) -> None:
            told.append(request.id)

    requests = [("P", 0.0, 100, 500), ("Q", 10.5, 100, 400)]
    options = dataclasses.replace(BOLD, new_token_ratio=0.3)
    result = _engine(requests, options, {"P": 50, "Q": 50}, Watch(_all)).run()
    assert told == [2]
    assert len(result.finish_s) == 2
    assert result.counters.retractions == 1
    assert result.peak_kv_tokens <= 1000


def test_prefixes_that_leave_no_room_for_a_request_wait_for_it() -> None:
    # Three prefixes of 250 and three reservations of 10 + 71 fit by plan; a request of 10 + 700
    # tokens goes on only after the others' prefixes have gone. Between them one is copied out.
    requests = [(agent, 0.0, 10, 700) for agent in "PQR"]
    options = dataclasses.replace(BOLD, new_token_ratio=0.1)
    agents = dict.fromkeys("PQR", 250)
    result = _engine(requests, options, agents, Scripted(_all)).run()
    assert list(result.finish_s.values()) == pytest.approx([702.6, 1407.7, 2112.8])
    assert result.counters.prefill_tokens == 3 * 260


def test_a_prefix_that_is_given_up_comes_back_from_the_host() -> None:
    # Q and R have copies. Q comes in beside P, gives way to it and comes again; R comes in beside
    # both and then for itself. A transfer takes 2.5 s, P's way out too.
    early = [("Q", 0.0, 10, 1), ("R", 20.0, 10, 1)]
    requests = [*early, *((agent, 50.0, 10, 700) for agent in "PQR")]
    options = dataclasses.replace(BOLD, new_token_ratio=0.1)
    agents = dict.fromkeys("PQR", 250)
    result = _engine(requests, options, agents, Scripted(_all)).run()
    assert result.finish_s[2] == pytest.approx(50 + 702.6)
    assert result.finish_s[3] == pytest.approx(50 + 702.6 + 2 * 2.5 + 700.1)
    assert result.counters.loads == 5
    assert result.counters.recomputed_prefixes == 0


# ---- whatever happens


def _dense(seed: int) -> Workload:
    return dense_workload(seed)


@pytest.mark.parametrize("name", POLICY_NAMES)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    batching=st.sampled_from(BATCHINGS),
    ratio=st.sampled_from([0.01, 0.3, 1.0]),
    steps=st.sampled_from([1, 20]),
    page=st.sampled_from([1, 7, 16]),
    redo=st.sampled_from(["decode", "prefill", "kept"]),
)
def test_every_task_ends_whatever_is_estimated(
    name: str, seed: int, batching: Any, ratio: float, steps: int, page: int, redo: Any
) -> None:
    workload = _dense(seed)
    options = EngineOptions(
        reservation="estimated",
        new_token_ratio=ratio,
        retract_decode_steps=steps,
        page_size=page,
        batching=batching,
        chunked_prefill_tokens=90,
        redo_model=redo,
    )
    runs = []
    for coalesce in (True, False):
        options = dataclasses.replace(options, coalesce=coalesce)
        policy = make_policy(name, config_fields(workload, GROWING, options))
        engine = Engine(workload, policy, GROWING, options)
        result = engine.run()
        assert not result.stopped
        assert set(result.finish_s) | set(result.cancelled) == {t.id for t in workload.tasks}
        assert set(engine.pool.holders()) <= set(workload.agents)
        assert result.peak_kv_tokens <= 1000
        runs.append(result)
    at_once, single = runs
    assert at_once.counters == single.counters
    assert at_once.finish_s == pytest.approx(single.finish_s, rel=1e-9)


@pytest.mark.parametrize("name", POLICY_NAMES)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_nothing_is_retracted_if_all_is_expected(name: str, seed: int) -> None:
    workload = _dense(seed)
    options = EngineOptions(
        reservation="estimated", new_token_ratio=1.0, min_new_token_ratio_factor=1.0
    )
    policy = make_policy(name, config_fields(workload, GROWING, options))
    assert Engine(workload, policy, GROWING, options).run().counters.retractions == 0


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_without_prefixes_expecting_all_is_reserving_all(seed: int) -> None:
    workload = dataclasses.replace(_dense(seed), agents=dict.fromkeys(_dense(seed).agents, 0))
    full = Engine(workload, Fcfs(), GROWING, EngineOptions()).run()
    options = EngineOptions(
        reservation="estimated", new_token_ratio=1.0, min_new_token_ratio_factor=1.0
    )
    estimated = Engine(workload, Fcfs(), GROWING, options).run()
    assert estimated.finish_s == pytest.approx(full.finish_s, rel=1e-9)
    assert estimated.counters == full.counters


def test_longer_reservations_than_outputs_leave_room_that_estimates_use() -> None:
    workload = make_workload("chain-3", tasks=15, rate=0.1, seed=1)
    costs = EngineCosts()
    full = EngineOptions(over_reserve=4.0)
    estimated = dataclasses.replace(full, reservation="estimated")
    for name in ("lpm", "topas"):
        slow = run_policy(workload, name, costs=costs, options=full)[0]
        fast = run_policy(workload, name, costs=costs, options=estimated)[0]
        assert fast.mean_batch is not None
        assert slow.mean_batch is not None
        assert fast.mean_batch > 1.1 * slow.mean_batch


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reservation", "none"),
        ("new_token_ratio", 0.0),
        ("new_token_ratio", 1.5),
        ("min_new_token_ratio_factor", 2),
        ("new_token_ratio_decay_steps", 0),
        ("retract_decode_steps", 0),
        ("clip_max_new_tokens", 0.5),
        ("page_size", 0),
        ("in_batch_prefixes", "never"),
    ],
)
def test_settings_are_checked(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        EngineOptions(**{field: value})
