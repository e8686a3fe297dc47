"""Workflows are checked when they are made, before any state is kept (case 26)."""

from __future__ import annotations

import re
import sys
import time
from typing import Any

import pytest
from busy import NOW, busy_config, busy_scheduler, fingerprint
from topas import IdError, Scheduler, Stage, UnknownId, Workflow, WorkflowError

MANY = 10_000


def linked(*edges: tuple[str, str], more: str = "") -> list[Stage]:
    """Make stages of agent A from edges "before -> after", in order of first mention."""
    names = list(dict.fromkeys([*(name for edge in edges for name in edge), *more]))
    return [
        Stage(name, "A", after=tuple(first for first, second in edges if second == name))
        for name in names
    ]


class TestCase26CyclesLoopsUnknownStagesAndDoubleEdges:
    """Structure is checked when a workflow is made, before any state is kept."""

    def test_cycle_is_named_with_its_path(self) -> None:
        with pytest.raises(WorkflowError) as caught:
            Workflow("w", linked(("A", "B"), ("B", "C"), ("C", "A"), ("X", "A"), ("C", "Y")))
        path = re.search(r"cycle: (.*)$", str(caught.value))
        assert path is not None
        names = path[1].replace("'", "").split(" -> ")
        assert names[0] == names[-1]
        assert "".join(names[:-1]) in ("ABC", "BCA", "CAB")

    def test_cycle_of_one_stage_is_named(self) -> None:
        with pytest.raises(WorkflowError, match=r"cycle: 'A' -> 'A'$"):
            Workflow("w", linked(("A", "A")))

    def test_cycle_in_one_of_two_parts_is_found(self) -> None:
        with pytest.raises(WorkflowError, match="cycle"):
            Workflow("w", [*linked(("A", "B")), *linked(("C", "D"), ("D", "C"))])

    def test_edge_to_a_missing_stage_is_named(self) -> None:
        with pytest.raises(
            WorkflowError, match="workflow 'w': stage 'B' comes after unknown stage 'Z'"
        ):
            Workflow("w", [Stage("A", "A"), Stage("B", "A", after=("A", "Z"))])
        with pytest.raises(WorkflowError, match="unknown stage '7'"):
            Workflow("w", [Stage(7, "A"), Stage("B", "A", after=("7",))])

    def test_stage_of_an_unknown_agent_is_refused_when_registered(self) -> None:
        scheduler = busy_scheduler()
        before = fingerprint(scheduler)
        workflow = Workflow("w", [Stage("S", "U"), Stage("T", "nobody", after=("S",))])
        with pytest.raises(UnknownId, match="agent 'nobody' is not known"):
            scheduler.register_workflow(workflow)
        assert fingerprint(scheduler) == before

    def test_empty_workflow_is_refused(self) -> None:
        with pytest.raises(WorkflowError, match="workflow 'w' has no stage"):
            Workflow("w", [])

    def test_duplicate_stage_is_named(self) -> None:
        with pytest.raises(WorkflowError, match="workflow 'w': duplicate stage 'A'"):
            Workflow("w", [Stage("A", "A"), Stage("B", "A"), Stage("A", "B")])
        Workflow("w", [Stage("7", "A"), Stage(7, "A")])  # these are two

    def test_workflow_errors_are_value_errors(self) -> None:
        with pytest.raises(ValueError, match="no stage"):
            Workflow("w", [])

    def test_double_edge_counts_once(self) -> None:
        scheduler = busy_scheduler()
        scheduler.register_workflow(
            Workflow("w", [Stage("S", "A"), Stage("T", "A", after=("S", "S", "S"))])
        )
        scheduler.task_arrived(NOW, "x", "w")
        tasks = {task["id"]: task for task in scheduler.snapshot(NOW).to_dict()["tasks"]}
        assert tasks["x"]["stages"][1]["after"] == [0]
        scheduler.stage_completed(NOW, "x", "S")
        scheduler.request_ready(NOW, "r", "x", "T", 1, 1)

    def test_unconnected_parts_work(self) -> None:
        scheduler = busy_scheduler()
        scheduler.register_workflow(Workflow("w", linked(("A", "B"), ("C", "D"), more="E")))
        scheduler.task_arrived(NOW, "x", "w")
        for name in "ACE":
            scheduler.request_ready(NOW, name, "x", name, 1, 1)
        for name in "ACE":
            scheduler.request_aborted(NOW, name)
            scheduler.stage_completed(NOW, "x", name)
        for name in "DB":
            assert "x" in {task["id"] for task in scheduler.snapshot(NOW).to_dict()["tasks"]}
            scheduler.stage_completed(NOW, "x", name)
        assert "x" not in {task["id"] for task in scheduler.snapshot(NOW).to_dict()["tasks"]}


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), None, "5", True, [], -1])
def test_bad_service_is_named_with_its_stage(value: Any) -> None:
    with pytest.raises(WorkflowError, match="stage 'S': service_s"):
        Workflow("w", [Stage("R", "A"), Stage("S", "A", service_s=value)])
    if value is not None:
        with pytest.raises(WorkflowError, match="stage 'S': request_s"):
            Workflow("w", [Stage("R", "A"), Stage("S", "A", request_s=value)])


