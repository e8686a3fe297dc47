"""Snapshots: the plain form, what is optional in it, and what is wrong with a bad one."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from agreement import Json
from busy import NOW, busy_config, busy_scheduler
from topas import IdError, Snapshot, SnapshotError, decide

MISSING = object()


def good() -> Json:
    return busy_scheduler().snapshot(NOW).to_dict()


def changed(path: str, value: Any) -> Json:
    """Give the good form with one field changed, added or (MISSING) taken away."""
    fields = copy.deepcopy(good())
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place: Any = fields
    for step in steps:
        place = place[step]
    if value is MISSING:
        del place[last]
    else:
        place[last] = value
    return fields


def spelt(path: str) -> str:
    """Give the path as messages have it: requests.0.task becomes requests[0].task."""
    return "".join(f"[{s}]" if s.isdigit() else f".{s}" for s in path.split(".")).lstrip(".")


SECONDS = (None, "5", True, [], math.nan, math.inf, -1.0)
TOKENS = (None, "5", True, 1.5, 2**63, -1, 2**48 + 1)
FLAGS = (None, 0, 1, "true", 1.0)
FACTORS = ("5", True, math.nan, math.inf, 0.5)
LISTS = (None, {}, "abc", 5, 1.5)
INDEXES = (None, "0", True, 0.0, -1, 2**40)
BAD_FIELDS = {
    "now": (None, "5", True, math.nan, math.inf),
    "age_scale_s": ("5", True, math.nan, math.inf, -1.0),
    "agents": LISTS,
    "profiles": LISTS,
    "tasks": LISTS,
    "requests": LISTS,
    "resident": LISTS,
    "agents.0.prefix_tokens": TOKENS,
    "profiles.1.request_s": SECONDS,
    "profiles.1.totals_s": (*LISTS, []),
    "tasks.0.arrival": (None, "5", True, math.nan, math.inf),
    "tasks.0.stages": (*LISTS, []),
    "tasks.1.stages.2.completed": FLAGS,
    "tasks.1.stages.2.service_s": SECONDS,
    "tasks.1.stages.2.after": LISTS,
    "requests.0.stage": INDEXES,
    "requests.0.kv_tokens": (*TOKENS, 0),
    "requests.0.input_tokens": TOKENS,
    "requests.0.expected_service_s": SECONDS,
    "requests.0.running": FLAGS,
    "requests.0.generated_tokens": TOKENS,
    "requests.0.credit": (None, "5", True, math.nan, math.inf),
    "requests.1.age_factor_at_admission": FACTORS,
}


@pytest.mark.parametrize("path", BAD_FIELDS)
def test_bad_field_is_named_by_its_path(path: str) -> None:
    for value in BAD_FIELDS[path]:
        with pytest.raises(SnapshotError) as caught:
            decide(Snapshot.from_dict(changed(path, value)), busy_config())
        assert str(caught.value).startswith(f"{spelt(path)}: "), value


def test_bad_item_of_a_list_is_named_by_its_path() -> None:
    for path, start in (
        ("agents.1", "agents[1]"),
        ("profiles.0", "profiles[0]"),
        ("tasks.0", "tasks[0]"),
        ("tasks.0.stages.3", "tasks[0].stages[3]"),
        ("requests.2", "requests[2]"),
    ):
        for value in (None, 5, "x", []):
            with pytest.raises(SnapshotError) as caught:
                Snapshot.from_dict(changed(path, value))
            assert str(caught.value).startswith(f"{start}: must be an object, got "), value
    for value in (None, "x", True, math.nan, -1.0):
        with pytest.raises(SnapshotError, match=r"^profiles\[0\]\.totals_s"):
            decide(Snapshot.from_dict(changed("profiles.0.totals_s", [value])), busy_config())
    for value in (None, "0", True, -1, 4):
        with pytest.raises(SnapshotError, match=r"^tasks\[0\]\.stages\[2\]\.after"):
            decide(Snapshot.from_dict(changed("tasks.0.stages.2.after", [value])), busy_config())


REQUIRED = [
    *("now", "agents", "profiles", "tasks", "requests", "resident"),
    *("agents.0.id", "agents.0.prefix_tokens"),
    *("profiles.0.id", "profiles.0.totals_s", "profiles.0.request_s"),
    *("tasks.0.id", "tasks.0.arrival", "tasks.0.stages"),
    *(
        f"tasks.0.stages.1.{name}"
        for name in ("agent", "after", "profile", "completed", "service_s")
    ),
    *(
        f"requests.0.{name}"
        for name in (
            *("id", "task", "stage", "agent", "kv_tokens", "expected_service_s", "running"),
            *("generated_tokens", "credit"),
        )
    ),
]


@pytest.mark.parametrize("path", REQUIRED)
def test_missing_field_is_named(path: str) -> None:
    with pytest.raises(SnapshotError) as caught:
        Snapshot.from_dict(changed(path, MISSING))
    assert str(caught.value) == f"{spelt(path)}: is missing"


@pytest.mark.parametrize(
    "path", [path for path in REQUIRED if path.rsplit(".")[-1] in ("id", "task", "agent")]
)
def test_bad_id_is_named(path: str) -> None:
    for value in (None, True, 1.5, [], 2**63, "\ud800"):
        with pytest.raises(IdError) as caught:
            Snapshot.from_dict(changed(path, value))
        assert str(caught.value).startswith(f"{spelt(path)}: "), value
    with pytest.raises(IdError, match=r"^resident\[0\]"):
        Snapshot.from_dict(changed("resident", [None]))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("agents.0.id", "B", "agents[1].id: duplicate 'B'"),
        ("profiles.1.id", 0, "profiles[1].id: duplicate 0"),
        ("tasks.0.id", "t", "tasks[1].id: duplicate 't'"),
        ("requests.0.id", "rx", "requests[1].id: duplicate 'rx'"),
        ("resident", ["A", "A"], "resident[1]: duplicate 'A'"),
        ("resident", ["B", "nobody"], "resident[1]: unknown 'nobody'"),
        ("tasks.0.stages.1.agent", 7, "tasks[0].stages[1].agent: unknown 7"),
        ("tasks.0.stages.1.profile", "p", "tasks[0].stages[1].profile: unknown 'p'"),
        ("requests.0.task", "none", "requests[0].task: unknown 'none'"),
        ("requests.0.stage", 4, "requests[0].stage: task 's' has no stage 4"),
        ("requests.0.agent", "B", "requests[0].agent: is 'B', but its stage belongs to agent 'A'"),
        ("tasks.0.stages.1.after", [4], "tasks[0].stages[1].after: the task has no stage 4"),
        ("tasks.0.stages.0.after", [3], "task 's': stages form a cycle: 0 -> 1 -> 3 -> 0"),
        ("tasks.0.stages.1.after", [1], "task 's': stages form a cycle: 1 -> 1"),
    ],
)
def test_inconsistency_is_named(path: str, value: Any, message: str) -> None:
    snapshot = Snapshot.from_dict(changed(path, value))
    with pytest.raises(SnapshotError) as caught:
        decide(snapshot, busy_config())
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "path",
    ["agents.0", "profiles.0", "tasks.0", "tasks.0.stages.0", "requests.0"],
)
@pytest.mark.parametrize("name", ["colour", 7, "\ud800"])
def test_unknown_field_inside_is_refused(path: str, name: Any) -> None:
    fields = copy.deepcopy(good())
    place: Any = fields
    for step in path.split("."):
        place = place[int(step) if step.isdigit() else step]
    place[name] = 1
    with pytest.raises(SnapshotError) as caught:
        Snapshot.from_dict(fields)
    assert str(caught.value) == f"{spelt(path)}: unknown field {name!r}"


@pytest.mark.parametrize("fields", [None, 5, "x", [], [("now", 1)]])
def test_what_is_not_an_object_is_refused(fields: Any) -> None:
    with pytest.raises(SnapshotError, match=r"^snapshot: must be an object, got "):
        Snapshot.from_dict(fields)


def test_other_keys_at_the_top_are_not_read() -> None:
    fields = {**good(), "config": {"x": 1}, "expect": None, "comment": "hello"}
    assert Snapshot.from_dict(fields) == Snapshot.from_dict(good())


def test_optional_fields_have_defaults() -> None:
    fields = good()
    for request in fields["requests"]:
        del request["input_tokens"], request["age_factor_at_admission"]
    del fields["age_scale_s"]
    snapshot = Snapshot.from_dict(fields)
    assert snapshot.age_scale_s is None
    requests = snapshot.to_dict()["requests"]
    assert {request["input_tokens"] for request in requests} == {0}
    assert {request["age_factor_at_admission"] for request in requests} == {None}
    assert "age_scale_s" not in snapshot.to_dict()
    fields["age_scale_s"] = None
    assert Snapshot.from_dict(fields) == snapshot


def test_lists_may_be_tuples_and_numbers_integers() -> None:
    fields = {**good(), "now": 10, "resident": tuple(good()["resident"])}
    fields["tasks"] = tuple(fields["tasks"])
    assert Snapshot.from_dict(fields) == Snapshot.from_dict(good())
    assert isinstance(Snapshot.from_dict(fields).now, float)


def test_a_snapshot_tells_what_it_holds() -> None:
    snapshot = Snapshot.from_dict(good())
    assert repr(snapshot).startswith("<Snapshot now=10")
    assert "2 tasks, 3 requests, 2 resident prefixes" in repr(snapshot)
    assert snapshot.now == NOW
    assert snapshot != good()
    assert (snapshot == 5) is False
