"""The forms of a trace: which one a file has, and the readers and writers by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from topas.errors import TraceError
from topas.sim.checks import check_choice, check_int, file_errors
from topas.sim.trace.bench import read_bench
from topas.sim.trace.compact import compact_lines, read_compact
from topas.sim.trace.mooncake import read_mooncake
from topas.sim.trace.mooncake_write import mooncake_lines
from topas.sim.trace.rows import Trace, read_lines

__all__ = ["TRACE_FORMATS", "WRITE_FORMATS", "detect_format", "read_trace", "write_trace"]

#: Forms that are read.
TRACE_FORMATS: tuple[str, ...] = ("auto", "compact", "mooncake", "sglang-bench", "vllm-bench")
#: Forms that are written.
WRITE_FORMATS: tuple[str, ...] = ("compact", "mooncake")

_COMPACT_KEYS = {"session", "stage", "round", "input_tokens"}
_MOONCAKE_KEYS = {"hash_ids", "input_length", "output_length", "wait_for", "created_time", "schema"}
# Only SGLang's benchmark writes the first, only vLLM's the second kind of key.
_SGLANG_KEYS = {"total_output_tokens_retokenized", "sharegpt_output_len", "accept_length"}
_VLLM_KEYS = {"model_id", "tokenizer_id", "endpoint_type", "request_goodput"}


def read_trace(path: str | Path, *, form: str = "auto", block_tokens: int = 512) -> Trace:
    """Read a trace file.

    Parameters
    ----------
    path : str or Path
        The file.
    form : str
        One of :data:`TRACE_FORMATS`; ``auto`` looks at the keys of the first row.
    block_tokens : int
        Tokens of a block of ``hash_ids`` (Mooncake only).

    Raises
    ------
    TraceError
        The file cannot be read, its form is not known, or rows are wrong.
    ConfigError
        The form or the block size is not legal.
    """
    check_choice("trace_format", form, TRACE_FORMATS)
    check_int("block_tokens", block_tokens, minimum=1)
    path = Path(path)
    lines = read_lines(path)
    if form == "auto":
        form = detect_format(path, lines)
    if form == "mooncake":
        return read_mooncake(path, lines, block_tokens)
    if form in ("sglang-bench", "vllm-bench"):
        return read_bench(path, lines, form)
    return read_compact(path, lines)


def write_trace(trace: Trace, path: str | Path, *, form: str, block_tokens: int = 512) -> int:
    """Write a trace in one of :data:`WRITE_FORMATS`.

    The compact form keeps everything (reading it gives equal rows). Mooncake has no names of
    agents and no service times, and counts shared tokens in whole blocks.

    Returns
    -------
    int
        How many lines were written.

    Raises
    ------
    TraceError
        The file cannot be written, or the sessions' arrivals are not known.
    ConfigError
        The form or the block size is not legal.
    """
    check_choice("to", form, WRITE_FORMATS)
    check_int("block_tokens", block_tokens, minimum=1)
    if not trace.timed:
        raise TraceError(f"{trace.name}: {trace.format} rows without arrival times")
    if form == "compact":
        lines = compact_lines(trace.rows)
    else:
        lines = mooncake_lines(trace.sessions, block_tokens)
    with file_errors(path, TraceError):
        Path(path).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return len(lines)


def detect_format(path: Path, lines: list[str]) -> str:
    """The form of a file by the keys of its first row that is a JSON object.

    A file without any such row is taken as compact, whose reader names what is wrong.

    Raises
    ------
    TraceError
        The keys belong to no known form; the message names them.
    """
    found = _first_object(lines)
    if found is None:
        return "compact"
    number, keys = found
    if keys & _SGLANG_KEYS:
        return "sglang-bench"
    if keys & _VLLM_KEYS:
        return "vllm-bench"
    # Mooncake's readers also take input_tokens, so the more telling keys decide.
    if len(keys & _COMPACT_KEYS) >= 2:
        return "compact"
    if keys & _MOONCAKE_KEYS:
        return "mooncake"
    raise TraceError(
        f"{path}: line {number}: no known trace format has the keys "
        f"{', '.join(sorted(keys)[:12]) or '(none)'}; known are {', '.join(TRACE_FORMATS[1:])} "
        "(--trace-format)"
    )


def _first_object(lines: list[str]) -> tuple[int, set[str]] | None:
    if lines and lines[0].strip() == "{":  # one object over several lines
        value = _loads("\n".join(lines))
        return (1, set(value)) if isinstance(value, dict) else None
    for number, line in enumerate(lines, start=1):
        value = _loads(line)
        if isinstance(value, dict):
            return number, set(value)
    return None


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
