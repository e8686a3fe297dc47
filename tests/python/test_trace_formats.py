"""Forms of traces: detection, round trips, benchmark results, and what is refused where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from topas.cli.app import app
from topas.errors import ConfigError, TraceError
from topas.policies import POLICY_NAMES
from topas.sim import compare
from topas.sim.trace import (
    TRACE_FORMATS,
    TRACE_SCALES,
    TraceRow,
    TraceScale,
    load_trace,
    read_trace,
    to_workload,
    write_trace,
)
from typer.testing import CliRunner

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "coding_agents.jsonl"
WHOLE = TraceScale(max_rounds=None, token_scale=1.0, max_tool_wait_s=1e9)

_TOKENS = st.integers(min_value=0, max_value=10**6)
_SECONDS = st.floats(min_value=0, max_value=1e7, allow_nan=False)
_NAMES = st.text(min_size=1, max_size=8)


@st.composite
def _rows(draw: st.DrawFn) -> list[TraceRow]:
    """Rows that fit together: sessions of stages, each after some of those before it."""
    rows = []
    for session in draw(st.lists(_NAMES, min_size=1, max_size=3, unique=True)):
        names = draw(st.lists(_NAMES, min_size=1, max_size=4, unique=True))
        for position, stage in enumerate(names):
            before = st.lists(st.sampled_from(names[:position]), unique=True)
            after = draw(before) if position else []
            agent = draw(st.sampled_from(["main", "Explore", "日本"]))
            for index in range(draw(st.integers(min_value=1, max_value=3))):
                row = TraceRow(
                    session=session,
                    stage=stage,
                    agent=agent,
                    round=index,
                    after=[] if index else after,
                    input_tokens=draw(_TOKENS),
                    output_tokens=draw(_TOKENS) + 1,
                    shared_tokens=draw(_TOKENS),
                    api_s=draw(_SECONDS),
                    tool_wait_s=draw(_SECONDS),
                    t=draw(_SECONDS),
                    static_prefix_tokens=draw(st.none() | _TOKENS),
                    wait_from=draw(st.sampled_from(["context", "release"])),
                )
                rows.append(row)
    return draw(st.permutations(rows))


@given(rows=_rows())
def test_the_compact_form_reads_what_it_writes(
    tmp_path_factory: pytest.TempPathFactory, rows: list[TraceRow]
) -> None:
    folder = tmp_path_factory.mktemp("compact")
    first, second = folder / "first.jsonl", folder / "second.jsonl"
    first.write_text(
        "".join(json.dumps(row.model_dump(exclude_none=True)) + "\n" for row in rows),
        encoding="utf-8",
    )
    trace = read_trace(first)
    assert trace.format == "compact"
    assert trace.rows == tuple(rows)
    assert write_trace(trace, second, form="compact") == len(rows)
    again = read_trace(second)
    assert again.rows == trace.rows
    assert again.sessions == trace.sessions


@given(rows=_rows())
def test_mooncake_keeps_lengths_tasks_and_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[TraceRow]
) -> None:
    """Names, service times and parts of blocks are lost; what runs and after what is not."""
    folder = tmp_path_factory.mktemp("mooncake")
    first, second = folder / "first.jsonl", folder / "second.jsonl"
    first.write_text("".join(row.model_dump_json() + "\n" for row in rows), encoding="utf-8")
    trace = read_trace(first)
    write_trace(trace, second, form="mooncake", block_tokens=4096)
    again = read_trace(second, block_tokens=4096)
    assert again.format == "mooncake"
    lengths = [sorted((r.input_tokens, r.output_tokens) for r in t.rows) for t in (trace, again)]
    assert lengths[0] == lengths[1]
    assert _longest(trace) == _longest(again)


def _longest(trace: Any) -> list[int]:
    """The connected requests' longest chains, in requests; sorted."""
    found = []
    for session in trace.sessions:
        ends: dict[str, int] = {}
        group = {segment.name: {segment.name} for segment in session.segments}
        for segment in session.segments:
            before = max((ends[name] for name in segment.after), default=0)
            ends[segment.name] = before + len(segment.rows)
            merged = set().union({segment.name}, *(group[name] for name in segment.after))
            for name in merged:
                group[name] = merged
        parts = {frozenset(members) for members in group.values()}
        top = {part for part in parts if not any(part < other for other in parts)}
        found += [max(ends[name] for name in part) for part in top]
    return sorted(found)


