"""One run of a workflow graph, drawn by seed: the stages that happen and what each waits for.

Execution follows ChatDev's engine (its ``execution_logic`` guide): edges that trigger give the
order, the others only carry context; a node runs when one of its incoming edges has fired; a cycle
runs in passes from its entry until an edge out of it fires, its entry is not triggered again or the
passes are used up. Nested cycles do the same inside a pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter

import numpy as np

__all__ = ["GraphEdge", "GraphNode", "UnrolledStage", "WorkflowGraph", "unroll"]

#: Kinds of nodes that call the model. What a subgraph holds is not in the file: it is one call.
LLM_KINDS = ("agent", "subgraph")
#: Kinds that pass a message on after a wait.
WAIT_KINDS = ("python", "human")
#: Kinds that swallow messages until the last pass of their loop.
COUNTER_KINDS = ("loop_counter", "loop_timer")
#: Kinds that only pass a message on.
PASS_KINDS = ("passthrough", "literal")


@dataclass(frozen=True)
class GraphNode:
    """A node: its id, its kind and the length of its role prompt, characters."""

    id: str
    kind: str
    role_chars: int


@dataclass(frozen=True)
class GraphEdge:
    """An edge between two nodes, by their index; only such as trigger the target are kept."""

    source: int
    target: int
    conditional: bool


@dataclass(frozen=True)
class WorkflowGraph:
    """A workflow as a graph that may have cycles.

    Parameters
    ----------
    name : str
        Unique in its file.
    nodes : tuple of GraphNode
        In the order of the file.
    edges : tuple of GraphEdge
        At most one between two nodes in a direction.
    """

    name: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]

    @property
    def calls_model(self) -> bool:
        """Whether a node calls the model at all."""
        return any(node.kind in LLM_KINDS for node in self.nodes)

    @cached_property
    def out(self) -> tuple[tuple[GraphEdge, ...], ...]:
        """The edges that leave each node."""
        result: list[list[GraphEdge]] = [[] for _ in self.nodes]
        for edge in self.edges:
            result[edge.source].append(edge)
        return tuple(tuple(edges) for edges in result)

    @cached_property
    def _components(self) -> dict[tuple[frozenset[int], int | None], list[frozenset[int]]]:
        return {}

    def components(self, scope: frozenset[int], entry: int | None) -> list[frozenset[int]]:
        """Strongly connected components in topological order, without the edges into ``entry``."""
        known = self._components.get((scope, entry))
        if known is None:
            known = self._find_components(scope, entry)
            self._components[scope, entry] = known
        return known

    def is_cycle(self, component: frozenset[int]) -> bool:
        """Whether a component is more than one node without an edge to itself."""
        first = min(component)
        return len(component) > 1 or any(edge.target == first for edge in self.out[first])

    def starts(self) -> list[int]:
        """Where a run begins: in each component that no other triggers.

        In a cycle it is the first node that calls the model, else the first; files name none.
        """
        everything = frozenset(range(len(self.nodes)))
        starts = []
        for component in self.components(everything, None):
            if any(e.target in component and e.source not in component for e in self.edges):
                continue
            callers = [i for i in sorted(component) if self.nodes[i].kind in LLM_KINDS]
            starts.append(callers[0] if callers else min(component))
        return starts

    def _find_components(self, scope: frozenset[int], entry: int | None) -> list[frozenset[int]]:
        reach = {node: self._reach(node, scope, entry) for node in sorted(scope)}
        component = {
            node: frozenset([node, *(other for other in found if node in reach[other])])
            for node, found in reach.items()
        }
        sorter: TopologicalSorter[frozenset[int]] = TopologicalSorter()
        for node in sorted(scope):
            sorter.add(component[node])
            for edge in self.out[node]:
                inside = edge.target in scope and edge.target != entry
                if inside and component[edge.target] != component[node]:
                    sorter.add(component[edge.target], component[node])
        return list(sorter.static_order())

    def _reach(self, node: int, scope: frozenset[int], entry: int | None) -> set[int]:
        found: set[int] = set()
        todo = [node]
        while todo:
            for edge in self.out[todo.pop()]:
                target = edge.target
                if target in scope and target != entry and target not in found:
                    found.add(target)
                    todo.append(target)
        return found


@dataclass(frozen=True)
class UnrolledStage:
    """A call of the model in one run: the n-th of its node.

    ``after`` are the indexes of the calls before; ``wait_s`` is the time that people and tools in
    between take after the last of them, seconds.
    """

    name: str
    node: int
    after: tuple[int, ...]
    wait_s: float


@dataclass(frozen=True)
class _Message:
    """What goes along an edge: the calls it comes from, and the wait since."""

    calls: frozenset[int]
    wait_s: float


def unroll(
    graph: WorkflowGraph, draw: np.random.Generator, max_loops: int, waits: dict[str, float]
) -> list[UnrolledStage]:
    """Draw one run.

    Of a node's conditional edges one fires, each as likely; a single one fires half the time. In
    the last pass of a cycle a node with conditional edges out of it takes one of those.

    Parameters
    ----------
    graph : WorkflowGraph
        The workflow.
    draw : numpy.random.Generator
        Source of the choices and waits.
    max_loops : int
        Most passes of a cycle, at least 1; loop counters and timers let through on this one.
    waits : dict
        Mean wait by kind of node, seconds (exponential).

    Returns
    -------
    list of UnrolledStage
        In topological order; empty where no call was reached.
    """
    run = _Run(graph, draw, max_loops, waits)
    for start in graph.starts():
        run.pending[start].append(_Message(frozenset(), 0.0))
    run.scope(frozenset(range(len(graph.nodes))), None, ())
    return run.stages


@dataclass
class _Run:
    """The state of a run: messages that wait at each node, calls so far, edges that fired."""

    graph: WorkflowGraph
    draw: np.random.Generator
    max_loops: int
    waits: dict[str, float]
    stages: list[UnrolledStage] = field(default_factory=list)
    fired: list[GraphEdge] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pending: list[list[_Message]] = [[] for _ in self.graph.nodes]
        self._visits = [0] * len(self.graph.nodes)
        self._counted = [0] * len(self.graph.nodes)

    def scope(
        self, nodes: frozenset[int], entry: int | None, leave: tuple[frozenset[int], ...]
    ) -> None:
        """Run the nodes that are triggered, once each; cycles in passes."""
        for component in self.graph.components(nodes, entry):
            if component != frozenset([entry]) and self.graph.is_cycle(component):
                self._cycle(component, leave)
            else:
                self._visit(min(component), leave)

    def _cycle(self, nodes: frozenset[int], leave: tuple[frozenset[int], ...]) -> None:
        for passed in range(1, self.max_loops + 1):
            entry = next((node for node in sorted(nodes) if self.pending[node]), None)
            if entry is None:
                break
            mark = len(self.fired)
            self.scope(nodes, entry, (*leave, nodes) if passed == self.max_loops else leave)
            if any(e.source in nodes and e.target not in nodes for e in self.fired[mark:]):
                break
        for node in nodes:
            self.pending[node] = []

    def _visit(self, index: int, leave: tuple[frozenset[int], ...]) -> None:
        messages, self.pending[index] = self.pending[index], []
        if not messages:
            return
        calls = frozenset().union(*(message.calls for message in messages))
        wait_s = max(message.wait_s for message in messages)
        node = self.graph.nodes[index]
        if node.kind in LLM_KINDS:
            self._visits[index] += 1
            name = node.id if self._visits[index] == 1 else f"{node.id} ({self._visits[index]})"
            self.stages.append(UnrolledStage(name, index, tuple(sorted(calls)), wait_s))
            sent = _Message(frozenset([len(self.stages) - 1]), 0.0)
        else:
            if node.kind in COUNTER_KINDS:
                self._counted[index] = (self._counted[index] + 1) % self.max_loops
                if self._counted[index]:
                    return
            mean = self.waits.get(node.kind, 0.0)
            own = mean * float(self.draw.standard_exponential()) if mean else 0.0
            sent = _Message(calls, wait_s + own)
        for edge in self._chosen(index, leave):
            self.fired.append(edge)
            self.pending[edge.target].append(sent)

    def _chosen(self, index: int, leave: tuple[frozenset[int], ...]) -> list[GraphEdge]:
        edges = self.graph.out[index]
        chosen = [edge for edge in edges if not edge.conditional]
        options = [edge for edge in edges if edge.conditional]
        must = False
        for nodes in leave:
            leaving = [edge for edge in options if edge.target not in nodes]
            if leaving:
                options, must = leaving, True
        if len(options) > 1:
            chosen.append(options[int(self.draw.integers(len(options)))])
        elif options and (must or self.draw.integers(2)):
            chosen += options
        return chosen
