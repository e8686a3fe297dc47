"""The compact form: one JSON line a request, with session, stage, agent and round by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from topas.sim.trace.graph import Errors
from topas.sim.trace.rows import Trace, TraceRow, build_trace, parse_lines

__all__ = ["compact_lines", "read_compact"]


def read_compact(path: Path, lines: list[str]) -> Trace:
    """Read the compact form (see :class:`~topas.sim.trace.TraceRow`).

    Raises
    ------
    TraceError
        Rows are wrong or contradict each other.
    """
    errors: Errors = []
    rows = list(parse_lines(lines, TraceRow, errors))
    return build_trace(path, "compact", rows, errors)


def compact_lines(rows: Iterable[TraceRow]) -> list[str]:
    """The rows as lines of the compact form; reading them gives equal rows."""
    return [row.model_dump_json(exclude_defaults=True) for row in rows]
