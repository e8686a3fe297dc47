"""The engine's own cache with copies in host memory, and with a policy's advice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_scenarios import ROUND_COSTS, random_workload, singles
from topas.errors import ConfigError, StateError
from topas.policies import Continuum, Fcfs, KvFlow, Plan, Policy, PrefixAdvice, QueueView
from topas.sim import Engine, EngineOptions, RunResult, Workload, make_workload, run_policy
from topas.sim.memory.host import HostCache
from topas.sim.memory.lru import LruMemory
from topas.sim.memory.prefix import Prefix
from topas.sim.profiles import setup_of
from topas.sim.request import Request

#: As ROUND_COSTS, but a prefix of 400 tokens is computed in 4 s and loaded in 0.8 s.
COSTS = dataclasses.replace(ROUND_COSTS, kv_bytes_per_token=0.2)
UNLIMITED = EngineOptions(host_cache_tokens=None)
THREE = {"A": 400, "B": 400, "C": 400}
VISITS = [("A", 0.0, 10, 10), ("B", 100.0, 10, 10), ("C", 200.0, 10, 10), ("A", 300.0, 10, 10)]


class Advised(Policy):
    """First come, first served, with advice from a function of (time, view)."""

    name = "advised"
    gives_advice = True

    def __init__(self, advice: Callable[[float, QueueView], PrefixAdvice | None]) -> None:
        self._advice = advice
        self.asked: list[float] = []

    def plan(self, now: float, view: QueueView) -> Plan:
        self.asked.append(now)
        return Plan([r.id for r in view.waiting], advice=self._advice(now, view))


def _engine(
    workload: Workload,
    policy: Policy | None = None,
    options: EngineOptions = UNLIMITED,
    **costs: object,
) -> Engine:
    return Engine(workload, policy or Fcfs(), dataclasses.replace(COSTS, **costs), options)


def _run(
    workload: Workload,
    policy: Policy | None = None,
    options: EngineOptions = UNLIMITED,
    **costs: object,
) -> RunResult:
    engine = _engine(workload, policy, options, **costs)
    result = engine.run()
    assert set(engine.pool.holders()) <= set(workload.agents), "a request kept its memory"
    return result


def test_an_evicted_prefix_is_loaded_instead_of_computed_again() -> None:
    result = _run(singles(THREE, VISITS))
    counters = result.counters
    # 0.8 s on the link, then the request's own prefill of 0.1 s
    assert result.finish_s[3] == pytest.approx(300 + 0.8 + 0.1 + 10)
    assert (counters.cold_prefixes, counters.recomputed_prefixes) == (3, 0)
    assert (counters.loads, counters.load_tokens, counters.hits) == (1, 400, 0)
    without = _run(singles(THREE, VISITS), options=EngineOptions())
    assert without.finish_s[3] == pytest.approx(300 + 4.1 + 10)
    assert without.counters.recomputed_prefixes == 1
    assert without.counters.loads == 0


def test_a_budget_gives_up_the_least_recently_used_copy() -> None:
    # two copies fit: A's goes when C's is made, B's stays
    budget = EngineOptions(host_cache_tokens=800)
    again = _run(singles(THREE, VISITS), options=budget)
    assert (again.counters.loads, again.counters.recomputed_prefixes) == (0, 1)
    # a visit at 150 makes A's copy more recent than B's, so that B's goes with C's
    visits = [*VISITS[:2], ("A", 150.0, 10, 10), VISITS[2], ("B", 300.0, 10, 10)]
    kept = _run(singles(THREE, visits), options=budget)
    assert (kept.counters.loads, kept.counters.recomputed_prefixes) == (0, 1)
    assert _run(singles(THREE, visits)).counters.loads == 1


def test_a_copy_larger_than_the_budget_is_not_kept() -> None:
    result = _run(singles(THREE, VISITS), options=EngineOptions(host_cache_tokens=399))
    assert (result.counters.loads, result.counters.recomputed_prefixes) == (0, 1)


def test_host_cache_by_itself() -> None:
    cache = HostCache(100)
    a, b, c = Prefix("a", 60), Prefix("b", 40), Prefix("c", 50)
    assert cache.store(a)
    assert cache.store(b)
    assert cache.used == 100
    assert not cache.store(c, busy=["a", "b"])
    assert not cache.store(c, busy=["a"])  # b alone does not make enough room: both stay
    assert cache.copies() == {"a": 60, "b": 40}
    cache.touch("a")
    cache.touch("unknown")
    assert cache.store(c)  # b is the older one, and a has to go too
    assert cache.copies() == {"c": 50}
    assert cache.store(c)
    assert cache.used == 50
    assert not HostCache(0).store(a)
    assert "c" in cache
    assert "a" not in cache
    unlimited = HostCache(None)
    assert all(unlimited.store(p) for p in (a, b, c))
    assert unlimited.used == 150


def test_loads_share_one_link_and_requests_of_one_agent_share_a_load() -> None:
    agents = {"A": 300, "B": 300, "C": 900}
    tasks = [("A", 0.0, 0, 1), ("B", 10.0, 0, 1), ("C", 20.0, 0, 1)]
    later = [("A", 100.0, 0, 5), ("B", 100.0, 0, 5), ("A", 100.0, 0, 5)]
    result = _run(singles(agents, [*tasks, *later]))
    # A 100-100.6 and its two requests start, B 100.6-101.2: it joins at the boundary 101.6
    assert result.finish_s[3] == pytest.approx(105.6)
    assert result.finish_s[5] == pytest.approx(105.6)
    assert result.finish_s[4] == pytest.approx(106.6)
    assert (result.counters.loads, result.counters.hits) == (2, 1)


def test_others_run_while_a_prefix_is_loaded_and_service_leaves_it_out() -> None:
    class Recorder(Fcfs):
        def __init__(self) -> None:
            self.services: dict[int, float] = {}

        def request_completed(self, now: float, request: Any, service_s: float) -> None:
            self.services[request.task] = service_s

    agents = {"A": 300, "B": 300, "C": 800}
    tasks = [("A", 0.0, 0, 1), ("C", 10.0, 0, 1), ("B", 20.0, 0, 9), ("A", 24.0, 0, 2)]
    policy = Recorder()
    result = _run(singles(agents, tasks), policy)
    # B is computed 20-23 and decodes; A is loaded 24-24.6 and joins at 25
    assert result.finish_s[2] == pytest.approx(32.0)
    assert result.finish_s[3] == pytest.approx(27.0)
    assert policy.services[3] == pytest.approx(2.0)


def test_free_loads_take_no_time() -> None:
    result = _run(singles(THREE, VISITS), kv_bytes_per_token=0.0)
    assert result.finish_s[3] == pytest.approx(300 + 0.1 + 10)
    assert result.counters.loads == 1


class _Bench:
    """The memory of an engine, driven by hand; prefixes A, B, C of 400 tokens in 1,000."""

    def __init__(self, options: EngineOptions = UNLIMITED, *, copies: str = "ABC") -> None:
        self.engine = _engine(singles(THREE, [("A", 0.0, 10, 1)]), options=options)
        memory = self.engine.memory
        assert isinstance(memory, LruMemory)
        self.memory = memory
        self.waiting: dict[int, Any] = {}
        for agent in copies:
            assert memory.host.store(memory.prefixes[agent])

    def request(self, agent: str, input_tokens: int = 10) -> Request:
        id_ = 1 + max(self.waiting, default=0) + len(self.memory.running)
        self.waiting[id_] = Request(
            id_, id_, 0, "only", agent, 0, 0, 0.0, 0.0, 400, input_tokens, 1, 1
        )
        return self.waiting[id_]  # type: ignore[no-any-return]

    def apply(self, now: float, *admit: Request, **advice: Any) -> None:
        plan = Plan([request.id for request in admit], advice=PrefixAdvice(**advice))
        self.memory.apply(now, plan, self.waiting)

    def there(self) -> str:
        return "".join(agent for agent in "ABC" if self.memory.resident_tokens(agent))


def test_cancelling_in_the_middle_of_a_load() -> None:
    """Case 15: the load goes on, the prefix is idle then; a load not begun is called off."""
    bench = _Bench()
    memory, pool = bench.memory, bench.engine.pool
    a, b = bench.request("A"), bench.request("B")
    bench.apply(0.0, a, b)
    assert pool.used == 2 * 400 + 2 * 11
    assert memory.next_event() == pytest.approx(0.8)
    assert bench.there() == "AB"  # on its way counts as there, for lpm
    memory.abort(b)  # queued behind A
    assert pool.used == 400 + 11
    memory.abort(a)
    assert pool.holders() == {"A": 400}
    memory.handle_event(0.8)
    assert bench.there() == "A"
    assert memory.next_event() == math.inf
    assert not memory.running
    bench.apply(1.0, bench.request("B", 550))  # A is idle and makes room
    assert bench.there() == "B"


def test_prefetches_come_one_at_a_time_and_leave_the_link_to_requests() -> None:
    bench = _Bench()
    bench.apply(0.0, prefetch=("A", "B"))
    assert bench.there() == "A"
    c = bench.request("C")
    bench.apply(0.1, c, prefetch=("A", "B"))
    assert bench.there() == "AC"
    bench.memory.handle_event(0.8)
    assert bench.memory.next_event() == pytest.approx(1.6)  # C's load, B's has not begun
    bench.memory.handle_event(1.6)
    assert bench.engine.result.counters.loads == 2
    bench.apply(1.6, prefetch=("A", "B"), distance={"A": 1.0, "B": 0.0})
    assert bench.there() == "BC"  # B takes the memory of A, which is idle and farther


def test_a_prefetch_takes_nothing_that_is_pinned() -> None:
    bench = _Bench()
    for agent in "AB":
        bench.apply(0.0, prefetch=(agent,))
        bench.memory.handle_event(bench.memory.next_event())
    assert bench.there() == "AB"
    pins = {"A": 50.0, "B": 50.0}
    bench.apply(2.0, prefetch=("C",), distance={"C": 0.0}, pinned_until_s=pins)
    assert bench.there() == "AB"
    bench.apply(50.0, prefetch=("C",), distance={"C": 0.0}, pinned_until_s=pins)
    assert bench.there() == "BC"


def test_a_copy_that_is_being_read_stays() -> None:
    bench = _Bench(EngineOptions(host_cache_tokens=400), copies="A")
    a, b = bench.request("A"), bench.request("B")
    bench.apply(0.0, a, b)
    bench.memory.prefixes["B"].computed = True
    bench.memory.finish(b)
    assert bench.memory.host.copies() == {"A": 400}
    bench.memory.handle_event(0.8)
    bench.apply(1.0, bench.request("C", 150))
    assert bench.there() == "AC"  # B had no copy made, and room was needed


def test_a_policy_is_told_what_an_evicted_prefix_costs() -> None:
    workload = singles(THREE, VISITS)
    assert setup_of(workload, COSTS, UNLIMITED).reload_s["A"] == pytest.approx(0.8)
    assert setup_of(workload, COSTS, EngineOptions()).reload_s["A"] == pytest.approx(4.0)
    assert setup_of(workload, COSTS).reload_s["A"] == pytest.approx(4.0)


def test_policies_that_keep_books_keep_nothing_of_tasks_that_ended() -> None:
    workload = random_workload(12, tasks=20, huge=True)
    kvflow, continuum = KvFlow(), Continuum()
    for policy in (kvflow, continuum):
        result = _run(workload, policy)
        assert not result.unfinished
        assert result.cancelled
    assert not kvflow.steps_to_execution()
    assert not continuum._paused
    assert not continuum._returned


def test_idle_prefixes_go_by_distance_then_by_use() -> None:
    order = {"A": 1.0, "B": 5.0}
    result = _run(singles(THREE, VISITS), Advised(lambda now, view: PrefixAdvice(distance=order)))
    # C evicts B, which is farther than A, although A is the older one
    assert result.finish_s[3] == pytest.approx(300 + 0.1 + 10)
    # an agent without a distance goes first
    nameless = _run(
        singles(THREE, VISITS), Advised(lambda now, view: PrefixAdvice(distance={"B": 5.0}))
    )
    assert nameless.finish_s[3] == pytest.approx(300 + 0.8 + 0.1 + 10)


def test_a_pin_holds_until_it_runs_out() -> None:
    agents = {"A": 400, "B": 400, "C": 400}
    tasks = [("A", 0.0, 10, 1), ("B", 10.0, 10, 100), ("C", 20.0, 10, 1), ("A", 60.0, 10, 1)]
    policy = Advised(lambda now, view: PrefixAdvice(pinned_until_s={"A": 50.0}))
    result = _run(singles(agents, tasks), policy)
    # B runs from 14.1; C gets A's memory at the boundary after 50 (50.1) and not before
    assert result.finish_s[2] == pytest.approx(50.1 + 4.1 + 1)
    assert any(50.0 <= asked < 50.2 for asked in policy.asked)
    free = _run(singles(agents, tasks), Advised(lambda now, view: None))
    assert free.finish_s[2] == pytest.approx(20.1 + 4.1 + 1)


def test_pins_yield_when_nothing_runs() -> None:
    """No policy can starve a request with pins: with an idle engine they give way."""
    policy = Advised(lambda now, view: PrefixAdvice(pinned_until_s=dict.fromkeys(THREE, math.inf)))
    result = _run(singles(THREE, VISITS), policy)
    assert len(result.finish_s) == 4
    assert result.finish_s[2] == pytest.approx(200 + 4.1 + 10)


def test_prefetch_hides_the_load() -> None:
    policy = Advised(
        lambda now, view: PrefixAdvice(
            distance={"A": 1.0}, prefetch=("A",) if 210.0 < now < 300.0 else ()
        )
    )
    visits = [*VISITS[:3], ("A", 214.0, 10, 10)]
    tight = {"A": 400, "B": 400, "C": 800}
    result = _run(singles(tight, visits), policy)
    # C (computed 200-208.1) ends at 218.1; A waits for its memory, comes in 0.8 s
    assert result.finish_s[3] == pytest.approx(218.1 + 0.8 + 0.1 + 10)
    visits = [*VISITS[:3], ("B", 230.0, 10, 10), ("A", 300.0, 10, 10)]
    ahead = _run(singles(tight, visits), policy)
    # C's memory goes to B at 230; A comes beside it at once, and finds itself there at 300
    assert ahead.finish_s[4] == pytest.approx(300 + 0.1 + 10)
    assert (ahead.counters.loads, ahead.counters.prefetches, ahead.counters.hits) == (2, 1, 1)


def test_a_prefetch_takes_only_what_is_farther() -> None:
    def near(now: float, view: QueueView) -> PrefixAdvice:
        return PrefixAdvice(distance=dict.fromkeys(THREE, 1.0), prefetch=("A",))

    def far(now: float, view: QueueView) -> PrefixAdvice:
        late = now > 210.0
        return PrefixAdvice(distance={"A": 1.0} if late else {}, prefetch=("A",) if late else ())

    # C has evicted A; at the end of C's request there is B, as near or farther
    equal = _run(singles(THREE, VISITS[:3]), Advised(near)).counters
    assert (equal.prefetches, equal.loads) == (0, 0)
    farther = _run(singles(THREE, VISITS[:3]), Advised(far)).counters
    assert (farther.prefetches, farther.loads) == (1, 1)


def test_without_a_host_copy_nothing_is_prefetched() -> None:
    policy = Advised(lambda now, view: PrefixAdvice(prefetch=("A", "B", "C")))
    result = _run(singles(THREE, VISITS), policy, EngineOptions())
    assert (result.counters.prefetches, result.counters.loads) == (0, 0)


def test_advice_on_an_unknown_agent_is_refused() -> None:
    for advice in (
        PrefixAdvice(distance={"X": 1.0}),
        PrefixAdvice(pinned_until_s={"X": 1.0}),
        PrefixAdvice(prefetch=("X",)),
    ):
        with pytest.raises(StateError, match="unknown agent 'X'"):
            _run(singles(THREE, VISITS), Advised(lambda now, view, a=advice: a))  # type: ignore[misc]


def test_advice_beside_named_residents_is_refused() -> None:
    class Both(Advised):
        explicit_residency = True

        def plan(self, now: float, view: QueueView) -> Plan:
            return Plan([], resident=frozenset(), advice=PrefixAdvice())

    with pytest.raises(StateError, match="names the resident prefixes itself"):
        _run(singles(THREE, VISITS), Both(lambda now, view: None))


@pytest.mark.parametrize("value", [-1, 1.5, "many", True, math.nan])
def test_an_illegal_budget_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match="host_cache_tokens"):
        EngineOptions(host_cache_tokens=value)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    huge=st.booleans(),
    budget=st.sampled_from([0, 100, 300, None]),
    wish=st.integers(0, 1_000),
)
def test_any_advice_loses_no_task_and_keeps_pool_and_host(
    seed: int, huge: bool, budget: int | None, wish: int
) -> None:
    import random

    workload = random_workload(seed, huge=huge)
    rng = random.Random(wish)
    agents = list(workload.agents)

    def advice(now: float, view: QueueView) -> PrefixAdvice:
        return PrefixAdvice(
            distance={a: float(rng.randint(0, 3)) for a in agents if rng.random() < 0.8},
            pinned_until_s={a: now + rng.choice([-1.0, 5.0, math.inf]) for a in agents},
            prefetch=tuple(rng.sample(agents, rng.randint(0, len(agents)))),
        )

    engine = _engine(
        workload,
        Advised(advice),
        EngineOptions(host_cache_tokens=budget, max_running=seed % 3 * 2),
        decode_fixed_s=0.05,
    )
    charge = engine.pool.charge

    def watched(holder: Any, tokens: int) -> None:
        charge(holder, tokens)
        assert sum(engine.pool.holders().values()) == engine.pool.used <= engine.pool.capacity
        host = engine.memory.host  # type: ignore[attr-defined]
        assert sum(host.copies().values()) == host.used
        assert budget is None or host.used <= budget

    engine.pool.charge = watched  # type: ignore[method-assign]
    result = engine.run()
    assert {*result.finish_s, *result.cancelled} == set(result.arrival_s)
    assert not result.unfinished
    assert not engine.memory.running
    assert set(engine.pool.holders()) <= set(agents)
    assert engine.memory.next_event() == math.inf or engine.memory.next_event() > result.end_s


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "parrot", "las", "spf", "continuum"])
def test_a_host_cache_of_no_use_changes_nothing(policy: str) -> None:
    """Where nothing is evicted, the two kinds of run are the same."""
    workload = make_workload("chain-3", tasks=15, rate=0.03, seed=4)
    plain, _ = run_policy(workload, policy)
    host, _ = run_policy(workload, policy + "+host")
    assert plain.recomputed_prefixes == host.swaps == 0
    assert plain.jct_s == host.jct_s


@pytest.mark.parametrize("suffix", ["", "+host"])
def test_without_tool_waits_continuum_is_parrot(suffix: str) -> None:
    workload = make_workload("dag-4", tasks=15, rate=0.08, seed=4)
    one, _ = run_policy(workload, "parrot" + suffix)
    other, _ = run_policy(workload, "continuum" + suffix)
    assert one.recomputed_prefixes + one.swaps > 0
    assert one.jct_s == pytest.approx(other.jct_s)
