"""Rollouts: the decision whose continuation is simulated best (SPEC section 8)."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import differences
from handmade import Json, request, running, snapshot, stage
from strategies import random_snapshot
from topas import Config, ConfigError, Scheduler, Snapshot, Stage, Workflow, decide, reference
from topas.sim import make_workload
from topas.sim.runner import run_policy


def decided(fields: Json, **changes: Any) -> Json:
    """Give the core's decision, once the reference has agreed."""
    given = {**fields["config"], "gain_model": "service", "rollout_scenarios": 4, **changes}
    fields = {**fields, "config": given}
    got = decide(Snapshot.from_dict(fields), Config.from_dict(given)).to_dict()
    assert differences(got, reference.decide(fields)) == []
    return got


def whole(*totals: float, agent: str = "a") -> Json:
    """Make a stage of one request."""
    return stage(agent, totals=totals, request_s=max(totals))


def short_and_long() -> Json:
    """Give one slot's room, a long task that came first and a short one: both of agent a."""
    tasks = {0: [whole(90.0)], 1: [whole(5.0)]}
    requests = [request(0, 0, 0, 90.0), request(1, 1, 0, 5.0)]
    return snapshot(tasks, requests, kv_capacity_tokens=200, admit_order="arrival")


def test_the_short_task_goes_first_where_that_ends_tasks_sooner() -> None:
    """5 + 95 s instead of 90 + 95 s."""
    assert decided(short_and_long(), rollout_scenarios=0)["admit"] == [0]
    got = decided(short_and_long())
    assert (got["admit"], got["resident"], got["credits"]) == ([1], ["a"], {1: 5.0})
    assert got["terms"]["admit"] == 5.0


def test_what_runs_may_drain() -> None:
    """a is nearly done, and b's two requests need its room: they wait for it, nothing of a comes.

    a's waiting task is long. With it b begins after 51 s, without it after 1 s.
    """
    tasks = {
        0: [whole(10.0)],
        1: [whole(5.0, agent="b")],
        2: [whole(5.0, agent="b")],
        3: [whole(50.0)],
    }
    requests = [running(0, 0, 0, generated_tokens=90), request(1, 1, 0, 5.0)]
    requests += [request(2, 2, 0, 5.0), request(3, 3, 0, 50.0)]
    arrivals = {task: float(task) for task in tasks}
    fields = snapshot(
        tasks, requests, ["a"], arrivals=arrivals, now=9.0, kv_capacity_tokens=300, redo_weight=9.0
    )
    assert decided(fields, rollout_scenarios=0)["admit"] == [3]
    got = decided(fields)
    assert (got["admit"], got["preempt"], got["resident"]) == ([], [], ["a"])


def uncertain() -> Json:
    """Give the state above with a first task that takes 1 s or 90 s, and a second of 10 s."""
    tasks = {0: [whole(1.0, 90.0)], 1: [whole(10.0)]}
    requests = [request(0, 0, 0), request(1, 1, 0)]
    return snapshot(tasks, requests, kv_capacity_tokens=200, admit_order="arrival")


def test_a_difference_must_stand_out_of_what_the_scenarios_differ_by() -> None:
    assert decided(uncertain(), rollout_margin=0.0)["admit"] == [1]
    assert decided(uncertain(), rollout_margin=1.0)["admit"] == [1]
    assert decided(uncertain(), rollout_margin=5.0)["admit"] == [0]


def test_the_power_weighs_what_is_old() -> None:
    """Task 0 is 200 s old: to let it wait for 5 s costs more than task 1's 30 s, squared."""
    tasks = {0: [whole(30.0)], 1: [whole(20.0)]}
    requests = [request(0, 0, 0, 30.0), request(1, 1, 0, 20.0)]
    fields = snapshot(
        tasks,
        requests,
        arrivals={0: 0.0, 1: 200.0},
        now=200.0,
        kv_capacity_tokens=200,
        admit_order="arrival",
    )
    assert decided(fields)["admit"] == [1]
    assert decided(fields, rollout_power=2.0)["admit"] == [0]


