"""Workloads: shapes, lengths, arrivals, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
from topas.errors import ConfigError, WorkflowError
from topas.sim import (
    BUILTIN_WORKLOADS,
    EngineCosts,
    EngineOptions,
    Lengths,
    Round,
    StageShape,
    Task,
    WorkflowShape,
    Workload,
    make_workload,
    poisson_arrivals,
)
from topas.sim.profiles import config_fields, setup_of


def _edges(shape: WorkflowShape) -> set[tuple[str, str]]:
    return {
        (shape.stages[before].name, stage.name) for stage in shape.stages for before in stage.after
    }


def test_shapes_are_those_of_the_paper() -> None:
    made = {name: make_workload(name, tasks=3, rate=0.1) for name in BUILTIN_WORKLOADS}
    shapes = {name: workload.workflows[name] for name, workload in made.items()}
    assert _edges(shapes["chain-3"]) == {("A", "B"), ("B", "C")}
    assert _edges(shapes["dag-4"]) == {("A", "B"), ("A", "C"), ("B", "D"), ("C", "D")}
    wide = shapes["dag-10-wide"]
    assert len(wide.stages) == 10
    assert wide.depths == (0, *[1] * 8, 2)
    assert len(made["dag-10-wide"].agents) == 10
    sop = shapes["metagpt-sop"]
    assert [stage.agent for stage in sop.stages] == [
        "ProductManager",
        "Architect",
        "ProjectManager",
        "Engineer",
        "QaEngineer",
    ]
    assert sop.depths == (0, 1, 2, 3, 4)
    tl = shapes["metagpt-tl"]
    assert [stage.agent[0] for stage in tl.stages] == list("TSTSTSTST")
    assert len(made["metagpt-tl"].agents) == 5
    assert tl.depths == tuple(range(9))


@pytest.mark.parametrize("name", BUILTIN_WORKLOADS)
def test_default_lengths(name: str) -> None:
    workload = make_workload(name, tasks=200, rate=0.1, seed=3)
    prefixes = list(workload.agents.values())
    assert min(prefixes) >= 3500
    assert max(prefixes) <= 7500
    first = [rounds[0] for task in workload.tasks for rounds in task.stages]
    assert sum(r.input_tokens for r in first) / len(first) == pytest.approx(1400, rel=0.03)
    if not name.startswith("metagpt"):
        assert {(r.input_tokens, r.output_tokens, r.wait_s) for r in first} == {(1400, 700, 0.0)}
    else:
        assert len({r.output_tokens for r in first}) > 100
        waits = [r.wait_s for t in workload.tasks for rounds in t.stages for r in rounds[1:]]
        assert sum(waits) / len(waits) == pytest.approx(3.0, rel=0.15)


@pytest.mark.parametrize("name", ["metagpt-sop", "metagpt-tl"])
def test_profiles_match_the_lengths_on_average(name: str) -> None:
    workload = make_workload(name, tasks=600, rate=0.1, seed=5)
    for index, stage in enumerate(workload.workflows[name].stages):
        rounds = [task.stages[index] for task in workload.tasks]
        count = sum(map(len, rounds)) / len(rounds)
        outputs = [r.output_tokens for item in rounds for r in item]
        assert count == pytest.approx(stage.rounds, rel=0.1)
        assert sum(outputs) / len(outputs) == pytest.approx(stage.output_tokens, rel=0.1)


def test_same_seed_same_tasks_and_a_longer_run_starts_the_same() -> None:
    short = make_workload("metagpt-sop", tasks=10, rate=0.05, seed=7)
    long = make_workload("metagpt-sop", tasks=50, rate=0.05, seed=7)
    other = make_workload("metagpt-sop", tasks=10, rate=0.05, seed=8)
    assert short.tasks == long.tasks[:10]
    assert short.tasks != other.tasks


def test_arrivals_are_poisson_and_scale_with_the_rate() -> None:
    slow, fast = poisson_arrivals(5000, 0.1, 1), poisson_arrivals(5000, 0.2, 1)
    assert slow == pytest.approx([2 * arrival for arrival in fast])
    gaps = [b - a for a, b in zip([0.0, *slow], slow, strict=False)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(10.0, rel=0.05)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(100.0, rel=0.1)


def test_lengths_are_parameters() -> None:
    lengths = Lengths(input_tokens=100, output_tokens=20, prefix_tokens=(10, 20, 30))
    workload = make_workload("chain-3", tasks=2, rate=1.0, lengths=lengths)
    assert workload.agents == {"A": 10, "B": 20, "C": 30}
    assert workload.tasks[0].stages[2] == (Round(100, 20),)
    one = make_workload("dag-4", tasks=1, rate=1.0, lengths=Lengths(prefix_tokens=(5,)))
    assert set(one.agents.values()) == {5}
    with pytest.raises(ConfigError, match=r"prefix_tokens: 2 lengths for 3 agents \(A, B, C\)"):
        make_workload("chain-3", tasks=1, rate=1.0, lengths=Lengths(prefix_tokens=(1, 2)))


def test_profiled_services_come_from_expected_lengths() -> None:
    costs = EngineCosts()
    workload = make_workload("metagpt-tl", tasks=1, rate=1.0)
    profile = setup_of(workload, costs).workflows["metagpt-tl"][1]
    stage = workload.workflows["metagpt-tl"].stages[1]
    assert (profile.name, profile.agent, profile.after) == ("S1", "S1", ("TL1",))
    request = costs.request_s(4500, stage.input_tokens, 700)
    assert profile.request_s == pytest.approx(request)
    assert profile.service_s == pytest.approx(2.0 * request)
    fields = config_fields(workload, costs, EngineOptions(redo_model="kept", max_running=3))
    assert fields["kv_capacity_tokens"] == 40_000
    assert (fields["redo_model"], fields["max_running_requests"]) == ("kept", 3)
    assert 0.036 < fields["decode_s_per_token"] < 0.06


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": 0}, "tasks: "),
        ({"tasks": True}, "tasks: "),
        ({"rate": 0.0}, "rate: "),
        ({"rate": float("nan")}, "rate: "),
        ({"rate": -1}, "rate: "),
        ({"seed": -1}, "seed: "),
        ({"seed": "x"}, "seed: "),
        ({"name": "chain-4"}, "workload: unknown 'chain-4', known are chain-3, dag-4"),
    ],
)
def test_illegal_parameters_are_named(changes: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"name": "chain-3", "tasks": 1, "rate": 0.1, **changes}
    name = arguments.pop("name")
    with pytest.raises(ConfigError, match=f"^{message}"):
        make_workload(name, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["input_tokens", "output_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "7", True])
def test_illegal_lengths_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        Lengths(**{field: value})  # type: ignore[arg-type]


def test_malformed_shapes_are_refused() -> None:
    with pytest.raises(WorkflowError, match="no stage"):
        WorkflowShape("w", ())
    with pytest.raises(WorkflowError, match="'s' is given twice"):
        WorkflowShape("w", (StageShape("s", "A"), StageShape("s", "A")))
    with pytest.raises(WorkflowError, match="must come before"):
        WorkflowShape("w", (StageShape("s", "A", (0,)),))
    with pytest.raises(WorkflowError, match="wait_from"):
        WorkflowShape("w", (StageShape("s", "A"), StageShape("t", "A", (), wait_from=0)))


def test_malformed_workloads_are_refused() -> None:
    shape = WorkflowShape("w", (StageShape("s", "A"),))
    task = Task(0, 1.0, "w", ((Round(1, 1),),))
    good = Workload("x", {"A": 1}, {"w": shape}, (task,))
    cases = [
        ({"agents": {}}, WorkflowError, "unknown agent 'A'"),
        ({"agents": {"A": -1}}, ConfigError, "prefix of agent 'A'"),
        ({"tasks": (task, task)}, WorkflowError, "given twice"),
        ({"tasks": (dataclasses.replace(task, workflow="v"),)}, WorkflowError, "workflow 'v'"),
        ({"tasks": (dataclasses.replace(task, stages=()),)}, WorkflowError, "each stage"),
        ({"tasks": (dataclasses.replace(task, stages=((),)),)}, WorkflowError, "each stage"),
        ({"tasks": (dataclasses.replace(task, arrival_s=-1.0),)}, ConfigError, "arrival of task 0"),
        (
            {"tasks": (task, dataclasses.replace(task, id=1, arrival_s=0.5))},
            WorkflowError,
            "out of arrival order",
        ),
    ]
    for changes, error, message in cases:
        with pytest.raises(error, match=message):
            dataclasses.replace(good, **changes)
    for wrong in ((-1, 1, 0.0), (1, 0, 0.0), (1, 1, -1.0), (1, 1, float("nan"))):
        with pytest.raises(ConfigError):
            Round(*wrong)
