"""Workflow graphs: how a run is drawn, and every workflow of the real file under all policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from topas.cli.app import app
from topas.errors import ConfigError, TopasError, WorkflowError
from topas.policies import POLICY_NAMES
from topas.sim import Workload, compare
from topas.sim.graph_unroll import GraphEdge, GraphNode, UnrolledStage, WorkflowGraph, unroll
from topas.sim.graphs import GraphOptions, load_graphs, make_graph_workload
from typer.testing import CliRunner

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "chatdev_workflows.json"
NO_CALLS = {"demo_code", "demo_context_reset", "demo_edge_transform", "demo_loop_counter"}
real_file = pytest.mark.skipif(
    not SHARED.exists(), reason="shared/data/chatdev_workflows.json is not here"
)


def _graph(kinds: str, edges: list[str]) -> WorkflowGraph:
    """``"A:agent B:human"`` and ``"A>B"`` (fires always) or ``"A?B"`` (may fire)."""
    nodes = [part.split(":") for part in kinds.split()]
    place = {name: index for index, (name, _) in enumerate(nodes)}
    return WorkflowGraph(
        "w",
        tuple(GraphNode(name, kind, 400) for name, kind in nodes),
        tuple(GraphEdge(place[e[0]], place[e[2]], e[1] == "?") for e in edges),
    )


def _run(graph: WorkflowGraph, seed: int = 0, loops: int = 3) -> list[UnrolledStage]:
    return unroll(graph, np.random.default_rng(seed), loops, {"human": 10.0, "python": 1.0})


def _shape(stages: list[UnrolledStage]) -> list[tuple[str, list[str]]]:
    return [(stage.name, [stages[index].name for index in stage.after]) for stage in stages]


def test_a_join_waits_for_all_that_fired() -> None:
    graph = _graph("A:agent B:agent C:agent D:agent", ["A>B", "A>C", "B>D", "C>D"])
    assert _shape(_run(graph)) == [("A", []), ("B", ["A"]), ("C", ["A"]), ("D", ["B", "C"])]


def test_nodes_that_call_no_model_are_contracted_and_people_take_time() -> None:
    graph = _graph(
        "S:passthrough A:agent L:literal H:human B:subgraph",
        ["S>A", "A>L", "L>H", "H>B", "A>B"],
    )
    stages = _run(graph)
    assert _shape(stages) == [("A", []), ("B", ["A"])]
    assert stages[0].wait_s == 0.0
    assert stages[1].wait_s > 0.0


def test_one_of_the_conditional_edges_fires() -> None:
    graph = _graph("A:agent B:agent C:agent D:agent", ["A?B", "A?C", "A>D"])
    drawn = {tuple(name for name, _ in _shape(_run(graph, seed))) for seed in range(40)}
    assert drawn == {("A", "B", "D"), ("A", "C", "D")}


def test_a_single_conditional_edge_fires_half_the_time() -> None:
    graph = _graph("A:agent B:agent", ["A?B"])
    taken = sum(len(_run(graph, seed)) == 2 for seed in range(400))
    assert 150 < taken < 250


def test_a_loop_ends_by_its_exit_or_on_its_last_pass() -> None:
    graph = _graph("A:agent B:agent C:agent", ["A>B", "B?A", "B?C"])
    names = {tuple(name for name, _ in _shape(_run(graph, seed))) for seed in range(60)}
    assert names == {
        ("A", "B", "C"),
        ("A", "B", "A (2)", "B (2)", "C"),
        ("A", "B", "A (2)", "B (2)", "A (3)", "B (3)", "C"),
    }
    assert {len(_run(graph, seed, loops=1)) for seed in range(20)} == {3}


def test_a_loop_counter_lets_through_on_the_last_pass() -> None:
    graph = _graph("A:agent N:loop_counter B:agent", ["A>N", "N>A", "A>A", "N>B"])
    expected = ["A", "A (2)", "A (3)", "A (4)", "B"]
    assert [name for name, _ in _shape(_run(graph, loops=4))] == expected


def test_a_loop_inside_a_loop() -> None:
    graph = _graph("A:agent B:agent C:agent D:agent", ["A>B", "B>C", "C?B", "C?A", "C?D"])
    for seed in range(40):
        stages = _run(graph, seed, loops=2)
        assert stages[-1].name == "D"
        assert sum(graph.nodes[s.node].id == "A" for s in stages) <= 2
        assert sum(graph.nodes[s.node].id == "C" for s in stages) <= 4


def test_an_edge_out_of_a_loop_ends_it_at_once() -> None:
    graph = _graph("A:agent B:agent", ["A>A", "A>B"])
    assert _shape(_run(graph)) == [("A", []), ("B", ["A"])]


def test_what_a_loop_left_behind_does_not_reach_its_next_pass() -> None:
    graph = _graph("A:agent B:agent C:agent D:agent", ["A>B", "B>C", "C>B", "C>D", "D>A"])
    assert _shape(_run(graph, loops=2))[4:] == [
        ("A (2)", ["D"]),
        ("B (2)", ["A (2)"]),
        ("C (2)", ["B (2)"]),
        ("D (2)", ["C (2)"]),
    ]


def test_a_cycle_without_an_entry_begins_at_its_first_agent() -> None:
    graph = _graph("P:python A:agent B:agent", ["P>A", "A>B", "B?P"])
    assert _shape(_run(graph, loops=1)) == [("A", []), ("B", ["A"])]


_KINDS = ("agent", "subgraph", "python", "human", "passthrough", "literal", "loop_counter")


@st.composite
def _graphs(draw: st.DrawFn) -> WorkflowGraph:
    count = draw(st.integers(min_value=1, max_value=7))
    ends = st.integers(min_value=0, max_value=count - 1)
    pairs = draw(st.lists(st.tuples(ends, ends), unique=True, max_size=14))
    return WorkflowGraph(
        "w",
        tuple(GraphNode(str(i), draw(st.sampled_from(_KINDS)), 8) for i in range(count)),
        tuple(GraphEdge(one, other, draw(st.booleans())) for one, other in pairs),
    )


@given(graph=_graphs(), seed=st.integers(min_value=0, max_value=99), loops=st.integers(1, 3))
def test_any_graph_gives_a_legal_bounded_dag(graph: WorkflowGraph, seed: int, loops: int) -> None:
    stages = _run(graph, seed, loops)
    assert stages == _run(graph, seed, loops)
    assert len({stage.name for stage in stages}) == len(stages)
    for index, stage in enumerate(stages):
        assert all(before < index for before in stage.after)
        assert graph.nodes[stage.node].kind in ("agent", "subgraph")
    # a node is in at most as many cycles within each other as there are nodes
    assert len(stages) <= len(graph.nodes) * loops ** len(graph.nodes)


def _workload(name: str = "all", **options: Any) -> Workload:
    return make_graph_workload(
        load_graphs(SHARED), name, tasks=20, rate=0.1, seed=1, options=GraphOptions(**options)
    )


@real_file
def test_every_real_workflow_loads_and_runs_under_all_policies() -> None:
    graphs = load_graphs(SHARED)
    assert len(graphs) == 45
    assert {name for name, graph in graphs.items() if not graph.calls_model} == NO_CALLS
    for name, graph in graphs.items():
        if name in NO_CALLS:
            continue
        workload = make_graph_workload(graphs, name, tasks=3, rate=0.05, seed=2)
        parts = _parts(len(graph.nodes), [(e.source, e.target) for e in graph.edges])
        for shape in workload.workflows.values():
            links = [(b, i) for i, stage in enumerate(shape.stages) for b in stage.after]
            assert _parts(len(shape.stages), links) <= parts
            assert 1 <= len(shape.stages) <= 40
        for run in compare(workload, list(POLICY_NAMES)).runs:
            assert run.arrived == run.finished == 3, (name, run.policy)
            stages = sum(len(task.stages) for task in workload.tasks)
            assert run.completed_requests == stages


def _parts(count: int, links: list[tuple[int, int]]) -> int:
    """How many connected parts a graph has."""
    part = list(range(count))
    for one, other in links:
        part = [part[one] if p == part[other] else p for p in part]
    return len(set(part))


@real_file
def test_role_prompts_are_prefixes() -> None:
    workload = _workload("ChatDev_v1")
    # 683 characters; a quarter of that, rounded
    assert workload.agents["ChatDev_v1/Programmer Coding"] == 171
    more = _workload("ChatDev_v1", base_prefix_tokens=4000)
    assert more.agents == {agent: 4000 + n for agent, n in workload.agents.items()}
    assert more.tasks == workload.tasks


@real_file
def test_a_mix_says_what_it_leaves_out_and_is_the_same_each_time() -> None:
    workload = _workload()
    assert set(workload.parameters["skipped"]) == NO_CALLS
    assert workload == _workload()
    assert len({task.workflow.split("#")[0] for task in workload.tasks}) > 5
    with pytest.raises(WorkflowError, match=r"'demo_code' never calls the model: .*human, python"):
        _workload("demo_code")
    with pytest.raises(ConfigError, match="workflow: unknown 'x', known are all, ChatDev_v1"):
        _workload("x")


def _good() -> list[dict[str, Any]]:
    return [
        {
            "workflow": "one",
            "nodes": [
                {"id": "A", "type": "agent", "role_chars": 40},
                {"id": "B", "type": "agent", "role_chars": 41},
            ],
            "edges": [{"source": "A", "target": "B", "conditional": False, "trigger": True}],
        }
    ]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((0, "workflow"), "", "0.workflow: "),
        ((0, "nodes"), [], "0.nodes: "),
        ((0, "nodes", 1, "type"), "robot", "0.nodes.1.type: .*'robot'"),
        ((0, "nodes", 1, "role_chars"), -4, "0.nodes.1.role_chars: .*-4"),
        ((0, "nodes", 1, "role_chars"), "4", "0.nodes.1.role_chars: .*'4'"),
        ((0, "nodes", 1, "id"), "A", r"0 \(one\).nodes.1.id: 'A' is given twice"),
        ((0, "edges", 0, "source"), "X", r"0 \(one\).edges.0.source: no node has the id 'X'"),
        ((0, "edges", 0, "target"), "X", r"0 \(one\).edges.0.target: no node has the id 'X'"),
        ((0, "edges", 0, "trigger"), 1, "0.edges.0.trigger: .*1"),
    ],
)
def test_a_wrong_file_is_named(
    tmp_path: Path, path: tuple[Any, ...], value: object, message: str
) -> None:
    workflows: Any = _good()
    place = workflows
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file = tmp_path / "graphs.json"
    file.write_text(json.dumps(workflows))
    with pytest.raises(WorkflowError, match=message):
        load_graphs(file)


def test_of_two_edges_between_nodes_the_one_that_always_fires_decides(tmp_path: Path) -> None:
    file = tmp_path / "graphs.json"
    workflows = _good()
    edge = workflows[0]["edges"][0]
    for second in ({**edge, "conditional": True}, {**edge, "trigger": False}):
        for edges in ([edge, second], [second, edge]):
            workflows[0]["edges"] = edges
            file.write_text(json.dumps(workflows))
            assert load_graphs(file)["one"].edges == (GraphEdge(0, 1, conditional=False),)


def test_files_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "graphs.json"
    for text, message in (
        ("[", "Expecting value"),
        ("[]", "no workflow"),
        ("{}", "valid list"),
        (json.dumps([*_good(), *_good()]), r"1.workflow: 'one' is given twice"),
        (json.dumps([{}] * 9), r"27 faults(\n.*){21}and 7 more"),
    ):
        file.write_text(text)
        with pytest.raises(WorkflowError, match=message):
            load_graphs(file)
    with pytest.raises(WorkflowError, match="nowhere"):
        load_graphs(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "field",
    ["input_tokens", "output_tokens", "base_prefix_tokens", "max_loops", "tool_wait_s",
     "human_wait_s"],
)  # fmt: skip
def test_an_illegal_option_is_named(field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: .*-1"):
        GraphOptions(**{field: -1})


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "graphs.json"
    file.write_text(json.dumps(_good()))

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(app, ["simulate", *arguments])
        if isinstance(result.exception, TopasError):
            raise result.exception
        return json.loads(result.stdout)

    graphs = ("--workflows", str(file), "--tasks", "3", "--policies", "fcfs", "--json")
    report = run(*graphs, "--workflow", "one", "--prefix-tokens", "90", "--max-loops", "2")
    assert report["workload"]["base_prefix_tokens"] == 90
    assert report["workload"]["max_loops"] == 2
    assert report["policies"][0]["completed_requests"] == 6
    for extra, message in (
        (("--prefix-tokens", "1,2"), "prefix_tokens: one number"),
        (("--workflow", "two"), "workflow: unknown 'two'"),
        (("--trace", "x"), "--workflows: is not for --trace"),
        (("chain-3",), "workload: is a built-in workload"),
        (("--token-scale", "1"), "--token-scale: is for --trace only"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(*graphs, *extra)
    with pytest.raises(ConfigError, match="--workflow: is for --workflows only"):
        run("chain-3", "--workflow", "x")
