"""Writing sessions as agentic Mooncake rows."""

from __future__ import annotations

import json
from dataclasses import dataclass

from topas.sim.trace.graph import Segment, Session, static_prefixes
from topas.sim.trace.rows import TraceRow

__all__ = ["mooncake_lines"]


@dataclass
class _Context:
    """What an agent has in its context after a request."""

    id: str
    row: TraceRow
    blocks: list[int]


def mooncake_lines(sessions: list[Session], block_tokens: int) -> list[str]:
    """Sessions as rows of the agentic form (``request_id``, ``wait_for``, ``branches`` and so on).

    ``session_id`` is a context: a stage and the later ones of the same agent that go on from it. An
    agent's static prefix becomes block ids of its own, rounded down to whole blocks; what a round
    shares with the round before becomes common ids; everything else is new ids. A first round's
    wait is counted from the end of all its predecessors, as that form does, with the recorded times
    where the compact form counts it from the context's last request.
    """
    writer = _Writer(sessions, block_tokens)
    return [json.dumps(row) for session in sessions for row in writer.session(session)]


class _Writer:
    """Gives out block ids; they are unique in the file but for what is shared."""

    def __init__(self, sessions: list[Session], block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._next = 0
        self._static = {
            agent: self._fresh(tokens // block_tokens)
            for agent, tokens in static_prefixes(sessions).items()
        }

    def session(self, session: Session) -> list[dict[str, object]]:
        stages = {segment.name: segment for segment in session.segments}
        contexts: dict[str, _Context] = {}
        start = min(segment.rows[0].t for segment in session.segments)
        rows: dict[str, dict[str, object]] = {}
        taken: set[str] = set()
        for segment in session.segments:
            before = [
                name
                for name in segment.after
                if stages[name].agent == segment.agent and name not in taken
            ]
            context = contexts[before[-1]] if before else None
            taken.update(before[-1:])
            trajectory = context.id if context else f"{session.name}/{segment.name}"
            for row in segment.rows:
                blocks = self._blocks(row, context)
                request = _request_id(session.name, row)
                rows[request] = {
                    "request_id": request,
                    "session_id": trajectory,
                    "input_length": row.input_tokens,
                    "output_length": row.output_tokens,
                    "hash_ids": blocks,
                    "timestamp": row.t * 1e3,
                    "prefix_reset": context is None,
                }
                if row.round:
                    assert context is not None
                    rows[request]["wait_for"] = [_request_id(session.name, context.row)]
                    rows[request]["tool_wait_ms"] = row.tool_wait_s * 1e3
                context = _Context(trajectory, row, blocks)
            assert context is not None
            contexts[segment.name] = context
            self._first_waits(session, segment, stages, rows, start)
        for segment in session.segments:
            for name in segment.after:
                if contexts[name].id != contexts[segment.name].id:
                    parent = rows[_request_id(session.name, stages[name].rows[-1])]
                    children = parent.setdefault("branches", [])
                    assert isinstance(children, list)
                    children.append(_request_id(session.name, segment.rows[0]))
        return list(rows.values())

    def _first_waits(
        self,
        session: Session,
        segment: Segment,
        stages: dict[str, Segment],
        rows: dict[str, dict[str, object]],
        start: float,
    ) -> None:
        first = segment.rows[0]
        written = rows[_request_id(session.name, first)]
        if not segment.after:
            written["timestamp"] = (start + first.tool_wait_s) * 1e3
            return
        last = [stages[name].rows[-1] for name in segment.after]
        written["wait_for"] = [_request_id(session.name, row) for row in last]
        written["tool_wait_ms"] = _wait_after_all(segment, first, last) * 1e3

    def _blocks(self, row: TraceRow, context: _Context | None) -> list[int]:
        full = row.input_tokens // self._block_tokens
        static = self._static[row.agent][:full]
        kept = 0
        if context is not None:
            full_before = context.row.input_tokens // self._block_tokens
            kept = min(row.shared_tokens // self._block_tokens, full_before, full)
        head = context.blocks[:kept] if context is not None and kept > len(static) else static
        return head + self._fresh(-(-row.input_tokens // self._block_tokens) - len(head))

    def _fresh(self, count: int) -> list[int]:
        first, self._next = self._next, self._next + count
        return list(range(first, self._next))


def _request_id(session: str, row: TraceRow) -> str:
    return f"{session}/{row.stage}/{row.round}"


def _wait_after_all(segment: Segment, first: TraceRow, last: list[TraceRow]) -> float:
    """The wait before a stage from the end of all its predecessors, seconds."""
    same = any(row.agent == segment.agent for row in last)
    if first.wait_from == "release" or not same or len(last) == 1:
        return first.tool_wait_s
    gap = first.t - max(row.t + row.api_s for row in last)
    return min(max(gap, 0.0), first.tool_wait_s)
