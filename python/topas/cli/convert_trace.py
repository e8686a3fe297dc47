"""``topas convert-trace``: a trace in one form to another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from topas.sim.trace import TRACE_FORMATS, WRITE_FORMATS, read_trace, write_trace

__all__ = ["convert_trace"]


def convert_trace(
    source: Annotated[Path, typer.Argument(help="Trace to read.")],
    target: Annotated[Path, typer.Argument(help="File to write.")],
    to: Annotated[str, typer.Option(help=f"Form to write: {', '.join(WRITE_FORMATS)}.")],
    trace_format: Annotated[
        str, typer.Option(help=f"Form to read: {', '.join(TRACE_FORMATS)}.")
    ] = "auto",
    block_tokens: Annotated[
        int, typer.Option(help="Mooncake: tokens of a block of hash_ids, read and written.")
    ] = 512,
) -> None:
    """Convert a trace; what was read, found, left out and written is said on stderr."""
    trace = read_trace(source, form=trace_format, block_tokens=block_tokens)
    written = write_trace(trace, target, form=to, block_tokens=block_tokens)
    left_out = ", ".join(f"{count} {reason}" for reason, count in trace.skipped.items())
    found = "".join(f"  {name}: {value}\n" for name, value in trace.facts.items())
    sys.stderr.write(
        f"{source}: {trace.format}, {len(trace.sessions)} sessions, {len(trace.rows)} requests"
        f"; left out: {left_out or 'none'}\n{found}{target}: {to}, {written} lines\n"
    )
