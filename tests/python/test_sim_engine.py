"""The engine against scenarios worked out by hand (baselines, LRU residency)."""

from __future__ import annotations

import dataclasses

import pytest
from sim_scenarios import ROUND_COSTS, chain, singles
from topas.errors import CapacityError, StateError
from topas.policies import Fcfs, Lpm, Plan, Policy, QueueView, RequestView, Spf
from topas.sim import (
    Engine,
    EngineCosts,
    EngineOptions,
    Round,
    RunResult,
    StageShape,
    Task,
    WorkflowShape,
    Workload,
)
from topas.sim.memory.pool import KvPool


def _run(workload: Workload, policy: Policy | None = None, **costs: object) -> RunResult:
    engine = Engine(workload, policy or Fcfs(), dataclasses.replace(ROUND_COSTS, **costs))
    result = engine.run()
    assert set(engine.pool.holders()) <= set(workload.agents), "a request kept its memory"
    assert result.peak_kv_tokens <= engine.costs.kv_capacity
    return result


def test_one_request() -> None:
    # prefill of 100 + 50 tokens 1.5 s, 4 steps of 1 s
    result = _run(singles({"A": 100}, [("A", 3.0, 50, 4)]))
    assert result.finish_s == {0: pytest.approx(8.5)}
    assert result.counters.cold_prefixes == 1
    assert result.counters.recomputed_prefixes == 0
    assert result.peak_kv_tokens == 100 + 50 + 4


def test_steps_grow_with_the_context() -> None:
    # contexts 150..153: 4 + 0.01 * (150 + 151 + 152 + 153)
    result = _run(singles({"A": 100}, [("A", 0.0, 50, 4)]), decode_s_per_context_token=0.01)
    assert result.finish_s[0] == pytest.approx(1.5 + 4 + 6.06)


def test_steps_grow_with_the_batch() -> None:
    # both prefilled at 2.0 s (prefix once), contexts 2 * (150..153)
    workload = singles({"A": 100}, [("A", 0.0, 50, 4), ("A", 0.0, 50, 4)])
    result = _run(workload, decode_s_per_context_token=0.01)
    assert list(result.finish_s.values()) == [pytest.approx(2 + 4 + 12.12)] * 2


def test_prefill_stops_the_decoding_of_others() -> None:
    # first: prefill to 1.5, step to 2.5; second (arrived 2.2) is prefilled to 3.0; then both decode
    result = _run(singles({"A": 100}, [("A", 0.0, 50, 4), ("A", 2.2, 50, 4)]))
    assert result.finish_s == {0: pytest.approx(6.0), 1: pytest.approx(7.0)}
    assert result.counters.decode_steps == 5
    assert result.counters.decode_tokens == 8
    assert result.counters.peak_batch == 2


def test_an_arrival_during_a_prefill_waits_for_its_end() -> None:
    result = _run(singles({"A": 100, "B": 0}, [("A", 0.0, 50, 1), ("B", 0.1, 100, 1)]))
    # A: 0-1.5 prefill; B: 1.5-2.5 prefill before A decodes; both decode to 3.5
    assert result.finish_s == {0: pytest.approx(3.5), 1: pytest.approx(3.5)}


def test_requests_of_one_agent_share_its_prefix() -> None:
    # 100 + 2 * 450 = 1000: an exact fit only if the prefix counts once
    result = _run(singles({"A": 100}, [("A", 0.0, 400, 50), ("A", 0.0, 400, 50)]))
    assert result.counters.peak_batch == 2
    assert result.peak_kv_tokens == 1000
    assert result.counters.hits == 1


def test_lru_eviction_and_recomputation() -> None:
    agents = {"A": 400, "B": 400, "C": 400}
    visits = [("A", 0.0, 10, 10), ("B", 100.0, 10, 10), ("C", 200.0, 10, 10), ("A", 300.0, 10, 10)]
    result = _run(singles(agents, visits))
    # C evicts A (least recent), A evicts B
    assert result.counters.cold_prefixes == 3
    assert result.counters.recomputed_prefixes == 1
    assert result.counters.recomputed_tokens == 400
    assert result.finish_s[3] == pytest.approx(300 + 4.1 + 10)
    # touched again, A stays and B goes
    visits = [("A", 0.0, 10, 10), ("B", 100.0, 10, 10), ("A", 150.0, 10, 10), ("C", 200.0, 10, 10)]
    again = _run(singles(agents, [*visits, ("A", 300.0, 10, 10), ("B", 400.0, 10, 10)]))
    assert again.finish_s[4] == pytest.approx(300 + 0.1 + 10)
    assert again.finish_s[5] == pytest.approx(400 + 4.1 + 10)


def test_a_prefix_in_use_is_not_evicted() -> None:
    result = _run(singles({"A": 600, "B": 600}, [("A", 0.0, 10, 10), ("B", 1.0, 10, 10)]))
    # B starts when A's request is done at 16.1
    assert result.finish_s[1] == pytest.approx(16.1 + 6.1 + 10)


