"""The option work_conserving: the room that the best state leaves is filled (SPEC section 6)."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import decided, is_feasible
from handmade import Json, request, running, snapshot, stage
from strategies import random_snapshot
from topas import Config, Snapshot, explain

DEAR = 1e6  # bytes a second: moving any prefix costs more than it gains


def requests_of(fields: Json, *, running: bool) -> list[Json]:
    return [r for r in fields["requests"] if r["running"] == running]


def two_agents(**config: Any) -> Json:
    """Give a state where agent b runs and moving the prefixes of a and c costs 100 s."""
    tasks = {task: [stage(agent)] for task, agent in enumerate("bacc")}
    requests = [running(0, 0, 0), *(request(task, task, 0) for task in (1, 2, 3))]
    return snapshot(
        tasks,
        requests,
        resident=["b"],
        **{"kv_bytes_per_token": 1.0, "swap_bytes_per_s": 1.0, "max_running_requests": 3, **config},
    )


def test_without_the_option_dear_prefixes_stay_out() -> None:
    assert decided(two_agents())["admit"] == []


def test_the_agent_that_most_wait_for_comes_in_first() -> None:
    """Two requests wait for c and one for a: c fills both slots."""
    got = decided(two_agents(), work_conserving=True)
    assert (got["resident"], got["admit"], got["preempt"]) == (["b", "c"], [2, 3], [])
    assert got["terms"]["admit"] == 20.0
    assert got["terms"]["move"] == 2 * 100.0
    assert got["credits"] == {2: 10.0, 3: 10.0}


def test_more_agents_come_in_while_there_is_room() -> None:
    got = decided(two_agents(max_running_requests=4), work_conserving=True)
    assert (got["resident"], got["admit"]) == (["a", "b", "c"], [2, 3, 1])


def test_moved_once_whoever_waits() -> None:
    got = decided(two_agents(), work_conserving=True, move_model="once")
    assert got["terms"]["move"] == 100.0
    got = decided(two_agents(), work_conserving=True, move_model="once", move_weight=7.0)
    assert got["terms"]["move"] == 700.0


@pytest.mark.parametrize(("model", "victims"), [("tasks", [0]), ("once", [])])
def test_by_once_a_prefix_that_leaves_though_it_is_wanted_is_paid_for(
    model: str, victims: list[int]
) -> None:
    """Agent a, without a prefix, gains 20 s if b is preempted, whose prefix takes 25 s to load."""
    tasks = {0: [stage("b")], 1: [stage("a", totals=(20.0,))]}
    requests = [running(0, 0, 0, kv_tokens=100), request(1, 1, 0, 20.0, kv_tokens=100)]
    fields = snapshot(
        tasks,
        requests,
        resident=["a", "b"],
        prefix={"a": 0},
        swap_bytes_per_s=4.0,
        kv_capacity_tokens=250,
        count_running=False,
    )
    got = decided(fields, move_model=model)
    assert (got["preempt"], got["terms"]["move"]) == (victims, 0.0)
    idle = {**fields, "requests": requests_of(fields, running=False)}
    assert decided(idle, move_model=model)["terms"]["move"] == 0.0, "nobody wants b any more"


def test_a_prefix_that_does_not_fit_with_a_request_stays_out() -> None:
    fields = two_agents(kv_capacity_tokens=100 + 100 + 100 + 99)
    assert decided(fields, work_conserving=True)["admit"] == []
    fields["config"]["kv_capacity_tokens"] += 1
    assert decided(fields, work_conserving=True)["admit"] == [2]


def test_the_action_cap_bounds_filling_too() -> None:
    assert decided(two_agents(action_cap=1), work_conserving=True)["admit"] == [2]


def test_what_the_packing_left_off_comes_first() -> None:
    """Of an agent that is in the set all that fit are admitted before another comes in."""
    tasks = {task: [stage(agent)] for task, agent in enumerate("aaab")}
    waiting = [request(task, task, 0) for task in range(4)]
    fields = snapshot(tasks, waiting, kv_bytes_per_token=1.0, swap_bytes_per_s=9.0)
    assert len(decided(fields)["admit"]) == 1, "each more makes one more task wait"
    assert decided(fields, work_conserving=True)["admit"] == [0, 1, 2, 3]


def test_what_stands_still_pays_for_what_leaves_though_it_is_wanted() -> None:
    """More runs than fits and it may not all be preempted: c, which is wanted too, leaves."""
    tasks = {0: [stage("b")], 1: [stage("b")], 2: [stage("c")]}
    requests = [running(0, 0, 0), running(1, 1, 0), request(2, 2, 0)]
    limits = {"kv_capacity_tokens": 250, "action_cap": 1, "swap_bytes_per_s": 10.0}
    fields = snapshot(tasks, requests, resident=["b", "c"], **limits)
    assert not is_feasible(fields)
    got = decided(fields, move_model="once", work_conserving=True)
    assert (got["resident"], got["admit"], got["terms"]["move"]) == (["b"], [], 10.0)
    assert decided(fields)["terms"]["move"] == 0.0


def test_explained_after_filling() -> None:
    fields = two_agents()
    config = Config.from_dict({**fields["config"], "work_conserving": True})
    explained = explain(Snapshot.from_dict(fields), config, top=3)
    assert (explained.decision.admit, explained.decision.load) == ([2, 3], ["c"])
    assert explained.candidates[0].admit == [], "candidates are states of the search"
    (left,) = explained.left_waiting
    assert (left.request, left.reason, left.free_tokens) == (1, "prefix_not_kept", 500)


def room_left(fields: Json, got: Json) -> tuple[int, int]:
    """Give the tokens and slots that a decision leaves; a million slots where nothing limits."""
    config = fields["config"]
    requests = {r["id"]: r for r in fields["requests"]}
    prefix = {agent["id"]: agent["prefix_tokens"] for agent in fields["agents"]}
    runs = [r for r in requests_of(fields, running=True) if r["id"] not in got["preempt"]]
    runs += [requests[rid] for rid in got["admit"]]
    tokens = config["kv_capacity_tokens"] - sum(prefix[agent] for agent in got["resident"])
    limit = config["max_running_requests"] or 10**6
    cap = config["action_cap"] or 10**6
    slots = min(limit - len(runs), cap - len(got["admit"]))
    return tokens - sum(r["kv_tokens"] for r in runs), slots


def left_though_it_fits(fields: Json, got: Json) -> list[Any]:
    """Name the waiting requests that fit; those whose agent was preempted wait for another time."""
    room, slots = room_left(fields, got)
    assert room >= 0
    assert slots >= 0
    prefix = {agent["id"]: agent["prefix_tokens"] for agent in fields["agents"]}
    thrown_out = {r["agent"] for r in fields["requests"] if r["id"] in got["preempt"]}
    needs = {
        r["id"]: r["kv_tokens"] + (0 if r["agent"] in got["resident"] else prefix[r["agent"]])
        for r in requests_of(fields, running=False)
        if r["id"] not in got["admit"] and r["agent"] not in thrown_out
    }
    return [rid for rid, need in needs.items() if slots > 0 and need <= room]


def test_nothing_that_fits_is_left_waiting() -> None:
    filled = 0
    for seed in range(4_000_000, 4_000_600):
        fields = random_snapshot(seed)
        changes = {"swap_bytes_per_s": DEAR, "overtake_limit": 0.0, "reserve_limit": 0.0}
        fields = {**fields, "config": {**fields["config"], **changes}}
        if not is_feasible(fields):
            continue
        got = decided(fields, work_conserving=True)
        assert left_though_it_fits(fields, got) == [], f"seed {seed}"
        filled += got["admit"] != decided(fields, work_conserving=False)["admit"]
    assert filled > 30


@pytest.mark.parametrize("once", [False, True])
def test_never_fewer_running_than_without(once: bool) -> None:
    """Filling adds to the chosen state: it takes nothing out."""
    for seed in range(4_100_000, 4_100_150):
        fields = random_snapshot(seed)
        model = "once" if once else "tasks"
        plain = decided(fields, work_conserving=False, move_model=model)
        full = decided(fields, work_conserving=True, move_model=model)
        assert full["preempt"] == plain["preempt"]
        assert set(full["resident"]) >= set(plain["resident"])
        assert full["admit"][: len(plain["admit"])] == plain["admit"]
