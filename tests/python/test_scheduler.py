"""What each event does to the state that decisions are taken in (SPEC sections 2 and 7)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from statistics import fmean

import pytest
from busy import NOW, busy_config, busy_scheduler, commit_now, fingerprint, fork_and_join
from random_world import EVENT_WEIGHTS, World, random_events, random_workflow, world_config
from topas import Scheduler, Stage, StateError, UnknownId, Workflow

EMPTY = {"tasks": 0, "waiting": 0, "running": 0, "resident": 0, "kv_tokens": 0, "credits": 0}


def gauges(scheduler: Scheduler) -> dict[str, int]:
    return {name: getattr(scheduler.usage(), name) for name in EMPTY}


def rows(scheduler: Scheduler, table: str, now: float = NOW) -> dict[int | str, dict]:
    return {row["id"]: row for row in scheduler.snapshot(now).to_dict()[table]}


def stages_of(scheduler: Scheduler, task: int | str, now: float = NOW) -> list[dict]:
    return rows(scheduler, "tasks", now)[task]["stages"]


# -------------------------------------------------------------- registration


def test_a_fresh_scheduler_is_empty() -> None:
    scheduler = Scheduler(busy_config())
    usage = scheduler.usage()
    assert (usage.agents, usage.workflows, usage.samples) == (0, 0, 0)
    assert gauges(scheduler) == EMPTY
    decision = scheduler.decide(0.0)
    assert decision.to_dict() == {
        "resident": [],
        "admit": [],
        "preempt": [],
        "score": 0.0,
        "terms": {"admit": 0.0, "reuse": 0.0, "move": 0.0, "redo": 0.0, "revoke": 0.0},
        "credits": {},
        "unschedulable": [],
    }
    scheduler.commit(decision)
    assert gauges(scheduler) == EMPTY


def test_agent_may_be_registered_again() -> None:
    scheduler = busy_scheduler()
    scheduler.register_agent("B", 300)  # the same, although it is in use
    scheduler.register_agent("U", 6)  # another length, as it is not
    assert rows(scheduler, "agents")["U"]["prefix_tokens"] == 6
    assert scheduler.usage().agents == 4


def test_tables_can_be_emptied_again() -> None:
    scheduler = busy_scheduler()
    for task in ("t", "s"):
        scheduler.task_cancelled(NOW, task)
    assert gauges(scheduler)["resident"] == 2
    for name in ("fork", "chain"):
        scheduler.unregister_workflow(name)
    for agent in ("A", "B", "I", "U"):
        scheduler.unregister_agent(agent)
    usage = scheduler.usage()
    assert (usage.agents, usage.workflows, usage.samples) == (0, 0, 0)
    assert gauges(scheduler) == EMPTY
    scheduler.register_agent("A", 1)
    scheduler.register_agent("B", 2)
    scheduler.register_workflow(fork_and_join())
    scheduler.task_arrived(NOW, "t", "fork")
    profiles = rows(scheduler, "profiles")
    assert profiles[0] == {"id": 0, "totals_s": [2.0], "request_s": 2.0}, "the old one is forgotten"


def test_bad_workflow_leaves_no_trace() -> None:
    scheduler = busy_scheduler()
    before = fingerprint(scheduler)
    with pytest.raises(UnknownId, match="agent 'missing'"):
        scheduler.register_workflow(Workflow("w", [Stage(0, "U"), Stage(1, "missing")]))
    assert fingerprint(scheduler) == before
    scheduler.unregister_agent("U")  # not counted as in use


# -------------------------------------------------------------- life of a task


def test_requests_go_from_waiting_to_running_to_nothing() -> None:
    scheduler = Scheduler(busy_config())
    scheduler.register_agent("A", 200)
    scheduler.register_workflow(Workflow("w", [Stage("s", "A", service_s=3.0)]))
    seen = [gauges(scheduler)]
    scheduler.task_arrived(0.0, "t", "w")
    seen.append(gauges(scheduler))
    scheduler.request_ready(0.0, "r", "t", "s", 60, 40)
    seen.append(gauges(scheduler))
    decision = commit_now(scheduler, 1.0)
    assert (decision.admit, decision.resident, decision.load) == (["r"], ["A"], ["A"])
    seen.append(gauges(scheduler))
    scheduler.request_completed(4.0, "r", 3.0)
    seen.append(gauges(scheduler))
    scheduler.stage_completed(4.0, "t", "s")
    seen.append(gauges(scheduler))
    assert commit_now(scheduler, 4.0).drop == ["A"]
    seen.append(gauges(scheduler))
    assert seen == [
        EMPTY,
        {**EMPTY, "tasks": 1},
        {**EMPTY, "tasks": 1, "waiting": 1},
        {**EMPTY, "tasks": 1, "running": 1, "resident": 1, "kv_tokens": 300, "credits": 1},
        {**EMPTY, "tasks": 1, "resident": 1, "kv_tokens": 200},
        {**EMPTY, "resident": 1, "kv_tokens": 200},
        EMPTY,
    ]


def test_stage_completed_makes_the_next_ones_ready() -> None:
    scheduler = busy_scheduler()
    with pytest.raises(StateError, match="not ready"):
        scheduler.request_ready(NOW, "rj", "t", "J", 1, 1)
    scheduler.request_completed(NOW, "rx", 5.0)
    scheduler.stage_completed(NOW, "t", "X")
    with pytest.raises(StateError, match="'Y'"):
        scheduler.request_ready(NOW, "rj", "t", "J", 1, 1)
    scheduler.request_aborted(NOW, "ry")
    scheduler.stage_completed(NOW, "t", "Y")
    scheduler.request_ready(NOW, "rj", "t", "J", 1, 1)
    assert [stage["completed"] for stage in stages_of(scheduler, "t")] == [True, True, True, False]


def test_task_ends_with_its_last_stage() -> None:
    scheduler = busy_scheduler()
    scheduler.request_completed(NOW, "rx", 5.0)
    scheduler.request_aborted(NOW, "ry")
    for stage in ("X", "Y", "J"):
        assert "t" in rows(scheduler, "tasks")
        scheduler.stage_completed(NOW, "t", stage)
    assert "t" not in rows(scheduler, "tasks")
    scheduler.task_arrived(NOW, "t", "chain")  # its id is free again
    assert len(stages_of(scheduler, "t")) == 2


@pytest.mark.parametrize("event", ["task_cancelled", "task_finished"])
def test_task_ends_on_request_and_takes_its_requests_along(event: str) -> None:
    scheduler = busy_scheduler()
    getattr(scheduler, event)(NOW, "t")
    assert set(rows(scheduler, "requests")) == {"rs"}
    assert gauges(scheduler) == {
        **EMPTY,
        "tasks": 1,
        "waiting": 1,
        "resident": 2,
        "kv_tokens": 310,
    }
    scheduler.request_ready(NOW, "rx", "s", "S", 1, 1)  # its id is free again


def test_h_age_counts_finished_tasks_only() -> None:
    scheduler = busy_scheduler()
    critical_paths = [7.0, 1.0]  # of the workflows "fork" and "chain"
    assert scheduler.age_scale_s == fmean(critical_paths)
    scheduler.task_finished(NOW, "s")
    assert scheduler.age_scale_s == fmean(critical_paths), "it had no service"
    scheduler.task_finished(NOW, "t")
    assert scheduler.age_scale_s == 2.0, "the service of its only finished request"
    for task, services in (("u", [7.0, 5.0]), ("cancelled", [90.0]), ("v", [2.0])):
        scheduler.task_arrived(NOW, task, "chain")
        for service in services:
            scheduler.request_ready(NOW, task, task, 0, 1, 1)
            commit_now(scheduler, NOW)
            scheduler.request_completed(NOW, task, service)
        if task == "cancelled":
            scheduler.task_cancelled(NOW, task)
        else:
            scheduler.task_finished(NOW, task)
    assert scheduler.age_scale_s == pytest.approx(0.9 * (0.9 * 2.0 + 0.1 * 12.0) + 0.1 * 2.0)
    assert scheduler.snapshot(NOW).age_scale_s == scheduler.age_scale_s
    scheduler.reconfigure(busy_config(age_scale_s=99.0))
    assert scheduler.age_scale_s == 99.0


# -------------------------------------------------------------- what is learnt of stages


def serve(scheduler: Scheduler, task: str, services: list[float], stage: str = "S") -> None:
    """Let a task of "fork" run one stage in rounds, and end."""
    scheduler.task_arrived(NOW, task, "fork")
    for service in services:
        scheduler.request_ready(NOW, task, task, stage, 1, 1)
        assert task in commit_now(scheduler, NOW).admit
        scheduler.request_completed(NOW, task, service)
    scheduler.stage_completed(NOW, task, stage)
    scheduler.task_cancelled(NOW, task)


def test_profile_holds_totals_of_executions_and_the_mean_of_requests() -> None:
    scheduler = busy_scheduler()
    assert rows(scheduler, "profiles")[2] == {"id": 2, "totals_s": [2.0], "request_s": 2.0}
    serve(scheduler, "u", [1.0, 2.0, 6.0])
    serve(scheduler, "v", [1.0])
    assert rows(scheduler, "profiles")[2] == {
        "id": 2,
        "totals_s": [1.0, 2.0, 9.0],
        "request_s": fmean([2.0, 1.0, 2.0, 6.0, 1.0]),
    }
    assert rows(scheduler, "profiles")[3]["totals_s"] == [4.0], "X has the profiled total yet"
    assert scheduler.usage().samples == 3


def test_only_the_latest_256_totals_are_kept() -> None:
    scheduler = busy_scheduler()
    for number in range(300):
        serve(scheduler, f"task {number}", [float(number)])
    totals = rows(scheduler, "profiles")[2]["totals_s"]
    assert totals == [float(number) for number in range(44, 300)]
    assert scheduler.usage().samples == 256


def test_stage_without_a_finished_request_teaches_nothing() -> None:
    scheduler = busy_scheduler()
    scheduler.request_aborted(NOW, "rs")
    scheduler.stage_completed(NOW, "s", "S")
    assert scheduler.usage().samples == 1


def test_service_of_a_stage_is_the_sum_of_its_rounds() -> None:
    scheduler = busy_scheduler()
    scheduler.request_completed(NOW, "rx", 3.0)
    assert stages_of(scheduler, "t")[1]["service_s"] == 3.0
    scheduler.request_ready(NOW + 50.0, "rx", "t", "X", 10, 10)  # after a tool wait
    commit_now(scheduler, NOW + 50.0)
    scheduler.request_completed(NOW + 52.0, "rx", 2.0)
    stage = stages_of(scheduler, "t", NOW + 52.0)[1]
    assert (stage["service_s"], stage["completed"]) == (5.0, False)


def test_expected_service_is_estimated_until_it_is_observed() -> None:
    config = busy_config(prefill_fixed_s=0.5, prefill_s_per_token=0.01)
    scheduler = busy_scheduler(config)
    requests = rows(scheduler, "requests")
    assert requests["ry"]["expected_service_s"] == 0.5 + 0.01 * 700 + 0.02 * 90
    assert requests["rs"]["expected_service_s"] == 2.0, "observed in stage S of task t"
    scheduler.reconfigure(busy_config(prefill_fixed_s=1.5))
    assert rows(scheduler, "requests")["ry"]["expected_service_s"] == 1.5 + 0.02 * 90


# -------------------------------------------------------------- life of a request


def test_request_row_holds_what_the_events_said() -> None:
    scheduler = busy_scheduler()
    decision = scheduler.decide(NOW)
    assert decision.admit == ["rs"]
    requests = rows(scheduler, "requests")
    assert requests["rx"] == {
        "id": "rx",
        "task": "t",
        "stage": 1,
        "agent": "B",
        "kv_tokens": 100,
        "input_tokens": 60,
        "expected_service_s": 0.02 * 40,
        "running": True,
        "generated_tokens": 20,
        "credit": requests["rx"]["credit"],
        "age_factor_at_admission": 1.0 + 3.0 / 4.0,
    }
    assert requests["rx"]["credit"] == pytest.approx(1.75 * 0.02 * 40)
    waiting = ("running", "generated_tokens", "credit", "age_factor_at_admission")
    assert [requests["ry"][name] for name in waiting] == [False, 0, 0.0, None]


def test_credit_is_what_the_admission_was_worth() -> None:
    scheduler = busy_scheduler()
    decision = commit_now(scheduler, NOW)
    assert set(decision.credits) == {"rs"}
    assert decision.credits["rs"] > 0.0
    assert rows(scheduler, "requests")["rs"]["credit"] == decision.credits["rs"]
    assert gauges(scheduler)["credits"] == 2
    scheduler.request_completed(NOW, "rs", 1.0)
    assert gauges(scheduler)["credits"] == 1


def test_failed_start_waits_again_without_credit() -> None:
    scheduler = busy_scheduler()
    before = scheduler.snapshot(NOW)
    commit_now(scheduler, NOW)
    scheduler.request_start_failed(NOW, "rs")
    row = rows(scheduler, "requests")["rs"]
    assert (row["running"], row["credit"], row["age_factor_at_admission"]) == (False, 0.0, None)
    assert rows(scheduler, "requests") == {r["id"]: r for r in before.to_dict()["requests"]}
    assert scheduler.decide(NOW).admit == ["rs"], "it can be admitted again"


def test_request_that_the_engine_starts_runs_without_credit() -> None:
    scheduler = busy_scheduler()
    assert "A" not in scheduler.snapshot(NOW).to_dict()["resident"]
    scheduler.request_started(NOW, "rs")
    row = rows(scheduler, "requests")["rs"]
    assert (row["running"], row["credit"], row["age_factor_at_admission"]) == (True, 0.0, 1.0)
    assert "A" in scheduler.snapshot(NOW).to_dict()["resident"]


def test_prefix_that_the_engine_holds_is_not_charged() -> None:
    scheduler = busy_scheduler()
    assert "A" in scheduler.decide(NOW).load
    scheduler.prefix_loaded(NOW, "A")
    decision = scheduler.decide(NOW)
    assert "A" in decision.resident
    assert "A" not in decision.load


@pytest.mark.parametrize("request_id", ["rx", "ry"])
def test_aborted_request_is_gone_and_its_id_free(request_id: str) -> None:
    scheduler = busy_scheduler()
    scheduler.request_aborted(NOW, request_id)
    assert request_id not in rows(scheduler, "requests")
    scheduler.request_ready(NOW, request_id, "t", "Y", 1, 1)
    assert rows(scheduler, "requests")[request_id]["agent"] == "A"


def test_preempted_request_waits_again_at_once() -> None:
    """A long-running task of another agent takes the place of a fresh one that is old enough."""
    scheduler = Scheduler(busy_config(age_scale_s=1.0, kv_capacity_tokens=500))
    for agent in ("A", "B"):
        scheduler.register_agent(agent, 300)
        scheduler.register_workflow(Workflow(agent, [Stage("s", agent, service_s=50.0)]))
    scheduler.task_arrived(0.0, "old", "B")
    scheduler.task_arrived(100.0, "new", "A")
    scheduler.request_ready(100.0, "new", "new", "s", 50, 50)
    assert commit_now(scheduler, 100.0).admit == ["new"]
    scheduler.request_ready(100.0, "old", "old", "s", 50, 50)
    decision = commit_now(scheduler, 100.0)
    assert (decision.preempt, decision.admit) == (["new"], ["old"])
    assert (decision.load, decision.drop, decision.resident) == (["B"], ["A"], ["B"])
    row = rows(scheduler, "requests", 100.0)["new"]
    assert (row["running"], row["credit"]) == (False, 0.0)
    assert gauges(scheduler)["credits"] == 1
    with pytest.raises(StateError, match="waiting"):
        scheduler.request_completed(101.0, "new", 1.0)


# -------------------------------------------------------------- branches and no-ops


def test_skipped_stage_takes_along_what_only_it_leads_to() -> None:
    scheduler = busy_scheduler()
    scheduler.register_workflow(
        Workflow(
            "tree",
            [
                Stage("root", "U"),
                Stage("left", "U", after=("root",)),
                Stage("leaf", "U", after=("left",)),
                Stage("right", "U", after=("root",)),
                Stage("join", "U", after=("leaf", "right")),
            ],
        )
    )
    scheduler.task_arrived(NOW, "x", "tree")
    scheduler.stage_skipped(NOW, "x", "left")
    done = [stage["completed"] for stage in stages_of(scheduler, "x")]
    assert done == [False, True, True, False, False]
    scheduler.stage_completed(NOW, "x", "root")
    scheduler.stage_completed(NOW, "x", "right")
    scheduler.request_ready(NOW, "rj", "x", "join", 1, 1)


def test_skipping_the_root_ends_the_task() -> None:
    scheduler = busy_scheduler()
    scheduler.request_aborted(NOW, "rs")
    scheduler.stage_skipped(NOW, "s", "S")
    assert "s" not in rows(scheduler, "tasks")


def test_skipping_twice_is_a_no_op() -> None:
    scheduler = busy_scheduler()
    before = fingerprint(scheduler)
    scheduler.stage_skipped(NOW, "s", "X")
    assert fingerprint(scheduler) == before


def test_evicted_prefix_is_loaded_again() -> None:
    scheduler = busy_scheduler()
    scheduler.request_aborted(NOW, "rx")
    scheduler.request_ready(NOW, "rx", "t", "X", 60, 40)
    assert "B" not in scheduler.decide(NOW).load
    scheduler.prefix_evicted(NOW, "B")
    decision = scheduler.decide(NOW)
    assert "B" in decision.load
    assert decision.terms.move > 0.0


def test_prefix_whose_request_was_aborted_leaves_and_is_charged_anew() -> None:
    """Case 15: idle prefixes are infeasible."""
    scheduler = busy_scheduler()
    for request in ("rx", "ry", "rs"):
        scheduler.request_aborted(NOW, request)
    assert commit_now(scheduler, NOW).drop == ["B", "I"]
    scheduler.request_ready(NOW, "rx", "t", "X", 60, 40)
    decision = scheduler.decide(NOW)
    assert decision.load == ["B"]
    assert decision.terms.move == pytest.approx(300 / 1e5)


@pytest.mark.parametrize("tokens", [0, 170, 200, 230])
def test_prefix_that_changes_takes_from_or_gives_to_its_requests(tokens: int) -> None:
    scheduler = busy_scheduler()
    commit_now(scheduler, NOW)
    before = rows(scheduler, "requests")
    scheduler.prefix_changed(NOW, "A", tokens)
    assert rows(scheduler, "agents")["A"]["prefix_tokens"] == tokens
    after = rows(scheduler, "requests")
    for name, given in (("rs", 200 - tokens), ("ry", 200 - tokens), ("rx", 0)):
        assert after[name]["kv_tokens"] == before[name]["kv_tokens"] + given
        assert after[name]["input_tokens"] == before[name]["input_tokens"] + given
        assert after[name]["running"] == before[name]["running"]
    assert gauges(scheduler)["kv_tokens"] == 300 + 100 + 200 + 60, "the same in all"


def test_age_may_count_from_before_the_arrival() -> None:
    scheduler = busy_scheduler()
    scheduler.task_arrived(NOW, "new", "fork", since=4.0)
    assert rows(scheduler, "tasks")["new"]["arrival"] == 4.0
    scheduler.task_arrived(NOW, "newer", "fork", since=None)
    assert rows(scheduler, "tasks")["newer"]["arrival"] == NOW


def test_simultaneous_events_are_legal() -> None:
    scheduler = busy_scheduler()
    for _ in range(3):
        scheduler.request_progress(NOW, "rx", 25)
    assert scheduler.decide(NOW).now == NOW


def test_decide_does_not_move_the_clock_but_commit_does() -> None:
    scheduler = busy_scheduler()
    scheduler.decide(NOW + 100.0)
    scheduler.request_progress(NOW + 1.0, "rx", 25)
    commit_now(scheduler, NOW + 5.0)
    with pytest.raises(StateError, match="clock went back"):
        scheduler.request_progress(NOW + 4.0, "rx", 26)


def test_settings_can_change_while_things_run() -> None:
    scheduler = busy_scheduler()
    assert scheduler.decide(NOW).admit == ["rs"]
    scheduler.reconfigure(busy_config(max_running_requests=1))
    assert scheduler.decide(NOW).admit == []
    scheduler.reconfigure(busy_config())
    assert scheduler.decide(NOW).admit == ["rs"]


def test_capacity_below_what_runs_admits_nothing_and_lets_things_end() -> None:
    """One preemption would not be enough, and more are not allowed: nothing is feasible."""
    scheduler = busy_scheduler(busy_config(action_cap=1))
    commit_now(scheduler, NOW)
    scheduler.reconfigure(busy_config(action_cap=1, kv_capacity_tokens=250))
    decision = commit_now(scheduler, NOW)
    assert (decision.admit, decision.preempt, decision.load) == ([], [], [])
    assert decision.unschedulable == ["ry"]
    for request in ("rx", "rs"):
        scheduler.request_completed(NOW, request, 1.0)
    assert commit_now(scheduler, NOW).resident == []


# -------------------------------------------------------------- threads


def run_threads(*works: Callable[[], None]) -> None:
    """Run works at once, for a bounded time; pass on what one of them raises."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # handed to the caller
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60.0)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    if failures:
        raise failures[0]