def test_admission_stops_at_the_first_request_that_does_not_fit() -> None:
    # case 7: request 1 is too large for now, 2 would fit but is behind it, then beside it it does
    # not
    tasks = [("A", 0.0, 200, 20), ("A", 1.0, 800, 50), ("A", 2.0, 50, 50)]
    result = _run(singles({"A": 100}, tasks))
    first = 3.0 + 20
    assert result.finish_s[0] == pytest.approx(first)
    assert result.finish_s[1] == pytest.approx(first + 8.0 + 50)
    assert result.finish_s[2] == pytest.approx(first + 8.0 + 50 + 0.5 + 50)


def test_a_limit_on_running_requests() -> None:
    workload = singles({"A": 100}, [("A", 0.0, 0, 4)] * 3)
    engine = Engine(workload, Fcfs(), ROUND_COSTS, EngineOptions(max_running=2))
    assert list(engine.run().finish_s.values()) == [5.0, 5.0, 9.0]


def test_reservation_is_scaled_but_the_work_is_not() -> None:
    workload = singles({"A": 100}, [("A", 0.0, 300, 200)] * 2)
    exact = Engine(workload, Fcfs(), dataclasses.replace(ROUND_COSTS, kv_capacity=1100)).run()
    assert exact.counters.peak_batch == 2
    wide = EngineOptions(over_reserve=1.5)
    over = Engine(workload, Fcfs(), dataclasses.replace(ROUND_COSTS, kv_capacity=1100), wide).run()
    assert over.counters.peak_batch == 1
    assert over.finish_s[0] == pytest.approx(4.0 + 200)
    assert over.finish_s[1] == pytest.approx(4.0 + 200 + 3.0 + 200)


def test_rounds_and_tool_waits() -> None:
    shape = WorkflowShape("w", (StageShape("s", "A"), StageShape("t", "A", (0,))))
    rounds = ((Round(50, 4, 1.0), Round(70, 2, 10.0)), (Round(0, 1, 3.0),))
    result = _run(Workload("x", {"A": 100}, {"w": shape}, (Task("t", 5.0, "w", rounds),)))
    # ready 6; 1.5 + 4 = 11.5; ready 21.5; 0.7 + 2 = 24.2; ready 27.2; 1 = 28.2
    assert result.finish_s == {"t": pytest.approx(28.2)}
    assert result.counters.completed_requests == 3


def test_first_wait_may_run_from_an_earlier_predecessor() -> None:
    stages = (
        StageShape("main0", "M"),
        StageShape("sub", "S", (0,)),
        StageShape("main1", "M", (0, 1), wait_from=0),
    )
    shape = WorkflowShape("w", stages)
    for wait, end in ((2.0, 6.0 + 1.0), (20.0, 1.0 + 20.0 + 1.0)):
        rounds = ((Round(0, 1),), (Round(0, 5),), (Round(0, 1, wait),))
        workload = Workload("x", {"M": 0, "S": 0}, {"w": shape}, (Task(0, 0.0, "w", rounds),))
        assert _run(workload).finish_s[0] == pytest.approx(end)


def _gantt(policy: Policy) -> RunResult:
    # Figure 2 of the paper: one prefix fits at a time, a set-up takes 1 and a request 4 time units
    workload = chain({"A": 100, "B": 100, "C": 100}, [0.0, 3.0, 6.0], 0, 4)
    return _run(workload, policy, kv_capacity=150)


def test_gantt_of_locality_first() -> None:
    # A 0-1 set up, requests 1-5, 3-7, 6-10; B 10-15 and C 15-20 with all three together
    result = _gantt(Lpm())
    assert list(result.finish_s.values()) == [20.0, 20.0, 20.0]
    assert result.counters.recomputed_prefixes == 0


def test_gantt_of_progress_first() -> None:
    # B waits from 5 and goes first when A drains at 7: B 7-12, C 12-17; the third task: A 17-22,
    # B, C
    result = _gantt(Spf())
    assert list(result.finish_s.values()) == [17.0, 17.0, 32.0]
    assert result.counters.recomputed_prefixes == 3


@pytest.mark.parametrize("prefix", [1200, 200])
def test_a_request_that_can_never_fit_is_cancelled_by_name(prefix: int) -> None:
    # case 5: the prefix alone, or the reservation, is larger than the pool
    tasks = [("Z", 0.0, 800, 100), ("A", 1.0, 50, 50)]
    result = _run(singles({"Z": prefix, "A": 200}, tasks))
    total = prefix + 900
    assert result.cancelled == {
        0: f"request 0 of stage only can never fit: prefix {prefix} + reservation 900 = {total} "
        "tokens, capacity 1000"
    }
    assert result.finish_s == {1: pytest.approx(1.0 + 2.5 + 50)}


def test_cancelling_takes_running_siblings_along() -> None:
    stages = (StageShape("r", "A"), StageShape("long", "A"), StageShape("huge", "A", (0,)))
    shapes = {"w": WorkflowShape("w", stages), "v": WorkflowShape("v", (StageShape("s", "A"),))}
    bad = ((Round(0, 2),), (Round(0, 500),), (Round(2000, 1),))
    tasks = (Task("bad", 0.0, "w", bad), Task("ok", 1.0, "v", ((Round(500, 50),),)))
    result = _run(Workload("x", {"A": 100}, shapes, tasks))
    assert list(result.cancelled) == ["bad"]
    # both of bad's requests decode 1-3; ok (does not fit before) is prefilled 3-8
    assert result.finish_s == {"ok": pytest.approx(8.0 + 50)}