@pytest.mark.parametrize("value", [None, True, 1.5, 2**63, "\ud800", b"x"])
def test_bad_name_is_refused(value: Any) -> None:
    for stages, words in (
        ([Stage(value, "A")], "stage name: "),
        ([Stage("S", value)], "stage 'S': agent: "),
        ([Stage("S", "A"), Stage("T", "A", after=(value,))], "stage 'T': after: "),
    ):
        with pytest.raises(IdError, match=f"^{words}"):
            Workflow("w", stages)
    with pytest.raises(IdError, match=r"^workflow name: "):
        Workflow(value, [Stage("S", "A")])


def test_what_is_not_a_stage_is_refused() -> None:
    with pytest.raises(WorkflowError, match=r"^stage: must be a topas\.Stage, got 'S'"):
        Workflow("w", ["S"])  # type: ignore[list-item]


def test_request_service_is_the_stage_service_unless_it_is_given() -> None:
    scheduler = Scheduler(busy_config())
    scheduler.register_agent("A", 0)
    stages = [Stage(0, "A", service_s=6.0), Stage(1, "A", service_s=6.0, request_s=2.0)]
    scheduler.register_workflow(Workflow("w", stages))
    profiles = scheduler.snapshot(0.0).to_dict()["profiles"]
    assert [profile["request_s"] for profile in profiles] == [6.0, 2.0]
    assert [profile["totals_s"] for profile in profiles] == [[6.0], [6.0]]


def test_critical_path_is_the_longest() -> None:
    stages = [
        Stage("S", "A", service_s=2.0),
        Stage("X", "A", after=("S",), service_s=4.0),
        Stage("Y", "A", after=("S",), service_s=3.0),
        Stage("J", "A", after=("X", "Y"), service_s=1.0),
        Stage("alone", "A", service_s=6.5),
    ]
    assert Workflow("w", stages).critical_path_s == 7.0
    assert Workflow("w", stages[-1:]).critical_path_s == 6.5


# -------------------------------------------------------------- large ones


def chain(count: int) -> list[Stage]:
    return [
        Stage(n, "A", after=(n - 1,) if n else (), service_s=1.0)
        for n in reversed(range(count))  # the worst order for a naive walk
    ]


def fan(count: int) -> list[Stage]:
    leaves = [Stage(n, "A", after=("root",), service_s=float(n % 7)) for n in range(count)]
    join = Stage("join", "A", after=tuple(range(count)), service_s=1.0)
    return [join, *leaves, Stage("root", "A", service_s=1.0)]