_SGLANG_RUN: dict[str, Any] = {
    "backend": "sglang",
    "sharegpt_output_len": None,
    "total_output_tokens_retokenized": 90,
    "input_lens": [100, 200, 300],
    "output_lens": [10, 0, 30],
    "ttfts": [0.5, 0.0, 0.25],
    "itls": [[0.25, 0.25], [], [0.5]],
    "generated_texts": ["a", "", "b"],
    "errors": ["", "timeout", ""],
}
_VLLM_RUN: dict[str, Any] = {
    "model_id": "m",
    "request_goodput": None,
    "input_lens": [100, 200, 300],
    "output_lens": [10, 20, 30],
    "start_times": [1_000_007.5, 1_000_005.0, 1_000_009.0],
    "ttfts": [0.5, 0.5, 0.5],
    "itls": [[], [], []],
    "latencies": [1.5, 2.5, 3.5],
    "errors": ["", "", ""],
}


def _file(folder: Path, *values: Any, indent: int | None = None) -> Path:
    path = folder / "trace.json"
    path.write_text("".join(json.dumps(value, indent=indent) + "\n" for value in values))
    return path


def test_an_sglang_run_has_lengths_but_no_arrivals(tmp_path: Path) -> None:
    path = _file(tmp_path, _SGLANG_RUN)
    trace = read_trace(path)
    assert (trace.format, trace.timed) == ("sglang-bench", False)
    assert dict(trace.skipped) == {"failed request": 1}
    with pytest.raises(TraceError, match=r"sglang-bench rows without arrival times: give a rate"):
        load_trace(path)
    with pytest.raises(TraceError, match="without arrival times"):
        write_trace(trace, tmp_path / "out.jsonl", form="compact")
    workload = load_trace(path, scale=WHOLE, rate=1.0)
    rounds = [task.stages[0][0] for task in workload.tasks]
    assert sorted((r.input_tokens, r.output_tokens) for r in rounds) == [(100, 10), (300, 30)]
    assert workload.agents == {"bench": 0}
    assert workload.parameters["skipped"] == {"failed request": 1}
    assert workload.parameters["requests_in_run"] == 3
    assert [row.api_s for row in trace.rows] == [1.0, 0.75]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_vllm_run_has_its_arrivals(tmp_path: Path, indent: int | None) -> None:
    path = _file(tmp_path, _VLLM_RUN, indent=indent)
    trace = read_trace(path)
    assert (trace.format, trace.timed) == ("vllm-bench", True)
    assert [row.api_s for row in trace.rows] == [1.5, 2.5, 3.5]
    workload = load_trace(path)
    assert [(task.id, task.arrival_s) for task in workload.tasks] == [
        ("request-1", 0.0),
        ("request-0", 2.5),
        ("request-2", 4.0),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_lens": None}, r"line 1: input_lens: missing: .*--save-detailed"),
        ({"output_lens": None}, r"line 1: output_lens: missing: .*--save-detailed"),
        ({"output_lens": [1]}, r"line 1: output_lens: 1 elements, but input_lens has 3"),
        ({"start_times": [1.0, 2.0]}, r"line 1: start_times: 2 elements"),
        ({"input_lens": [1, 2, "x"]}, r"line 1: input_lens.2: .*'x'"),
        ({"input_lens": [1, -2, 3]}, r"line 1: request 1: input_tokens: .*-2"),
        ({"start_times": [0.0, float("nan"), 1.0]}, r"request 1: t: .*nan"),
        ({"errors": ["x", "x", "x"]}, r"no row at all \(skipped: {'failed request': 3}\)"),
    ],
)
def test_a_wrong_run_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(_file(tmp_path, {**_VLLM_RUN, **change}))


def test_a_run_without_details_and_several_runs(tmp_path: Path) -> None:
    plain = {"total_output_tokens_retokenized": 3}
    with pytest.raises(TraceError, match=r"input_lens: missing: .*--output-details"):
        read_trace(_file(tmp_path, plain))
    with pytest.raises(TraceError, match=r"line 2: 2 runs in the file, expected one"):
        read_trace(_file(tmp_path, _SGLANG_RUN, _SGLANG_RUN))


