"""Scores by service, urgency, admission by arrival, firm requests (SPEC section 7)."""

from __future__ import annotations

from typing import Any

import pytest
import topas
from agreement import decided
from handmade import Json, request, running, snapshot, stage
from topas import Config, ConfigError, Snapshot, decide


def fork() -> Json:
    """Give a task of two branches of agent a, with room for one of them."""
    tasks = {0: [stage("a"), stage("a")]}
    return snapshot(tasks, [request(0, 0, 0), request(1, 0, 1)], kv_capacity_tokens=200)


def test_a_branch_of_a_fork_is_worth_its_service() -> None:
    assert decided(fork())["credits"] == {0: 0.0}
    assert decided(fork(), gain_model="service")["credits"] == {0: 10.0}


def test_worth_ages_and_hurries() -> None:
    """Task 0 is 40 s old and has 5 s left, task 1 has just come and has 20 s left."""
    tasks = {0: [stage("a", totals=(5.0,))], 1: [stage("a"), stage("a", after=[0])]}
    requests = [request(0, 0, 0, 5.0), request(1, 1, 0, 8.0)]
    fields = snapshot(tasks, requests, arrivals={0: 0.0, 1: 40.0}, now=40.0, age_scale_s=20.0)
    got = decided(fields, gain_model="service", age_weight=1.0, urgency=0.5)
    assert got["credits"] == pytest.approx({0: (1 + 40 / 20) * (20 / 5) ** 0.5 * 5.0, 1: 8.0})
    got = decided(fields, age_weight=1.0, urgency=0.5)
    assert got["credits"] == pytest.approx({0: 3 * 2 * 5.0, 1: 8.0})  # paths hurry as well


def test_a_path_of_less_than_a_second_counts_as_one() -> None:
    fields = snapshot({0: [stage("a", totals=(0.01,))]}, [request(0, 0, 0, 0.01)], age_scale_s=4.0)
    assert decided(fields, urgency=0.5, gain_model="service")["credits"] == {0: 0.02}


def swap(**fields: Any) -> Json:
    """Give a state where agent a runs one request, and b's would take its room."""
    tasks = {0: [stage("a")], 1: [stage("b")]}
    requests = [running(0, 0, 0, 10.0, **fields), request(1, 1, 0, 16.0)]
    return snapshot(
        tasks,
        requests,
        resident=["a"],
        kv_capacity_tokens=200,
        move_weight=0.0,
        gain_model="service",
    )


def test_preempting_loses_the_worth_that_there_is_now() -> None:
    """16 s come in; 10 s and a tenth of a second for each of the generated tokens go."""
    got = decided(swap(generated_tokens=50, credit=1000.0))
    assert (got["preempt"], got["terms"]["revoke"], got["terms"]["redo"]) == ([0], 10.0, 5.0)
    assert decided(swap(generated_tokens=70))["preempt"] == []
    got = decided(swap(generated_tokens=50), redo_weight=2.0)
    assert got["preempt"] == []


def test_a_request_that_has_had_enough_is_never_preempted() -> None:
    """It has had 5 s of 10 s."""
    assert decided(swap(generated_tokens=50), preempt_limit=0.5)["preempt"] == [0]
    assert decided(swap(generated_tokens=51), preempt_limit=0.5)["preempt"] == []
    got = decided(swap(generated_tokens=51), preempt_limit=0.5, enumerate_max_agents=0)
    assert (got["resident"], got["preempt"]) == (["a"], [])


def queue(**fields: Any) -> Json:
    """Give three tasks of agent a that came one after the other; the second wants much room."""
    tasks = {task: [stage("a")] for task in range(3)}
    requests = [request(0, 0, 0), request(1, 1, 0, kv_tokens=300), request(2, 2, 0, 90.0)]
    arrivals = {task: float(task) for task in tasks}
    settings = {"kv_capacity_tokens": 300, "admit_order": "arrival", "age_scale_s": 10.0}
    return snapshot(tasks, requests, arrivals=arrivals, now=20.0, **{**settings, **fields})


def test_requests_are_admitted_by_arrival() -> None:
    assert decided(queue())["admit"] == [0, 2]  # the second can be overtaken
    assert decided(queue(), kv_capacity_tokens=200)["admit"] == [0]
    assert decided(queue(), kv_capacity_tokens=200, gain_model="service", admit_order="density")[
        "admit"
    ] == [2]


def test_nothing_overtakes_what_is_overdue() -> None:
    """The second task is 19 s old."""
    assert decided(queue(), overtake_limit=1.9)["admit"] == [0, 2]
    assert decided(queue(), overtake_limit=1.8)["admit"] == [0]
    got = decided(queue(), overtake_limit=1.8, work_conserving=True)
    assert got["admit"] == [0]


def test_what_is_overdue_may_leave_a_set_uncovered() -> None:
    """Agent b alone is served, since with both a's overdue request comes first and does not fit."""
    tasks = {0: [stage("a")], 1: [stage("b")]}
    requests = [request(0, 0, 0, kv_tokens=700), request(1, 1, 0)]
    fields = snapshot(tasks, requests, now=20.0, age_scale_s=10.0, kv_capacity_tokens=750)
    got = decided(fields, admit_order="arrival", overtake_limit=1.0)
    assert (got["resident"], got["admit"]) == (["b"], [1])


