"""From linked Mooncake requests to rows with sessions, stages, rounds and agents."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from topas.sim.trace.prefix_tree import PrefixTree
from topas.sim.trace.rows import TraceRow

__all__ = ["Request", "to_rows"]

#: Agent of the requests that share no static prefix.
UNSHARED = "unshared"


@dataclass(eq=False)
class Request:
    """A request of a Mooncake trace and its links; times in seconds.

    ``blocks`` are the ids of the full blocks, ``tail`` that of the partial one, if any.
    """

    line: int
    id: str | None
    session: str | None
    time_s: float | None
    input_tokens: int
    output_tokens: int
    blocks: tuple[int | str, ...]
    tail: tuple[int | str, ...]
    wait_for: tuple[str, ...]
    branches: tuple[str, ...]
    delay_s: float | None
    tool_wait_s: float
    prefix_reset: bool
    wait_s: float = 0.0
    parents: list[Request] = field(default_factory=list)
    children: list[Request] = field(default_factory=list)

    def link(self, before: Request) -> None:
        """Make this request wait for another one."""
        if before not in self.parents:
            self.parents.append(before)
            before.children.append(self)


@dataclass
class _Stage:
    """A stage: its requests are rounds of one agent, one after another."""

    name: str
    agent: str
    prefix_blocks: int
    rounds: list[Request]


def to_rows(
    requests: list[Request], tree: PrefixTree
) -> tuple[list[tuple[int, TraceRow]], dict[str, object]]:
    """Group linked requests into tasks, stages and rounds.

    Requests that are linked or have a ``session_id`` in common are one task. A request is a
    further round of its predecessor's stage if it is its only successor and waits for it alone, in
    the same session and context; else a stage begins. Agents are the static prefixes.

    Returns
    -------
    tuple of list and dict
        Rows with their line numbers, and what was found, for reports.
    """
    order = _order(requests)
    agents = _Agents(tree)
    stages = _stages(order, agents)
    times = _times(order)
    rows = []
    for name, members in _tasks(requests).items():
        start = min(times[r.line] for r in members)
        rows += [
            (r.line, _row(name, r, stages, times[r.line], start, tree.block_tokens))
            for r in members
        ]
    rows.sort(key=lambda item: item[0])
    facts: dict[str, object] = {
        "static_prefixes_found": len(agents.names),
        "static_prefix_shared_by": tree.min_share,
        "rows_without_static_prefix": sum(s.prefix_blocks == 0 for s in stages.values()),
        "rows_without_hash_ids": sum(not r.blocks and not r.tail for r in requests),
        "turns_without_common_head": sum(
            _common(r.parents[0], r) == 0 for r in requests if len(r.parents) == 1
        ),
    }
    return rows, facts


def _stages(order: list[Request], agents: _Agents) -> dict[int, _Stage]:
    """The stage of each request, by its line."""
    stages: dict[int, _Stage] = {}
    for request in order:
        before = request.parents[0] if len(request.parents) == 1 else None
        stage = stages[before.line] if before is not None else None
        if before is None or stage is None or not _goes_on(before, request, stage):
            agent, blocks = agents.of(request)
            name = request.id or f"line-{request.line}"
            stage = _Stage(name, agent, blocks, [])
        stage.rounds.append(request)
        stages[request.line] = stage
    return stages


class _Agents:
    """Names of the static prefixes, in order of their first use."""

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self.names: dict[int, str] = {}

    def of(self, request: Request) -> tuple[str, int]:
        node, depth = self._tree.static_node(request)
        if depth == 0:
            return UNSHARED, 0
        return self.names.setdefault(node, f"prefix-{len(self.names) + 1}"), depth


def _order(requests: list[Request]) -> list[Request]:
    """Topological; among the possible ones by time and line."""
    by_line = {request.line: request for request in requests}
    sorter = TopologicalSorter({r.line: [p.line for p in r.parents] for r in requests})
    sorter.prepare()
    ordered: list[Request] = []
    while sorter.is_active():
        ready = sorted(
            (by_line[line] for line in sorter.get_ready()),
            key=lambda r: (r.time_s if r.time_s is not None else 0.0, r.line),
        )
        ordered += ready
        sorter.done(*(request.line for request in ready))
    return ordered


def _goes_on(before: Request, request: Request, stage: _Stage) -> bool:
    return (
        len(before.children) == 1
        and before.session == request.session
        and not request.prefix_reset
        and (request.id is None or request.id not in before.branches)
        and request.blocks[: stage.prefix_blocks] == before.blocks[: stage.prefix_blocks]
    )


def _common(before: Request, request: Request) -> int:
    """How many full blocks two requests begin with in common."""
    count = 0
    for one, other in zip(before.blocks, request.blocks, strict=False):
        if one != other:
            break
        count += 1
    return count


def _times(order: list[Request]) -> dict[int, float]:
    """Start of each request, seconds; where it is not given, the earliest possible one."""
    times: dict[int, float] = {}
    for request in order:
        if request.time_s is not None:
            times[request.line] = request.time_s
        else:
            latest = max((times[parent.line] for parent in request.parents), default=0.0)
            times[request.line] = latest + request.wait_s
    return times


def _tasks(requests: list[Request]) -> dict[str, list[Request]]:
    """Connected requests by the task's name: its session's or first request's id, or its line."""
    root: dict[int, int] = {request.line: request.line for request in requests}

    def find(line: int) -> int:
        while root[line] != line:
            root[line] = root[root[line]]
            line = root[line]
        return line

    def join(one: int, other: int) -> None:
        low, high = sorted((find(one), find(other)))
        root[high] = low

    first_of: dict[str, int] = {}
    for request in requests:
        for parent in request.parents:
            join(request.line, parent.line)
        if request.session is not None:
            join(request.line, first_of.setdefault(request.session, request.line))
    groups: dict[int, list[Request]] = defaultdict(list)
    for request in requests:
        groups[find(request.line)].append(request)
    tasks: dict[str, list[Request]] = {}
    for members in groups.values():
        first = members[0]
        name = first.session or first.id or f"line-{first.line}"
        tasks[name if name not in tasks else f"{name}#{first.line}"] = members
    return tasks


def _row(
    task: str,
    request: Request,
    stages: dict[int, _Stage],
    time_s: float,
    start_s: float,
    block_tokens: int,
) -> TraceRow:
    stage = stages[request.line]
    index = next(i for i, r in enumerate(stage.rounds) if r is request)
    after = [] if index else list(dict.fromkeys(stages[p.line].name for p in request.parents))
    shared = _common(stage.rounds[index - 1], request) * block_tokens if index else 0
    return TraceRow(
        session=task,
        stage=stage.name,
        agent=stage.agent,
        round=index,
        after=after,
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        shared_tokens=shared,
        api_s=0.0,
        tool_wait_s=request.wait_s if request.parents else time_s - start_s,
        t=time_s,
        static_prefix_tokens=stage.prefix_blocks * block_tokens,
        wait_from="context" if index else "release",
    )
