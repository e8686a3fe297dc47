"""The timeline: who was in the engine, from when to when."""

from __future__ import annotations

import pytest
from sim_scenarios import ROUND_COSTS, Scripted, keep, random_workload, singles
from topas.policies import POLICY_NAMES, Plan, Policy, QueueView, make_policy
from topas.sim import Engine, EngineOptions, RunResult, Workload
from topas.sim.profiles import config_fields

TWO = singles({"A": 100}, [("A", 0.0, 50, 10), ("A", 2.0, 50, 4)])


def _run(workload: Workload, policy: Policy, **options: object) -> RunResult:
    chosen = EngineOptions(**options)  # type: ignore[arg-type]
    return Engine(workload, policy, ROUND_COSTS, chosen, timeline=True).run()


def test_off_by_default() -> None:
    assert Engine(TWO, make_policy("fcfs", {}), ROUND_COSTS).run().timeline == []


def test_times_of_two_requests() -> None:
    second, first = _run(TWO, make_policy("fcfs", {})).timeline
    assert (first.request, first.task, first.stage, first.agent, first.round) == (
        *(1, 0, "only", "A", 0),
    )
    # 1.5 s of prefill with the prefix; a step to 2.5 s, when the second one comes in.
    assert (first.ready_s, first.admitted_s, first.started_s) == (0.0, 0.0, 0.0)
    assert (second.ready_s, second.admitted_s, second.started_s) == (2.0, 2.5, 2.5)
    assert (second.ended_s, first.ended_s) == pytest.approx((7.0, 12.0))
    assert (first.computed_prefix, second.computed_prefix) == (True, False)
    assert first.finished
    assert second.finished


def test_a_preempted_request_has_two_stays() -> None:
    def answer(now: float, view: QueueView) -> Plan:
        if now == 0.0:
            return keep(view, admit=[1])
        if any(r.id == 2 for r in view.waiting):
            return keep(view, admit=[2], preempt=[1])
        return keep(view, admit=[r.id for r in view.waiting] if not view.running else [])

    spans = _run(TWO, Scripted(answer)).timeline
    assert [(span.request, span.finished) for span in spans] == [(1, False), (2, True), (1, True)]
    assert spans[0].ended_s == spans[1].admitted_s == 2.5
    assert spans[2].admitted_s == spans[1].ended_s
    assert [span.computed_prefix for span in spans] == [True, False, False]


def test_one_that_leaves_before_its_turn_was_never_started() -> None:
    workload = singles({"A": 100}, [("A", 0.0, 50, 4), ("A", 0.0, 50, 4), ("A", 0.5, 50, 4)])

    def answer(now: float, view: QueueView) -> Plan:
        waiting = {r.id for r in view.waiting}
        if waiting == {1, 2}:
            return keep(view, admit=[1, 2])
        if waiting == {3}:
            return keep(view, admit=[3], preempt=[2])
        return keep(view, admit=sorted(waiting) if not view.running else [])

    spans = _run(workload, Scripted(answer)).timeline
    assert [(span.request, span.started_s, span.finished) for span in spans][:1] == [
        (2, None, False)
    ]
    assert sum(span.finished for span in spans) == 3


@pytest.mark.parametrize("name", POLICY_NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_stays_agree_with_the_counters(name: str, seed: int) -> None:
    workload = random_workload(seed, huge=seed == 0)
    fields = config_fields(workload, ROUND_COSTS, EngineOptions())
    plain = Engine(workload, make_policy(name, fields), ROUND_COSTS).run()
    result = _run(workload, make_policy(name, fields))
    counters, spans = result.counters, result.timeline
    assert (result.finish_s, counters) == (plain.finish_s, plain.counters)  # only watched
    assert len(spans) == counters.admissions
    assert sum(span.finished for span in spans) == counters.completed_requests
    computed = counters.cold_prefixes + counters.recomputed_prefixes
    assert sum(span.computed_prefix for span in spans) == computed
    for span in spans:
        assert span.ready_s <= span.admitted_s <= span.ended_s
        assert span.started_s is None or span.admitted_s <= span.started_s <= span.ended_s
