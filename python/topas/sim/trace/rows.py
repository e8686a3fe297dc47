"""The rows of a trace in the form all readers give, and how wrong ones are named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from topas.errors import TraceError
from topas.sim.checks import file_errors
from topas.sim.trace.graph import Errors, Session, assemble

__all__ = [
    "LATEST_S",
    "MOST_TOKENS",
    "Trace",
    "TraceRow",
    "build_trace",
    "fail",
    "parse_lines",
    "read_lines",
]

#: Times in a trace count from its start, or from the session's; anything above is a wall clock
#: reading (seconds).
LATEST_S = 1e8
#: Far above any prompt; sums of these stay exact.
MOST_TOKENS = 1 << 40
_ERRORS_SHOWN = 20

_Row = TypeVar("_Row", bound=BaseModel)


class TraceRow(BaseModel):
    """One request of a trace; lengths in tokens, times in seconds. Unknown keys are ignored.

    This is also a row of the compact form. ``tool_wait_s`` of a stage's first round runs from the
    end of the predecessor with the same agent (``wait_from="context"``: the wait of an agent that
    goes on in its context) or from the end of all predecessors (``wait_from="release"``).
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    session: str = Field(min_length=1)
    stage: str = Field(min_length=1)
    agent: str = Field(min_length=1)
    round: int = Field(ge=0)
    after: list[str]
    input_tokens: int = Field(ge=0, le=MOST_TOKENS)
    output_tokens: int = Field(ge=1, le=MOST_TOKENS)
    shared_tokens: int = Field(ge=0, le=MOST_TOKENS)
    api_s: float = Field(ge=0, allow_inf_nan=False)
    tool_wait_s: float = Field(ge=0, allow_inf_nan=False)
    t: float = Field(ge=0, le=LATEST_S, allow_inf_nan=False)
    static_prefix_tokens: int | None = Field(default=None, ge=0, le=MOST_TOKENS)
    wait_from: Literal["context", "release"] = "context"


@dataclass(frozen=True)
class Trace:
    """A trace that has been read.

    Parameters
    ----------
    name : str
        The file's name, for reports.
    format : str
        The form it was read from, one of :data:`topas.sim.trace.TRACE_FORMATS` but ``auto``.
    rows : tuple of TraceRow
        In the order of the file.
    sessions : list of Session
        The same rows, grouped into sessions with a DAG of stages.
    skipped : mapping
        How many rows were left out, by reason.
    facts : mapping
        What the reader found and decided, for reports; plain values.
    timed : bool
        Whether the sessions' arrivals are known; without them a rate is needed.
    """

    name: str
    format: str
    rows: tuple[TraceRow, ...]
    sessions: list[Session]
    skipped: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    timed: bool = True


def build_trace(
    path: Path,
    form: str,
    rows: list[tuple[int, TraceRow]],
    errors: Errors,
    *,
    skipped: Mapping[str, int] | None = None,
    facts: Mapping[str, object] | None = None,
    timed: bool = True,
) -> Trace:
    """Group the rows (with their line numbers) into sessions.

    Raises
    ------
    TraceError
        There are errors, rows contradict each other, or there is no row.
    """
    sessions = assemble(rows, errors)
    if not errors and not sessions:
        left_out = f" (skipped: {dict(skipped)})" if skipped else ""
        errors.append((1, f"no row at all{left_out}"))
    if errors:
        fail(path, errors)
    return Trace(
        name=path.name,
        format=form,
        rows=tuple(row for _, row in rows),
        sessions=sessions,
        skipped=skipped or {},
        facts=facts or {},
        timed=timed,
    )


def read_lines(path: Path) -> list[str]:
    """The lines of a text file; only a newline ends one.

    Raises
    ------
    TraceError
        The file cannot be read or is no UTF-8.
    """
    with file_errors(path, TraceError):
        text = path.read_text(encoding="utf-8")
    return text.removesuffix("\n").split("\n") if text else []


def parse_lines(lines: list[str], model: type[_Row], errors: Errors) -> Iterator[tuple[int, _Row]]:
    """Each line as a row of the model, with its number; what is wrong is appended to ``errors``."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            errors.append((number, "blank line"))
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            errors.append((number, f"broken JSON: {error}"))
            continue
        if not isinstance(value, dict):
            errors.append((number, f"not a JSON object but {type(value).__name__}"))
            continue
        try:
            row = model.model_validate(value)
        except ValidationError as error:
            errors.append((number, "; ".join(_field_errors(error))))
            continue
        yield number, row


def _field_errors(error: ValidationError) -> list[str]:
    described = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"])
        if item["type"] == "missing":
            described.append(f"{where}: missing")
        elif where in ("t", "timestamp") and item["type"] == "less_than_equal":
            described.append(
                f"{where}: {item['input']!r} looks like wall clock time, expected "
                f"{'seconds' if where == 't' else 'milliseconds'} from the "
                f"{'session' if where == 't' else 'trace'}'s start"
            )
        else:
            described.append(f"{where}: {item['msg']}, got {item['input']!r}")
    return described


def fail(path: Path, errors: Errors) -> None:
    """Refuse a file: the first 20 wrong rows by line number, and how many there are.

    Raises
    ------
    TraceError
        Always.
    """
    lines = [f"{path}: {len(errors)} wrong row{'s' if len(errors) > 1 else ''}"]
    lines += [f"  line {number}: {what}" for number, what in sorted(errors)[:_ERRORS_SHOWN]]
    if len(errors) > _ERRORS_SHOWN:
        lines.append(f"  ... and {len(errors) - _ERRORS_SHOWN} more")
    raise TraceError("\n".join(lines))