def test_threads_may_decide_while_events_come_in() -> None:
    rng = Random(9)
    agents: list[int | str] = list(range(10))
    workflows = [random_workflow(rng, name, agents) for name in range(4)]
    config = world_config(rng, 2500, enumerate_max_agents=0)
    world = World(config, dict.fromkeys(agents, 150), workflows, 30)
    twin = World(config, dict.fromkeys(agents, 150), workflows, 30)
    over = threading.Event()
    asked: list[int] = []

    def feed() -> None:
        events = random_events(Random(1), EVENT_WEIGHTS)
        for _ in range(3000):
            next(events)(world)
        over.set()

    def ask() -> None:
        count = 0
        while not over.is_set() or count == 0:
            decision = world.scheduler.decide(1e9)
            assert not set(decision.admit) & set(decision.preempt)
            snapshot = world.scheduler.snapshot(1e9).to_dict()
            live = {task["id"] for task in snapshot["tasks"]}
            assert {request["task"] for request in snapshot["requests"]} <= live
            assert world.scheduler.usage().tasks >= 0
            count += 1
        asked.append(count)

    run_threads(feed, ask, ask, ask)
    assert len(asked) == 3
    events = random_events(Random(1), EVENT_WEIGHTS)
    for _ in range(3000):
        next(events)(twin)
    assert world.scheduler.snapshot(world.now) == twin.scheduler.snapshot(twin.now)
    assert world.scheduler.decide(world.now) == twin.scheduler.decide(twin.now)