def test_limits_on_overtaking_need_the_order_of_arrival() -> None:
    with pytest.raises(ConfigError, match=r"overtake_limit: needs admit_order 'arrival', got 2"):
        Config.preset(
            "default", **queue()["config"] | {"admit_order": "density", "overtake_limit": 2.0}
        )


def queues(*waiting: int, **config: Any) -> Json:
    """Give a state where so many requests of agents a, b, ... wait, and one prefix fits at a time.

    A prefix of 600 tokens leaves room for four requests of 100, one of 900 for one.
    """
    agents = "abc"[: len(waiting)]
    tasks: Json = {}
    for agent, count in zip(agents, waiting, strict=True):
        tasks |= {f"{agent}{number}": [stage(agent)] for number in range(count)}
    requests = [request(task, task, 0) for task in tasks]
    settings = {"gain_model": "service", "admit_order": "arrival", "move_weight": 0.0}
    prefix = {"a": 600, "b": 900, "c": 900}
    return snapshot(
        tasks, requests, prefix={a: prefix[a] for a in agents}, **{**settings, **config}
    )


def test_a_request_gains_by_the_backlog_of_its_agent() -> None:
    """Four more of an agent are one more of its batches."""
    assert decided(queues(3), backlog_weight=0.0)["terms"]["admit"] == 3 * 10
    assert decided(queues(3), backlog_weight=2.0)["terms"]["admit"] == 3 * (1 + 2 * 3 / 4) * 10
    got = decided(queues(6), backlog_weight=2.0)
    assert (len(got["admit"]), got["terms"]["admit"]) == (4, 4 * (1 + 2 * 6 / 4) * 10)
    assert got["credits"]["a0"] == (1 + 2 * 6 / 4) * 10


def test_a_prefix_that_few_want_waits_for_more() -> None:
    """One request of b gains six times its service, one of a half as much again, or twice."""
    fields = queues(2, 5)
    assert decided(fields)["resident"] == ["a"]
    assert decided(fields, backlog_weight=1.0)["resident"] == ["b"]
    assert decided(queues(3, 5), backlog_weight=1.0)["resident"] == ["b"]
    assert decided(queues(4, 5), backlog_weight=1.0)["resident"] == ["a"]


def test_what_can_never_fit_is_no_backlog() -> None:
    fields = queues(3)
    fields["requests"][2]["kv_tokens"] = 401
    got = decided(fields, backlog_weight=2.0)
    assert (got["terms"]["admit"], got["unschedulable"]) == (2 * (1 + 2 * 2 / 4) * 10, ["a2"])


def test_backlogs_change_nothing_where_gains_are_paths() -> None:
    fields = queues(2, 5, gain_model="path", admit_order="density")
    assert decided(fields, backlog_weight=3.0) == decided(fields)


def test_work_thrown_away_costs_what_the_longest_backlog_makes_of_it() -> None:
    """One of b runs, c has three in the queue and a two: f is 1 + 1, 1 + 3 and 1 + 2 / 4."""
    fields = queues(2, 1, 3, redo_weight=1.0)
    fields["requests"][2] |= {"running": True, "generated_tokens": 25}
    fields["resident"] = ["b"]
    got = decided(fields, backlog_weight=1.0)
    assert (got["preempt"], got["resident"]) == (["b0"], ["c"])
    terms = {name: got["terms"][name] for name in ("admit", "redo", "revoke")}
    assert terms == {"admit": 4 * 10, "redo": 4 * 2.5, "revoke": 2 * 10}
    fields["requests"][2]["generated_tokens"] = 51  # 4 * 5.1 s are more than is won
    assert decided(fields, backlog_weight=1.0)["preempt"] == []


def test_a_single_decision_needs_the_scale_of_ages() -> None:
    fields = fork()
    config = Config.from_dict({**fields["config"], "urgency": 0.25})
    with pytest.raises(ConfigError, match=r"age_scale_s: needed .* urgency \(0\.25\)"):
        decide(Snapshot.from_dict(fields), config)


def test_the_scheduler_needs_no_model_of_paths() -> None:
    """Sampling is forbidden, and the preset decides over a fork of many outcomes nevertheless."""
    config = Config.preset(
        "default",
        kv_capacity_tokens=1000,
        kv_bytes_per_token=1.0,
        swap_bytes_per_s=1.0,
        decode_s_per_token=0.1,
        exact_limit=1,
        samples=0,
    )
    scheduler = topas.Scheduler(config)
    scheduler.register_agent("a", 100)
    stages = [topas.Stage(name, "a", service_s=5.0) for name in "xyz"]
    scheduler.register_workflow(topas.Workflow("w", stages))
    scheduler.task_arrived(0.0, 0, "w")
    for number, name in enumerate("xyz"):
        scheduler.request_ready(0.0, number, 0, name, 50, 50)
    decision = scheduler.decide(0.0)
    assert decision.admit == [0, 1, 2]
    assert decide(scheduler.snapshot(0.0), config).to_dict() == decision.to_dict()