@pytest.mark.parametrize(
    ("row", "form"),
    [
        ({"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [1]}, "mooncake"),
        ({"session_id": "a", "input_length": 5, "output_length": 2}, "mooncake"),
        ({"created_time": 0, "input_tokens": 5, "output_tokens": 2}, "mooncake"),
        ({"schema": "dynamo.agentic_mooncake", "version": 2}, "mooncake"),
        ({"session": "a", "stage": "b", "round": 0}, "compact"),
        ({"session": "a", "stage": "b", "input_tokens": 0}, "compact"),
        (_SGLANG_RUN, "sglang-bench"),
        (_VLLM_RUN, "vllm-bench"),
    ],
)
def test_the_form_is_found_by_the_keys(tmp_path: Path, row: dict[str, Any], form: str) -> None:
    from topas.sim.trace.formats import detect_format

    for indent in (None, 1):
        path = _file(tmp_path, row, indent=indent)
        assert detect_format(path, path.read_text().splitlines()) == form


def test_unknown_keys_are_named_and_a_given_form_wins(tmp_path: Path) -> None:
    path = _file(tmp_path, {"prompt": "x", "answer": "y"})
    with pytest.raises(TraceError, match=r"line 1: no known trace format has the keys answer, pro"):
        read_trace(path)
    with pytest.raises(TraceError, match=r"line 1: session: missing"):
        read_trace(path, form="compact")
    with pytest.raises(TraceError, match=r"line 1: input_length: missing"):
        read_trace(path, form="mooncake")
    with pytest.raises(ConfigError, match="trace_format: unknown 'x', known are auto, compact"):
        read_trace(path, form="x")
    with pytest.raises(ConfigError, match=r"block_tokens: .*0"):
        read_trace(path, block_tokens=0)


def test_writing_refuses_what_it_cannot(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, _VLLM_RUN))
    with pytest.raises(ConfigError, match="to: unknown 'vllm-bench', known are compact, mooncake"):
        write_trace(trace, tmp_path / "x", form="vllm-bench")
    with pytest.raises(TraceError, match="nowhere"):
        write_trace(trace, tmp_path / "nowhere" / "x", form="compact")


def test_named_scales() -> None:
    assert TraceScale.named("medium") == TraceScale()
    assert TraceScale.named("full").token_scale == 1.0
    sizes = [TraceScale.named(name).max_rounds for name in TRACE_SCALES]
    assert sizes == [2, 8, None]
    with pytest.raises(ConfigError, match="trace_scale: unknown 'tiny'"):
        TraceScale.named("tiny")


def _invoke(*arguments: str) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def test_the_commands(tmp_path: Path) -> None:
    source, target = _file(tmp_path, _VLLM_RUN), tmp_path / "out.jsonl"
    said = _invoke("convert-trace", str(source), str(target), "--to", "mooncake").output
    assert "vllm-bench, 3 sessions, 3 requests; left out: none" in said
    assert "mooncake, 3 lines" in said
    run = ("--policies", "fcfs", "--json", "--trace-scale", "full", "--max-rounds", "1")
    report = json.loads(_invoke("simulate", "--trace", str(target), *run).stdout)
    assert report["workload"]["format"] == "mooncake"
    assert (report["workload"]["token_scale"], report["workload"]["max_rounds"]) == (1.0, 1)
    assert report["policies"][0]["finished"] == 3
    with pytest.raises(TraceError, match="line 1: session: missing"):
        _invoke("simulate", "--trace", str(target), "--trace-format", "compact")
    with pytest.raises(ConfigError, match="--block-tokens: is for --trace only"):
        _invoke("simulate", "chain-3", "--block-tokens", "16")
    assert set(TRACE_FORMATS) >= {"auto", "compact", "mooncake", "sglang-bench", "vllm-bench"}


@pytest.mark.skipif(not SHARED.exists(), reason="shared/data/coding_agents.jsonl is not here")
def test_the_real_trace_at_the_small_scale_under_all_policies() -> None:
    workload = load_trace(SHARED, scale=TraceScale.named("small"), rate=0.1, seed=1)
    comparison = compare(workload, list(POLICY_NAMES))
    rounds = sum(len(item) for task in workload.tasks for item in task.stages)
    assert workload.parameters["rows"] == 3775
    assert workload.parameters["rows_cut_by_scale"] == 3775 - rounds
    for run in comparison.runs:
        assert run.arrived == run.finished == 17
        assert run.completed_requests == rounds


@pytest.mark.skipif(not SHARED.exists(), reason="shared/data/coding_agents.jsonl is not here")
def test_the_real_trace_through_mooncake(tmp_path: Path) -> None:
    trace = read_trace(SHARED)
    path = tmp_path / "mooncake.jsonl"
    write_trace(trace, path, form="mooncake")
    again = read_trace(path)
    before, after = to_workload(trace, scale=WHOLE), to_workload(again, scale=WHOLE)
    # whole blocks of 512 tokens; only two contexts of Plan, fewer than make a prefix
    assert sorted(after.agents.values()) == [0, 17 * 512, 18 * 512, 28 * 512]
    assert [len(w.stages) for w in after.workflows.values()] == [
        len(w.stages) for w in before.workflows.values()
    ]
    for one, other in zip(before.tasks, after.tasks, strict=True):
        assert other.id == f"{one.id}/main0"
        assert [[r.output_tokens for r in stage] for stage in one.stages] == [
            [r.output_tokens for r in stage] for stage in other.stages
        ]
