"""Room for the request that has waited much longer (SPEC section 7)."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import decided
from handmade import Json, request, running, snapshot, stage
from topas import Config, ConfigError, Scheduler, Snapshot, Stage, Workflow, explain

SETTINGS: Json = {"gain_model": "service", "admit_order": "arrival", "age_scale_s": 10.0}


def warm(*requests: Json, now: float = 100.0, **config: Any) -> Json:
    """Give a state where a and b have been served all the time, and c has waited since 0."""
    tasks: dict[Any, list[Json]] = {0: [stage("c")]}
    agents = {"r": "a", "s": "b"}
    tasks |= {r["task"]: [stage(agents[r["task"][0]])] for r in requests}
    arrivals = dict.fromkeys(tasks, now - 1.0) | {0: 0.0}
    return snapshot(
        tasks,
        [request("old", 0, 0, 1.0, kv_tokens=200), *requests],
        ["a", "b"],
        arrivals=arrivals,
        now=now,
        **{**SETTINGS, **config},
    )


def two_agents_run(**config: Any) -> Json:
    """Hold 600 tokens: a runs two requests, b one; another one of each waits."""
    return warm(
        running("a1", "r1", 0),
        running("a2", "r2", 0),
        running("b1", "s1", 0),
        request("a3", "r3", 0),
        request("b2", "s2", 0),
        **config,
    )


def test_the_earliest_is_next_once_it_fits() -> None:
    fields = two_agents_run(kv_capacity_tokens=800)
    assert decided(fields)["admit"] == ["a3", "b2"]
    got = decided(fields, reserve_limit=9.9)
    assert (got["resident"], got["admit"], got["preempt"]) == (["a", "b", "c"], ["old"], [])


@pytest.mark.parametrize("agents", [8, 0], ids=["every set", "greedy"])
def test_until_then_the_agent_that_runs_least_admits_nothing(agents: int) -> None:
    fields = two_agents_run(kv_capacity_tokens=700, enumerate_max_agents=agents)
    assert decided(fields)["admit"] == ["a3", "b2"]
    got = decided(fields, reserve_limit=9.9)
    assert (got["resident"], got["admit"]) == (["a", "b"], ["a3"])
    # b's prefix and request are enough for it; if more is wanted a waits as well
    got = decided(fields, reserve_limit=9.9, kv_capacity_tokens=599)
    assert (got["resident"], got["admit"]) == (["a", "b"], [])


def test_older_than_a_multiple_of_the_scale_and_of_what_the_others_wait() -> None:
    """The task is 100 s old, the scale 10 s, the other two waiting tasks 1 s."""
    fields = two_agents_run(kv_capacity_tokens=800)
    assert decided(fields, reserve_limit=10.0)["admit"] == ["a3", "b2"]
    assert decided(fields, reserve_limit=9.99)["admit"] == ["old"]
    for task in fields["tasks"]:
        if task["id"] in ("r3", "s2"):
            task["arrival"] = 60.0
    assert decided(fields, reserve_limit=2.5)["admit"] == ["a3", "b2"]
    assert decided(fields, reserve_limit=2.49)["admit"] == ["old"]


def test_smaller_requests_of_its_agent_wait_too() -> None:
    tasks = {name: [stage("a")] for name in range(3)}
    requests = [running(0, 0, 0, kv_tokens=300), request(1, 1, 0, kv_tokens=600), request(2, 2, 0)]
    arrivals = {0: 90.0, 1: 0.0, 2: 99.0}
    fields = snapshot(tasks, requests, ["a"], arrivals=arrivals, now=100.0, **SETTINGS)
    assert decided(fields, kv_capacity_tokens=900)["admit"] == [2]
    assert decided(fields, kv_capacity_tokens=900, reserve_limit=3.0)["admit"] == []
    assert decided(fields, kv_capacity_tokens=1000, reserve_limit=3.0)["admit"] == [1]


def test_it_waits_for_a_slot_when_only_that_is_missing() -> None:
    fields = two_agents_run(kv_capacity_tokens=5000, max_running_requests=3)
    assert decided(fields, reserve_limit=9.0)["admit"] == []
    assert decided(fields, reserve_limit=9.0, max_running_requests=4)["admit"] == ["old"]


def test_what_can_never_fit_gets_no_room_and_is_reported() -> None:
    fields = two_agents_run(kv_capacity_tokens=800)
    fields["requests"][0]["kv_tokens"] = 701
    got = decided(fields, reserve_limit=3.0)
    assert (got["admit"], got["unschedulable"]) == (["a3", "b2"], ["old"])


def test_who_is_held_back_is_told_so() -> None:
    fields = two_agents_run(kv_capacity_tokens=800, reserve_limit=9.0)
    told = explain(Snapshot.from_dict(fields), Config.from_dict(fields["config"]), top=1)
    assert [(left.request, left.agent, left.reason) for left in told.left_waiting] == [
        ("a3", "a", "held_back"),
        ("b2", "b", "held_back"),
    ]


def test_no_rollout_beside_it() -> None:
    config = two_agents_run()["config"] | {"rollout_scenarios": 1, "reserve_limit": 3.0}
    with pytest.raises(ConfigError, match=r"^reserve_limit: must be 0 with rollout_scenarios"):
        Config.from_dict(config)


def waiting_time(reserve_limit: float, seconds: int) -> int | None:
    """Let a cold request wait beside two agents whose requests of 4 s overlap; give its wait."""
    config = Config.preset(
        "default",
        kv_capacity_tokens=1000,
        kv_bytes_per_token=1.0,
        swap_bytes_per_s=1e6,
        decode_s_per_token=0.1,
        redo_weight=1e3,
        reserve_limit=reserve_limit,
    )
    scheduler = Scheduler(config)
    for agent in "abc":
        scheduler.register_agent(agent, 350)
        scheduler.register_workflow(Workflow(agent, [Stage("s", agent, service_s=4.0)]))
    ends: dict[str, int] = {}
    for now in range(seconds):
        for rid in [rid for rid, end in ends.items() if end == now]:
            del ends[rid]
            scheduler.request_completed(now, rid, 4.0)
            scheduler.stage_completed(now, rid, "s")
        for rid in [f"{'ab'[now % 2]}{now}", *(["cold"] if now == 10 else [])]:
            scheduler.task_arrived(now, rid, rid[0])
            scheduler.request_ready(now, rid, rid, "s", 25, 25)
        decision = scheduler.decide(now)
        scheduler.commit(decision)
        assert decision.preempt == []
        if "cold" in decision.admit:
            return now - 10
        ends |= {str(rid): now + 4 for rid in decision.admit}
        for rid in ends:
            scheduler.request_progress(now, rid, 1 + 10 * (now + 4 - ends[rid]))
    return None


def test_waiting_is_bounded_under_steady_warm_load() -> None:
    assert waiting_time(0.0, 400) is None
    wait_s = waiting_time(3.0, 400)
    # three times the mean service of a task, and until one agent has drained
    assert wait_s is not None
    assert 12 <= wait_s <= 16