def test_a_request_that_completes_as_its_task_is_cancelled() -> None:
    stages = (StageShape("r", "A"), StageShape("huge", "A"))
    bad = ((Round(0, 2),), (Round(2000, 1, 3.0),))
    shapes = {"w": WorkflowShape("w", stages)}
    result = _run(Workload("x", {"A": 100}, shapes, (Task("bad", 0.0, "w", bad),)))
    assert list(result.cancelled) == ["bad"]
    assert result.finish_s == {}


def test_time_limit_lists_what_is_open() -> None:
    workload = singles({"A": 100}, [("A", 0.0, 0, 4), ("A", 3.0, 0, 400), ("A", 90.0, 0, 1)])
    result = Engine(workload, Fcfs(), ROUND_COSTS, EngineOptions(max_time_s=50.0)).run()
    assert result.finish_s == {0: 5.0}
    assert result.unfinished == [1]
    assert set(result.arrival_s) == {0, 1}
    assert "time limit" in result.stopped
    assert result.end_s == 50.0


class _Idle(Policy):
    name = "idle"

    def plan(self, now: float, view: QueueView) -> Plan:
        return Plan([])


def test_a_policy_that_admits_nothing_is_an_error_that_names_the_request() -> None:
    with pytest.raises(StateError, match=r"'idle' leaves request 1 \(task 0.*for ever"):
        _run(singles({"A": 100}, [("A", 0.0, 50, 4)]), _Idle())


class _Wrong(Policy):
    name = "wrong"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(self, now: float, view: QueueView) -> Plan:
        return self._plan


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan([1, 1]), "admits a request twice"),
        (Plan([7]), "admits request 7"),
        (Plan([1], [1]), "preempts request 1"),
        (Plan([1], resident=frozenset("A")), "cache decides"),
    ],
)
def test_illegal_plans_are_refused(plan: Plan, message: str) -> None:
    with pytest.raises(StateError, match=message):
        _run(singles({"A": 100}, [("A", 0.0, 50, 4)]), _Wrong(plan))


class _Recorder(Fcfs):
    def __init__(self) -> None:
        self.log: list[tuple[float, str]] = []

    def task_arrived(self, now: float, task: object, workflow: str) -> None:
        self.log.append((now, f"arrived {task}"))

    def request_ready(self, now: float, request: RequestView) -> None:
        self.log.append((now, f"ready {request.stage}"))

    def request_completed(self, now: float, request: RequestView, service_s: float) -> None:
        self.log.append((now, f"completed {request.stage} {service_s:g}"))

    def stage_completed(self, now: float, task: object, stage: str) -> None:
        self.log.append((now, f"stage {stage}"))

    def task_finished(self, now: float, task: object) -> None:
        self.log.append((now, f"finished {task}"))

    def plan(self, now: float, view: QueueView) -> Plan:
        self.log.append((now, "plan"))
        return super().plan(now, view)


def test_events_come_in_order_and_the_policy_is_asked_once_an_instant() -> None:
    recorder = _Recorder()
    _run(chain({"A": 100, "B": 100}, [0.0, 0.0], 0, 4), recorder)
    times = [time for time, _ in recorder.log]
    assert times == sorted(times)
    assert recorder.log == [
        (0.0, "arrived 0"),
        (0.0, "ready A"),
        (0.0, "arrived 1"),
        (0.0, "ready A"),
        (0.0, "plan"),
        (5.0, "completed A 5"),
        (5.0, "stage A"),
        (5.0, "ready B"),
        (5.0, "completed A 4"),
        (5.0, "stage A"),
        (5.0, "ready B"),
        (5.0, "plan"),
        (10.0, "completed B 5"),
        (10.0, "stage B"),
        (10.0, "finished 0"),
        (10.0, "completed B 4"),
        (10.0, "stage B"),
        (10.0, "finished 1"),
    ]


def test_the_pool_refuses_what_does_not_add_up() -> None:
    pool = KvPool(100)
    pool.charge("a", 60)
    with pytest.raises(CapacityError, match="'b' needs 41 tokens, 60 of 100 are in use"):
        pool.charge("b", 41)
    with pytest.raises(StateError, match="charged twice"):
        pool.charge("a", 1)
    with pytest.raises(StateError, match="holds nothing"):
        pool.release("b")
    pool.charge("b", 40)
    pool.release("a")
    assert (pool.used, pool.free, pool.peak) == (40, 60, 100)


def test_zero_cost_decoding_does_not_hang() -> None:
    costs = EngineCosts(
        kv_capacity=1000,
        decode_fixed_s=0.0,
        decode_s_per_context_token=0.0,
        prefill_s_per_token=0.0,
    )
    result = Engine(singles({"A": 10}, [("A", 1.0, 5, 5)]), Fcfs(), costs).run()
    assert result.finish_s == {0: 1.0}
