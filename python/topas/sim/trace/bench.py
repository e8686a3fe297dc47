"""Result files of serving benchmarks: each request becomes a task of one stage.

SGLang: ``python -m sglang.bench_serving --output-file F --output-details`` (one JSON line a run).
It records lengths but no start times, so a rate is needed. vLLM: ``vllm bench serve --save-result
--save-detailed`` (one JSON object a run), whose ``start_times`` are the arrivals. Both list all
requests in parallel arrays; a failed one has an error or no output, and is left out and counted.
Neither says what requests share: the one agent ``bench`` has an empty prefix.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from topas.sim.trace.graph import Errors
from topas.sim.trace.rows import Trace, TraceRow, build_trace, fail, parse_lines

__all__ = ["read_bench"]

_DETAILS = {
    "sglang-bench": "run the benchmark with --output-details",
    "vllm-bench": "run the benchmark with --save-result --save-detailed",
}


class _Run(BaseModel):
    """The arrays of a run, one element a request; times in seconds, lengths in tokens."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    input_lens: list[int] | None = None
    output_lens: list[int] | None = None
    start_times: list[float] | None = None
    ttfts: list[float | None] | None = None
    itls: list[list[float] | None] | None = None
    latencies: list[float] | None = None
    errors: list[str | None] | None = Field(default=None)


def read_bench(path: Path, lines: list[str], form: str) -> Trace:
    """Read the result file of one run of a benchmark.

    Raises
    ------
    TraceError
        The file has no run or several, or a field is missing or wrong; the message names it.
    """
    errors: Errors = []
    runs = list(parse_lines(_one_line(lines), _Run, errors))
    if not errors and len(runs) != 1:
        errors.append(
            (runs[1][0] if runs else 1, f"{len(runs)} runs in the file, expected one: split it")
        )
    if errors:
        fail(path, errors)
    number, run = runs[0]
    _check_arrays(number, run, form, errors)
    if errors:
        fail(path, errors)
    rows, skipped = _rows(number, run, errors)
    facts = {"requests_in_run": len(run.input_lens or [])}
    return build_trace(
        path,
        form,
        rows,
        errors,
        skipped=skipped,
        facts=facts,
        timed=run.start_times is not None,
    )


def _one_line(lines: list[str]) -> list[str]:
    """A file that is one JSON object over several lines as one line."""
    if not lines or lines[0].strip() != "{":
        return lines
    try:
        return [json.dumps(json.loads("\n".join(lines)))]
    except (ValueError, RecursionError):
        return lines


def _check_arrays(number: int, run: _Run, form: str, errors: Errors) -> None:
    for name in ("input_lens", "output_lens"):
        if getattr(run, name) is None:
            errors.append((number, f"{name}: missing: {_DETAILS[form]}"))
    if run.input_lens is None:
        return
    for name in type(run).model_fields:
        values = getattr(run, name)
        if values is not None and len(values) != len(run.input_lens):
            what = f"{len(values)} elements, but input_lens has {len(run.input_lens)}"
            errors.append((number, f"{name}: {what}"))


def _rows(
    number: int, run: _Run, errors: Errors
) -> tuple[list[tuple[int, TraceRow]], dict[str, int]]:
    assert run.input_lens is not None
    assert run.output_lens is not None
    rows, failed = [], 0
    good = [i for i in range(len(run.input_lens)) if not _failed(run, i)]
    starts = run.start_times or [0.0] * len(run.input_lens)
    first = min((starts[i] for i in good), default=0.0)
    for index in range(len(run.input_lens)):
        if _failed(run, index):
            failed += 1
            continue
        values: dict[str, Any] = {
            "session": f"request-{index}",
            "stage": "request",
            "agent": "bench",
            "round": 0,
            "after": [],
            "input_tokens": run.input_lens[index],
            "output_tokens": run.output_lens[index],
            "shared_tokens": 0,
            "api_s": _latency(run, index),
            "tool_wait_s": 0.0,
            "t": starts[index] - first,
            "static_prefix_tokens": 0,
        }
        line = json.dumps(values, allow_nan=True)
        wrong: Errors = []
        rows += [(number, row) for _, row in parse_lines([line], TraceRow, wrong)]
        errors += [(number, f"request {index}: {what}") for _, what in wrong]
    return rows, ({"failed request": failed} if failed else {})


def _failed(run: _Run, index: int) -> bool:
    assert run.output_lens is not None
    return bool(run.errors and run.errors[index]) or run.output_lens[index] == 0


def _latency(run: _Run, index: int) -> float:
    if run.latencies is not None:
        return run.latencies[index]
    first = run.ttfts[index] if run.ttfts is not None else None
    gaps = run.itls[index] if run.itls is not None else None
    return (first or 0.0) + sum(gaps or [])