def timed_registration(workflow_name: str, stages: list[Stage]) -> tuple[Scheduler, float]:
    """Make and register a workflow; give the seconds that took."""
    scheduler = Scheduler(busy_config())
    scheduler.register_agent("A", 10)
    start = time.perf_counter()
    scheduler.register_workflow(Workflow(workflow_name, stages))
    return scheduler, time.perf_counter() - start


def test_chain_of_ten_thousand_stages() -> None:
    assert sys.getrecursionlimit() < MANY
    scheduler, seconds = timed_registration("chain", chain(MANY))
    assert seconds < 0.5
    assert scheduler.age_scale_s == float(MANY)
    scheduler.task_arrived(0.0, "t", "chain")
    scheduler.request_ready(0.0, "r", "t", 0, 10, 10)
    start = time.perf_counter()
    assert scheduler.decide(0.0).admit == ["r"]
    assert time.perf_counter() - start < 0.5
    scheduler.request_aborted(0.0, "r")
    scheduler.stage_skipped(0.0, "t", 0)
    assert scheduler.usage().tasks == 0, "all the others are behind the skipped one"


def test_fan_of_ten_thousand_stages() -> None:
    scheduler, seconds = timed_registration("fan", fan(MANY))
    assert seconds < 0.5
    assert scheduler.age_scale_s == 1.0 + 6.0 + 1.0
    scheduler.task_arrived(0.0, "t", "fan")
    scheduler.stage_completed(0.0, "t", "root")
    for name in range(MANY - 1):
        scheduler.stage_completed(0.0, "t", name)
    scheduler.request_ready(0.0, "r", "t", MANY - 1, 10, 10)
    assert scheduler.decide(0.0).admit == ["r"]
    scheduler.request_aborted(0.0, "r")
    scheduler.stage_completed(0.0, "t", MANY - 1)
    scheduler.request_ready(0.0, "r", "t", "join", 10, 10)


def test_cycle_through_ten_thousand_stages_is_named() -> None:
    stages = [Stage(n, "A", after=((n - 1) % MANY,)) for n in range(MANY)]
    start = time.perf_counter()
    with pytest.raises(WorkflowError, match=r"cycle: (\d+ -> ){10000}\d+$"):
        Workflow("w", stages)
    assert time.perf_counter() - start < 0.5


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: Stage("T", "A", after="SX"), "stage 'T': after: must be a list, got 'SX'"),
        (lambda: Stage("T", "A", after=None), "stage 'T': after: must be a list, got None"),
        (lambda: Workflow("w", None), "workflow 'w': stages: must be a list, got None"),
    ],
)
def test_lists_are_lists(make, part: str) -> None:
    with pytest.raises(WorkflowError, match=re.escape(part)):
        make()


def test_from_plain_values() -> None:
    fields = {
        "name": "flow",
        "stages": [
            {"name": "plan", "agent": "planner", "service_s": 2.0},
            {"name": 7, "agent": "coder", "after": ["plan"]},
        ],
    }
    expected = Workflow("flow", [Stage("plan", "planner", (), 2.0), Stage(7, "coder", ("plan",))])
    assert Workflow.from_dict(fields) == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "workflow.name: is missing"),
        ({"name": "flow"}, "workflow.stages: is missing"),
        ({"name": "flow", "stages": 3}, "workflow.stages: must be a list, got 3"),
        ({"name": "flow", "stages": ["plan"]}, "stages.0: must be a mapping, got 'plan'"),
        ({"name": "flow", "stages": [{"name": "plan"}]}, "stages.0.agent: is missing"),
        (
            {"name": "flow", "stages": [{"name": "plan", "agent": "a", "color": "red"}]},
            "stages.0.color: unknown field, known are name, agent, after, service_s, request_s",
        ),
        ({"name": "flow", "stages": []}, "workflow 'flow' has no stage"),
        ([], "workflow: must be a mapping, got []"),
        (None, "workflow: must be a mapping, got None"),
    ],
)
def test_malformed_plain_values_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(WorkflowError, match=f"^{re.escape(message)}$"):
        Workflow.from_dict(fields)
