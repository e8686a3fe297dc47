"""Ids are 64-bit integers or strings, come back as they were given, and are never mixed up."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from busy import busy_config, fingerprint
from topas import Decision, IdError, Scheduler, Snapshot, Stage, Workflow, decide

ODD_IDS: list[int | str] = [
    *(0, 7, -1, 2**63 - 1, -(2**63), 2**53 + 1),
    *("7", "", " ", "07", "None", "true", "é", "e\u0301", "日本", "🦉", "a\0b", "x" * 10_000),
]


def single(agent: Any, workflow: Any, stage: Any, task: Any, request: Any) -> Scheduler:
    """Make a scheduler with one of each, under the given ids."""
    scheduler = Scheduler(busy_config())
    scheduler.register_agent(agent, 100)
    scheduler.register_workflow(Workflow(workflow, [Stage(stage, agent, service_s=2.0)]))
    scheduler.task_arrived(0.0, task, workflow)
    scheduler.request_ready(0.0, request, task, stage, 10, 10)
    return scheduler


def exactly(left: Any, right: Any) -> bool:
    return type(left) is type(right) and left == right


@pytest.mark.parametrize("name", ODD_IDS, ids=lambda name: repr(name)[:20])
def test_id_comes_back_as_it_was_given(name: int | str) -> None:
    scheduler = single(name, name, name, name, name)
    decision = scheduler.decide(0.0)
    for ids in (decision.admit, decision.resident, decision.load, list(decision.credits)):
        assert len(ids) == 1
        assert exactly(ids[0], name)
    scheduler.commit(decision)
    fields = scheduler.snapshot(1.0).to_dict()
    for found in (
        fields["agents"][0]["id"],
        fields["tasks"][0]["id"],
        fields["tasks"][0]["stages"][0]["agent"],
        fields["requests"][0]["id"],
        fields["requests"][0]["task"],
        fields["requests"][0]["agent"],
        fields["resident"][0],
    ):
        assert exactly(found, name)
    scheduler.request_completed(2.0, name, 2.0)
    scheduler.stage_completed(2.0, name, name)
    assert exactly(scheduler.decide(2.0).drop[0], name)


@pytest.mark.parametrize("name", ODD_IDS, ids=lambda name: repr(name)[:20])
def test_id_of_a_snapshot_comes_back_as_it_was_given(name: int | str) -> None:
    fields = single(1, 2, 3, 4, 5).snapshot(0.0).to_dict()
    fields["agents"][0]["id"] = fields["tasks"][0]["stages"][0]["agent"] = name
    fields["profiles"][0]["id"] = fields["tasks"][0]["stages"][0]["profile"] = name
    fields["tasks"][0]["id"] = name
    fields["requests"][0] |= {"id": name, "task": name, "agent": name}
    snapshot = Snapshot.from_dict(fields)
    assert snapshot.to_dict() == fields
    assert exactly(snapshot.to_dict()["profiles"][0]["id"], name)
    decision = decide(snapshot, busy_config())
    assert exactly(decision.admit[0], name)
    assert exactly(decision.resident[0], name)


def test_strings_and_integers_are_different_ids() -> None:
    """Everything exists twice, under 7 and "7"; what is done to one is not done to the other."""
    scheduler = single(7, 7, 7, 7, 7)
    scheduler.register_agent("7", 300)
    scheduler.register_workflow(Workflow("7", [Stage("7", "7", service_s=3.0)]))
    scheduler.task_arrived(0.0, "7", "7")
    scheduler.request_ready(0.0, "7", "7", "7", 20, 20)
    decision = scheduler.decide(0.0)
    assert sorted(decision.admit, key=str) == [7, "7"] or sorted(decision.admit, key=str) == [
        "7",
        7,
    ]
    assert decision.resident == [7, "7"]
    scheduler.commit(decision)
    assert scheduler.usage().kv_tokens == 100 + 20 + 300 + 40
    scheduler.request_aborted(1.0, "7")
    assert scheduler.usage().kv_tokens == 100 + 20 + 300
    scheduler.task_cancelled(1.0, "7")
    assert [task["id"] for task in scheduler.snapshot(1.0).to_dict()["tasks"]] == [7]


def test_parts_are_not_glued_together() -> None:
    """Case 25: ("ab", "c") and ("a", "bc") are different agents and share no prefix charge."""
    scheduler = Scheduler(busy_config())
    for agent, tokens in (("ab/c", 100), ("a/bc", 200), ("abc", 50)):
        scheduler.register_agent(agent, tokens)
        scheduler.register_workflow(Workflow(agent, [Stage("s", agent, service_s=1.0)]))
        scheduler.task_arrived(0.0, agent, agent)
        scheduler.request_ready(0.0, agent, agent, "s", 1, 1)
    decision = scheduler.decide(0.0)
    assert decision.load == ["a/bc", "ab/c", "abc"]
    assert decision.terms.move == pytest.approx(3 * 350 / 1e5)


def test_integers_come_before_strings_and_strings_go_by_their_bytes() -> None:
    names: list[int | str] = [-3, 2, 10, "", "10", "2", "Z", "a", "é", "日", "🦉"]
    scheduler = Scheduler(busy_config(kv_capacity_tokens=10**6))
    for name in reversed(names):
        scheduler.register_agent(name, 1)
        scheduler.register_workflow(Workflow(name, [Stage(0, name, service_s=1.0)]))
    for name in reversed(names):
        scheduler.task_arrived(0.0, name, name)
        scheduler.request_ready(0.0, name, name, 0, 1, 1)
    decision = scheduler.decide(0.0)
    assert decision.resident == names
    assert decision.admit == names, "equal requests are admitted in the order of their ids"
    fields = scheduler.snapshot(0.0).to_dict()
    for table in ("agents", "tasks", "requests"):
        assert [row["id"] for row in fields[table]] == names


class Colour(IntEnum):
    RED = 7


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("given", "plain"),
    [(np.int64(7), 7), (np.uint8(7), 7), (Colour.RED, 7), (Name("x"), "x"), (np.str_("x"), "x")],
    ids=["int64", "uint8", "IntEnum", "str subclass", "numpy str"],
)
def test_what_counts_as_an_integer_or_a_string_comes_back_plain(
    given: Any, plain: int | str
) -> None:
    scheduler = single(given, given, given, given, given)
    decision = scheduler.decide(0.0)
    assert exactly(decision.admit[0], plain)
    scheduler.commit(decision)
    scheduler.request_completed(1.0, plain, 1.0)
    scheduler.task_finished(1.0, plain)


@pytest.mark.parametrize(
    "name",
    [
        *(True, False, None, 1.0, 1.5, b"x", (), [], {}, object()),
        *(2**63, -(2**63) - 1, 10**30, "\ud800", "a\udfffb"),
        *(np.uint64(2**63), np.float64(1.0), np.True_),
    ],
    ids=lambda name: repr(name)[:20],
)
def test_anything_else_is_refused_by_name_and_changes_nothing(name: Any) -> None:
    scheduler = single("A", "w", "s", "t", "r")
    before = fingerprint(scheduler, 0.0)
    for argument, use in (
        ("agent", lambda: scheduler.register_agent(name, 1)),
        ("task", lambda: scheduler.task_arrived(0.0, name, "w")),
        ("workflow", lambda: scheduler.task_arrived(0.0, "new", name)),
        ("request", lambda: scheduler.request_ready(0.0, name, "t", "s", 1, 1)),
        ("stage", lambda: scheduler.stage_skipped(0.0, "t", name)),
    ):
        with pytest.raises(IdError, match=f"^{argument}: must be a string or an integer of 64"):
            use()
    assert fingerprint(scheduler, 0.0) == before


def test_credits_and_decisions_keep_ids_apart() -> None:
    scheduler = single(7, 7, 7, 7, 7)
    scheduler.request_ready(0.0, "7", 7, 7, 10, 10)
    decision: Decision = scheduler.decide(0.0)
    assert set(decision.credits) == {7, "7"}
    assert decision.to_dict()["credits"] == decision.credits
