"""Workflow graphs of real multi-agent applications (ChatDev's form) as workloads.

The file is a JSON list of workflows: ``workflow`` (name), ``nodes`` (``id``, ``type``,
``role_chars``) and ``edges`` (``source``, ``target``, ``conditional``, ``trigger``). Agents and
subgraphs call the model; Python and human nodes are waits; literals, passthroughs and loop counters
are contracted. A task is one run, drawn by seed (:mod:`topas.sim.graph_unroll`); runs of the same
shape share a workflow. A role's prompt is its agent's static prefix, at 4 characters a token.

A policy is told the drawn DAG of a task on its arrival, as it is with recorded sessions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from topas.errors import ConfigError, WorkflowError
from topas.sim.builtin import poisson_arrivals
from topas.sim.checks import check_int, check_number, file_errors
from topas.sim.draws import lognormal_tokens, stream
from topas.sim.graph_unroll import (
    GraphEdge,
    GraphNode,
    UnrolledStage,
    WorkflowGraph,
    unroll,
)
from topas.sim.workload import Round, StageShape, Task, WorkflowShape, Workload

__all__ = ["CHARS_PER_TOKEN", "GraphOptions", "WorkflowGraph", "load_graphs", "make_graph_workload"]

#: Characters of a role prompt that make a token.
CHARS_PER_TOKEN = 4

_ERRORS_SHOWN = 20
_MOST_DRAWS = 100
# Purposes of random streams; the numbers are part of "same seed, same bytes".
_WHICH, _RUN = 3, 4


class _Node(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    id: str = Field(min_length=1)
    type: Literal[
        "agent",
        "subgraph",
        "python",
        "human",
        "passthrough",
        "literal",
        "loop_counter",
        "loop_timer",
    ]
    role_chars: int = Field(ge=0)


class _Edge(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    source: str
    target: str
    conditional: bool = False
    trigger: bool = True


class _Workflow(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    workflow: str = Field(min_length=1)
    nodes: list[_Node] = Field(min_length=1)
    edges: list[_Edge]


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """What a file of graphs does not say.

    Parameters
    ----------
    input_tokens, output_tokens : int
        Mean dynamic input and generation of a call (lognormal, as in the MetaGPT workloads).
    base_prefix_tokens : int
        Added to each role prompt: what all agents have besides, such as tool descriptions.
    max_loops : int
        Most passes of a loop, at least 1.
    tool_wait_s, human_wait_s : float
        Mean time of a Python and of a human node, seconds (exponential).

    Raises
    ------
    ConfigError
        A field is of the wrong type or out of range; the message names it.
    """

    input_tokens: int = 1400
    output_tokens: int = 700
    base_prefix_tokens: int = 0
    max_loops: int = 3
    tool_wait_s: float = 3.0
    human_wait_s: float = 30.0

    def __post_init__(self) -> None:
        check_int("input_tokens", self.input_tokens, minimum=1)
        check_int("output_tokens", self.output_tokens, minimum=1)
        check_int("base_prefix_tokens", self.base_prefix_tokens, minimum=0)
        check_int("max_loops", self.max_loops, minimum=1)
        check_number("tool_wait_s", self.tool_wait_s)
        check_number("human_wait_s", self.human_wait_s)


def load_graphs(path: str | Path) -> dict[str, WorkflowGraph]:
    """Read a file of workflow graphs.

    Returns
    -------
    dict
        The graphs by name, in the order of the file.

    Raises
    ------
    WorkflowError
        The file cannot be read or something in it is wrong: the first 20 faults by workflow and
        field, and how many there are.
    """
    with file_errors(path, WorkflowError):
        text = Path(path).read_text(encoding="utf-8")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WorkflowError(f"{path}: not JSON: {error}") from error
    faults: list[str] = []
    workflows: list[_Workflow] = []
    try:
        workflows = TypeAdapter(list[_Workflow]).validate_python(value)
    except ValidationError as error:
        for item in error.errors():
            where = ".".join(str(part) for part in item["loc"]) or "file"
            got = "" if item["type"] == "missing" else f", got {item['input']!r}"
            faults.append(f"{where}: {item['msg']}{got}")
    graphs: dict[str, WorkflowGraph] = {}
    for index, workflow in enumerate(workflows):
        if workflow.workflow in graphs:
            faults.append(f"{index}.workflow: {workflow.workflow!r} is given twice")
        graphs[workflow.workflow] = _graph(index, workflow, faults)
    if not faults and not graphs:
        faults.append("file: no workflow")
    if faults:
        lines = [f"{path}: {len(faults)} fault{'s' if len(faults) > 1 else ''}"]
        lines += [f"  {fault}" for fault in faults[:_ERRORS_SHOWN]]
        if len(faults) > _ERRORS_SHOWN:
            lines.append(f"  ... and {len(faults) - _ERRORS_SHOWN} more")
        raise WorkflowError("\n".join(lines))
    return graphs


def _graph(number: int, workflow: _Workflow, faults: list[str]) -> WorkflowGraph:
    where = f"{number} ({workflow.workflow})"
    position: dict[str, int] = {}
    for index, node in enumerate(workflow.nodes):
        if node.id in position:
            faults.append(f"{where}.nodes.{index}.id: {node.id!r} is given twice")
        position.setdefault(node.id, index)
    conditional: dict[tuple[int, int], bool] = {}
    for index, edge in enumerate(workflow.edges):
        ends = (position.get(edge.source), position.get(edge.target))
        for name, end in zip(("source", "target"), ends, strict=True):
            if end is None:
                value = getattr(edge, name)
                faults.append(f"{where}.edges.{index}.{name}: no node has the id {value!r}")
        if None not in ends and edge.trigger:
            # Of two edges between the same nodes, one that always fires decides.
            pair = (position[edge.source], position[edge.target])
            conditional[pair] = conditional.get(pair, True) and edge.conditional
    return WorkflowGraph(
        workflow.workflow,
        tuple(GraphNode(node.id, node.type, node.role_chars) for node in workflow.nodes),
        tuple(GraphEdge(*pair, may_not) for pair, may_not in conditional.items()),
    )


def make_graph_workload(
    graphs: Mapping[str, WorkflowGraph],
    name: str = "all",
    *,
    tasks: int,
    rate: float,
    seed: int = 0,
    options: GraphOptions | None = None,
) -> Workload:
    """Runs of one workflow, or of all in a mix.

    Parameters
    ----------
    graphs : mapping
        From :func:`load_graphs`.
    name : str
        One of them, or ``all``: each task is a run of one that calls the model, drawn by seed.
    tasks : int
        Number of tasks, at least 1.
    rate : float
        Poisson arrival rate, tasks per second.
    seed : int
        Seed of arrivals, choices, lengths and waits, at least 0.
    options : GraphOptions, optional
        Lengths, loops and waits.

    Raises
    ------
    ConfigError
        The name is unknown or an argument is not legal.
    WorkflowError
        The workflow never calls the model.
    """
    options = options or GraphOptions()
    chosen, left_out = _chosen(graphs, name)
    arrivals = poisson_arrivals(tasks, rate, seed)
    which = stream(seed, _WHICH)
    shapes = _Shapes(options)
    built = []
    for index, arrival in enumerate(arrivals):
        graph = chosen[int(which.integers(len(chosen)))] if len(chosen) > 1 else chosen[0]
        draw = stream(seed, _RUN, index)
        stages = _draw_run(graph, draw, options)
        rounds = tuple((_round(stage, draw, options),) for stage in stages)
        built.append(Task(index, arrival, shapes.name_of(graph, stages), rounds))
    parameters: dict[str, object] = {
        "tasks": tasks,
        "rate": rate,
        "seed": seed,
        "workflow": name,
        **asdict(options),
        "chars_per_token": CHARS_PER_TOKEN,
        "shapes": len(shapes.workflows),
        "skipped": dict.fromkeys(left_out, "never calls the model"),
    }
    return Workload(name, shapes.agents, shapes.workflows, tuple(built), parameters)


def _chosen(
    graphs: Mapping[str, WorkflowGraph], name: str
) -> tuple[list[WorkflowGraph], list[str]]:
    """The graphs of that name that call the model, and the names of the others."""
    if name != "all" and name not in graphs:
        raise ConfigError(f"workflow: unknown {name!r}, known are all, {', '.join(graphs)}")
    asked = list(graphs.values()) if name == "all" else [graphs[name]]
    chosen = [graph for graph in asked if graph.calls_model]
    if not chosen:
        kinds = ", ".join(sorted({node.kind for graph in asked for node in graph.nodes}))
        raise WorkflowError(f"workflow {name!r} never calls the model: its nodes are {kinds}")
    return chosen, [graph.name for graph in asked if not graph.calls_model]


def _draw_run(
    graph: WorkflowGraph, draw: np.random.Generator, options: GraphOptions
) -> list[UnrolledStage]:
    """A run with at least one call of the model; others are drawn again."""
    waits = {"python": options.tool_wait_s, "human": options.human_wait_s}
    for _ in range(_MOST_DRAWS):
        stages = unroll(graph, draw, options.max_loops, waits)
        if stages:
            return stages
    raise WorkflowError(f"workflow {graph.name!r}: no node that calls the model is reached")


def _round(stage: UnrolledStage, draw: np.random.Generator, options: GraphOptions) -> Round:
    return Round(
        lognormal_tokens(options.input_tokens, 0.3, draw),
        lognormal_tokens(options.output_tokens, 0.5, draw),
        stage.wait_s,
    )


class _Shapes:
    """The drawn DAGs by name, each once, and the agents in them."""

    def __init__(self, options: GraphOptions) -> None:
        self._options = options
        self._known: dict[tuple[str, tuple[StageShape, ...]], str] = {}
        self._count: dict[str, int] = {}
        self.workflows: dict[str, WorkflowShape] = {}
        self.agents: dict[str, int] = {}

    def name_of(self, graph: WorkflowGraph, run: Sequence[UnrolledStage]) -> str:
        """Name of the run's shape: the workflow's, with a number from the second shape on."""
        stages = tuple(self._stage(graph, stage) for stage in run)
        known = self._known.get((graph.name, stages))
        if known is not None:
            return known
        self._count[graph.name] = count = self._count.get(graph.name, 0) + 1
        name = graph.name if count == 1 else f"{graph.name}#{count}"
        self._known[graph.name, stages] = name
        self.workflows[name] = WorkflowShape(name, stages)
        return name

    def _stage(self, graph: WorkflowGraph, stage: UnrolledStage) -> StageShape:
        node = graph.nodes[stage.node]
        agent = f"{graph.name}/{node.id}"
        prefix = self._options.base_prefix_tokens + round(node.role_chars / CHARS_PER_TOKEN)
        self.agents.setdefault(agent, prefix)
        return StageShape(
            stage.name,
            agent,
            stage.after,
            input_tokens=float(self._options.input_tokens),
            output_tokens=float(self._options.output_tokens),
        )
