"""From the rows of a trace to sessions with a DAG of stages; faults are named by line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topas.sim.trace.rows import TraceRow

__all__ = ["Errors", "Segment", "Session", "assemble", "static_prefixes"]

#: What is wrong, with the number of the line.
Errors = list[tuple[int, str]]


@dataclass(frozen=True)
class Segment:
    """A stage of a session: its rows in order of the rounds."""

    name: str
    agent: str
    after: tuple[str, ...]
    rows: list[TraceRow]


@dataclass(frozen=True)
class Session:
    """A session: its stages in topological order, those that began earlier first."""

    name: str
    segments: list[Segment]


def assemble(rows: list[tuple[int, TraceRow]], errors: Errors) -> list[Session]:
    """Group rows, which may come in any order, into sessions (by first appearance) and stages.

    Parameters
    ----------
    rows : list of tuple of int and TraceRow
        Rows with their line numbers.
    errors : list of tuple of int and str
        What is wrong is appended here: a round given twice or missing, another agent in one stage,
        predecessors on a later round, an unknown predecessor, a cycle.
    """
    grouped: dict[str, dict[str, list[tuple[int, TraceRow]]]] = {}
    for number, row in rows:
        grouped.setdefault(row.session, {}).setdefault(row.stage, []).append((number, row))
    broken = bool(errors)
    sessions = []
    for name, stages in grouped.items():
        segments = {
            stage: _segment(stage, items, errors, broken) for stage, items in stages.items()
        }
        lines = {stage: min(number for number, _ in items) for stage, items in stages.items()}
        ordered = _sort(name, segments, lines, errors, broken)
        sessions.append(Session(name, ordered))
    return sessions


def _segment(
    stage: str, items: list[tuple[int, TraceRow]], errors: Errors, broken: bool
) -> Segment:
    ordered = sorted(items, key=lambda item: (item[1].round, item[0]))
    first = ordered[0][1]
    rows: list[TraceRow] = []
    for number, row in ordered:
        if rows and row.round == rows[-1].round:
            errors.append((number, f"round {row.round} of stage {stage!r} is given twice"))
            continue
        if row.round != len(rows) and not broken:  # a row that was refused may be the missing one
            errors.append((number, f"stage {stage!r}: round {row.round} follows {len(rows) - 1}"))
        if row.agent != first.agent:
            errors.append((number, f"stage {stage!r} has agents {first.agent!r} and {row.agent!r}"))
        if row.round > 0 and row.after:
            errors.append((number, f"after: only the first round of stage {stage!r} may have it"))
        rows.append(row)
    return Segment(stage, first.agent, tuple(dict.fromkeys(first.after)), rows)


def _sort(
    session: str,
    segments: Mapping[str, Segment],
    lines: Mapping[str, int],
    errors: Errors,
    broken: bool,
) -> list[Segment]:
    """Stages in topological order; among those that are possible, by start and name."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, segment in segments.items():
        known = [before for before in segment.after if before in segments]
        if not broken:
            for before in segment.after:
                if before not in segments:
                    what = f"after: session {session!r} has no stage {before!r}"
                    errors.append((lines[name], what))
        sorter.add(name, *known)
    try:
        sorter.prepare()
    except CycleError as error:
        path = " -> ".join(reversed(error.args[1]))
        errors.append((lines[error.args[1][0]], f"session {session!r} has a cycle: {path}"))
        return []
    ordered: list[Segment] = []
    ready = list(sorter.get_ready())
    while ready:
        ready.sort(key=lambda name: (segments[name].rows[0].t, name))
        name = ready.pop(0)
        ordered.append(segments[name])
        sorter.done(name)
        ready.extend(sorter.get_ready())
    return ordered


def static_prefixes(sessions: list[Session]) -> dict[str, int]:
    """Static prefix of each agent as recorded, tokens: the smallest that a stage of it shows."""
    prefixes: dict[str, int] = {}
    for session in sessions:
        for segment in session.segments:
            known = [r.static_prefix_tokens for r in segment.rows]
            found = [tokens for tokens in known if tokens is not None]
            if not found:
                found = [segment.rows[0].input_tokens]
                if len(segment.rows) > 1:
                    found.append(segment.rows[1].shared_tokens)
            least = min(found)
            prefixes[segment.agent] = min(prefixes.get(segment.agent, least), least)
    return prefixes