def test_the_steps_are_a_limit_that_is_never_passed() -> None:
    """Two candidates, three base policies and two requests: 12 steps a scenario, the first half."""
    assert decided(short_and_long(), rollout_steps=23)["admit"] == [0]
    assert decided(short_and_long(), rollout_steps=24)["admit"] == [1]


def test_scenarios_that_are_not_affordable_do_not_count() -> None:
    """By the first two of 8, the first task may seem long for certain."""
    assert decided(uncertain(), rollout_scenarios=8, rollout_margin=5.0)["admit"] == [0]
    changes = {"rollout_scenarios": 8, "rollout_margin": 5.0, "rollout_steps": 24}
    found = {decided(uncertain(), **changes, seed=seed)["admit"][0] for seed in range(20)}
    assert found == {0, 1}


def test_nothing_overtakes_what_is_overdue() -> None:
    """The first task's age is above the limit: what the short one would save is not asked for."""
    fields = short_and_long()
    fields |= {"now": 30.0}
    got = decided(fields, age_scale_s=10.0, overtake_limit=2.0)
    assert got["admit"] == [0]
    assert decided(fields, age_scale_s=20.0, overtake_limit=2.0)["admit"] == [1]


def test_rollouts_need_gains_by_service() -> None:
    with pytest.raises(ConfigError, match=r"rollout_scenarios: needs gain_model 'service', got 4"):
        Config.from_dict(short_and_long()["config"] | {"rollout_scenarios": 4})


@pytest.mark.parametrize("part", range(4))
def test_core_rolls_out_like_the_reference(part: int) -> None:
    compared = changed = 0
    for seed in range(6_000_000 + part, 6_000_320 + part, 4):
        fields = random_snapshot(seed)
        if len({r["agent"] for r in fields["requests"]}) > 4 or len(fields["requests"]) > 14:
            continue  # the reference takes long
        changes = {
            "gain_model": "service",
            "rollout_scenarios": (1, 3, 8)[seed % 3],
            "rollout_steps": (0, 100, 600)[seed // 2 % 3],
            "reserve_limit": 0.0,
            "rollout_power": (1.0, 1.5, 2.0)[seed // 3 % 3],
            "rollout_margin": (0.0, 1.0)[seed // 9 % 2],
        }
        fields = {**fields, "config": {**fields["config"], **changes}}
        config = Config.from_dict(fields["config"])
        got = decide(Snapshot.from_dict(fields), config)
        assert differences(got.to_dict(), reference.decide(fields)) == [], f"seed {seed}"
        base = decide(Snapshot.from_dict(fields), config.replace(rollout_scenarios=0))
        changed += (got.admit, got.preempt) != (base.admit, base.preempt)
        compared += 1
    assert compared > 15
    assert changed > 1


def test_both_doors_agree_and_a_task_without_a_request_counts() -> None:
    config = Config.preset(
        "rollout",
        kv_capacity_tokens=200,
        kv_bytes_per_token=1.0,
        swap_bytes_per_s=100.0,
        decode_s_per_token=0.1,
    )
    scheduler = Scheduler(config)
    scheduler.register_agent("a", 100)
    scheduler.register_workflow(Workflow("long", (Stage("x", "a", service_s=90.0),)))
    scheduler.register_workflow(Workflow("short", (Stage("x", "a", service_s=5.0),)))
    for task, workflow in enumerate(("long", "short", "long")):
        scheduler.task_arrived(float(task), task, workflow)
    for task in range(2):  # the third has its request still to come
        scheduler.request_ready(2.0, task, task, "x", 40, 60)
    decision = scheduler.decide(3.0)
    assert decision.admit == [1]
    snapshot_ = scheduler.snapshot(3.0)
    assert decide(snapshot_, config).to_dict() == decision.to_dict()
    scheduler.commit(decision)
    assert scheduler.usage().running == 1


def test_runs_are_repeatable_and_finish() -> None:
    workload = make_workload("metagpt-sop", tasks=15, rate=0.025, seed=3)
    first, _ = run_policy(workload, "topas-rollout")
    again, _ = run_policy(workload, "topas-rollout")
    assert first == again
    assert first.finished == 15
    plain, _ = run_policy(workload, "topas")
    assert first.mean_jct_s != plain.mean_jct_s
