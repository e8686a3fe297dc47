"""Mooncake traces: how rows are linked, which prefixes are static, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from topas.errors import TraceError
from topas.policies import POLICY_NAMES
from topas.sim import Round, compare
from topas.sim.trace import Trace, TraceScale, load_trace, read_trace, write_trace

WHOLE = TraceScale(max_rounds=None, token_scale=1.0, max_tool_wait_s=1e9)
BLOCK = 10


def _write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "mooncake.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _read(folder: Path, rows: list[dict[str, Any]]) -> Trace:
    return read_trace(_write(folder, rows), form="mooncake", block_tokens=BLOCK)


def _row(time_ms: float | None, blocks: list[Any], extra: int = 0, **fields: Any) -> dict[str, Any]:
    """A row of whole blocks and, with ``extra`` tokens, a partial one with an id of its own."""
    ids = [*blocks, f"tail-{time_ms}-{blocks}"] if extra else blocks
    row = {"input_length": BLOCK * len(blocks) + extra, "output_length": 5, "hash_ids": ids}
    if time_ms is not None:
        row["timestamp"] = time_ms
    return {**row, **fields}


def _shape(trace: Trace) -> dict[str, list[tuple[str, str, tuple[str, ...], int]]]:
    return {
        session.name: [(s.name, s.agent, s.after, len(s.rows)) for s in session.segments]
        for session in trace.sessions
    }


def test_heads_that_many_share_are_agents_and_extensions_are_turns(tmp_path: Path) -> None:
    rows = [
        _row(0, [1, 2, 10, 11], 3),
        _row(1000, [1, 2, 20]),
        _row(2000, [1, 2, 30, 31]),
        _row(3000, [50], 4),
        _row(9000, [1, 2, 10, 11, 12]),  # has the first row's full blocks and room for its answer
        _row(9500, [1, 2, 30, 31], 1),  # has the third's, but its answer does not fit in
    ]
    trace = _read(tmp_path, rows)
    assert trace.facts["linked_by"] == "hash_ids"
    assert trace.facts["static_prefixes_found"] == 1
    assert _shape(trace) == {
        "line-1": [("line-1", "prefix-1", (), 2)],
        "line-2": [("line-2", "prefix-1", (), 1)],
        "line-3": [("line-3", "prefix-1", (), 1)],
        "line-4": [("line-4", "unshared", (), 1)],
        "line-6": [("line-6", "prefix-1", (), 1)],
    }
    workload = load_trace(tmp_path / "mooncake.jsonl", scale=WHOLE, block_tokens=BLOCK)
    assert workload.agents == {"prefix-1": 20, "unshared": 0}
    assert workload.tasks[0].stages == ((Round(23, 5, 0.0), Round(30, 5, 9.0, shared_tokens=20)),)
    assert [task.arrival_s for task in workload.tasks] == [0.0, 1.0, 2.0, 3.0, 9.5]


def test_a_request_that_ends_in_the_static_prefix_is_continued_by_none(tmp_path: Path) -> None:
    rows = [_row(0, [1, 2], 1), *(_row(1000.0 * n, [1, 2, n], 5) for n in (10, 20, 30))]
    assert [len(s) for s in _shape(_read(tmp_path, rows)).values()] == [1, 1, 1, 1]


def test_a_conversation_is_no_static_prefix(tmp_path: Path) -> None:
    """Each turn begins with the turn before, so its head is shared; but it goes on in one way."""
    rows = [_row(1000.0 * turn, list(range(2 * turn + 1)), 1) for turn in range(6)]
    trace = _read(tmp_path, rows)
    assert _shape(trace) == {"line-1": [("line-1", "unshared", (), 6)]}
    assert [row.shared_tokens for row in trace.rows] == [0, 10, 30, 50, 70, 90]


def test_short_turns_in_one_block_are_one_conversation(tmp_path: Path) -> None:
    """They differ in their last, partial block only, as requests of one agent could."""
    tails = [dict(_row(0, [1, 2, 3]), timestamp=t * 1e3, output_length=1) for t in range(4)]
    for index, row in enumerate(tails):
        row["input_length"] += 2 * (index + 1)
        row["hash_ids"] = [1, 2, 3, f"tail-{index}"]
    trace = _read(tmp_path, tails)
    assert _shape(trace) == {"line-1": [("line-1", "unshared", (), 4)]}
    for row in tails:  # the same length: none can hold another, so they share an agent's prompt
        row["input_length"] = 34
    trace = _read(tmp_path, tails)
    assert [s[0][1] for s in _shape(trace).values()] == ["prefix-1"] * 4


def test_a_turn_asked_again_is_a_fork(tmp_path: Path) -> None:
    rows = [
        _row(0, [1, 2, 3]),
        _row(5000, [1, 2, 3, 4]),
        _row(6000, [1, 2, 3, 5]),
    ]
    assert _shape(_read(tmp_path, rows)) == {
        "line-1": [
            ("line-1", "unshared", (), 1),
            ("line-2", "unshared", ("line-1",), 1),
            ("line-3", "unshared", ("line-1",), 1),
        ]
    }


def test_order_of_plain_rows_does_not_matter(tmp_path: Path) -> None:
    rows = [_row(0, [1, 2]), _row(4000, [1, 2, 3]), _row(2000, [7])]
    (one, two) = (_read(tmp_path, order) for order in (rows, rows[::-1]))
    lengths = [
        [[(r.input_tokens, r.tool_wait_s) for r in s.rows] for x in t.sessions for s in x.segments]
        for t in (one, two)
    ]
    assert sorted(lengths[0]) == sorted(lengths[1]) == [[(10, 0.0)], [(20, 0.0), (30, 4.0)]]


def test_sessions_are_turns_with_their_delays(tmp_path: Path) -> None:
    rows = [
        _row(1000, [1, 2], session_id="a"),
        _row(3000, [9], session_id="b"),
        _row(None, [1, 2, 3], session_id="a", delay=500),
        _row(8000, [1, 2, 3, 4], session_id="a", delay=250),
        _row(9000, [9, 8], session_id="b"),
        _row(4000, [7]),
    ]
    trace = _read(tmp_path, rows)
    assert trace.facts["linked_by"] == "session_id"
    assert {name: s[0][3] for name, s in _shape(trace).items()} == {"a": 3, "b": 2, "line-6": 1}
    waits = {row.session: [r.tool_wait_s for r in trace.rows if r.session == row.session] for row
             in trace.rows}  # fmt: skip
    assert waits == {"a": [0.0, 0.5, 0.25], "b": [0.0, 6.0], "line-6": [0.0]}
    arrivals = {task.id: task.arrival_s for task in load_trace(
        tmp_path / "mooncake.jsonl", scale=WHOLE, block_tokens=BLOCK).tasks}  # fmt: skip
    assert arrivals == {"a": 1.0, "b": 3.0, "line-6": 4.0}


def test_sessions_without_any_time_need_a_rate(tmp_path: Path) -> None:
    path = _write(tmp_path, [_row(None, [1], session_id="a"), _row(None, [2], session_id="b")])
    with pytest.raises(TraceError, match=r"without arrival times: give a rate"):
        load_trace(path, block_tokens=BLOCK)
    assert len(load_trace(path, block_tokens=BLOCK, rate=1.0).tasks) == 2


def _agentic() -> list[dict[str, Any]]:
    return [
        _row(1000, [1, 2], request_id="p1", session_id="root", branches=["c1"]),
        _row(1200, [7], request_id="c1", session_id="child", wait_for=["p1"], delay=100),
        _row(1300, [7, 8], request_id="c2", session_id="child", wait_for=["c1"], tool_wait_ms=40),
        _row(
            2000,
            [1, 2, 3],
            request_id="p2",
            session_id="root",
            wait_for=["p1", "c2"],
            delay=50,
            tool_wait_ms=200,
        ),
        _row(3000, [1], request_id="p3", session_id="root", wait_for=["p2"], prefix_reset=True),
        _row(1500, [4], request_id="q", session_id="root"),
    ]


def test_agentic_rows_wait_for_those_they_name(tmp_path: Path) -> None:
    trace = _read(tmp_path, _agentic())
    assert trace.facts["linked_by"] == "wait_for"
    assert _shape(trace) == {
        "root": [
            ("p1", "unshared", (), 1),
            ("c1", "unshared", ("p1",), 2),
            ("q", "unshared", (), 1),
            ("p2", "unshared", ("p1", "c1"), 1),
            ("p3", "unshared", ("p2",), 1),
        ]
    }
    workload = load_trace(tmp_path / "mooncake.jsonl", scale=WHOLE, block_tokens=BLOCK)
    task = workload.tasks[0]
    assert task.arrival_s == 1.0
    # q waits for nothing: it comes half a second after the task
    assert [[r.wait_s for r in stage] for stage in task.stages] == [
        [0.0], [0.1, 0.04], [0.5], [0.25], [0.0]
    ]  # fmt: skip
    # waits count from the end of all predecessors, not from that of the same agent's
    assert [stage.wait_from for stage in workload.workflows["root"].stages] == [None] * 5


def test_agentic_rows_come_back_from_a_second_file(tmp_path: Path) -> None:
    """Written and read again: the same stages, lengths and waits under other names."""
    trace = _read(tmp_path, _agentic())
    path = tmp_path / "second.jsonl"
    write_trace(trace, path, form="mooncake", block_tokens=BLOCK)
    again = read_trace(path, block_tokens=BLOCK)

    def plain(trace: Trace) -> list[Any]:
        segments = trace.sessions[0].segments
        place = {segment.name: index for index, segment in enumerate(segments)}
        return [
            (
                [place[name] for name in s.after],
                [(r.input_tokens, r.output_tokens, round(r.tool_wait_s, 9)) for r in s.rows],
            )
            for s in segments
        ]

    # p3 begins a context of its own in the first file only by its reset
    assert [len(t.sessions) for t in (trace, again)] == [1, 2]
    assert plain(trace)[:2] == plain(again)[:2]
    assert sorted(r.input_tokens for r in trace.rows) == sorted(r.input_tokens for r in again.rows)


@pytest.mark.parametrize(
    "fields",
    [
        {"session_id": "child"},
        {"session_id": "root", "prefix_reset": True},
        {"session_id": "root", "hash_ids": [9, 9], "input_length": 20, "prefix_reset": True},
    ],
)
def test_where_a_stage_ends(tmp_path: Path, fields: dict[str, Any]) -> None:
    first = _row(0, [1, 2], request_id="a", session_id="root")
    second = _row(1000, [1, 2, 3], request_id="b", session_id="root", wait_for=["a"])
    assert _shape(_read(tmp_path, [first, second]))["root"] == [("a", "unshared", (), 2)]
    two = [("a", "unshared", (), 1), ("b", "unshared", ("a",), 1)]
    assert _shape(_read(tmp_path, [first, {**second, **fields}]))["root"] == two
    spawned = [{**first, "branches": ["b"]}, second]
    assert _shape(_read(tmp_path, spawned))["root"] == two


def _compact(stage: str, agent: str, index: int, tokens: int, **fields: Any) -> dict[str, Any]:
    row = {
        "session": "s",
        "stage": stage,
        "agent": agent,
        "round": index,
        "after": [],
        "input_tokens": tokens,
        "output_tokens": 5,
        "shared_tokens": 0,
        "api_s": 0.0,
        "tool_wait_s": 0.0,
        "t": 0.0,
        "static_prefix_tokens": 20 if agent == "main" else 0,
    }
    return {**row, **fields}


def test_what_is_written(tmp_path: Path) -> None:
    source, target = tmp_path / "compact.jsonl", tmp_path / "out.jsonl"
    rows = [
        _compact("m0", "main", 0, 35, tool_wait_s=1.5, api_s=1.0, t=2.0),
        _compact("m0", "main", 1, 52, shared_tokens=50, tool_wait_s=3.0, api_s=1.0, t=5.0),
        _compact("x", "sub", 0, 10, after=["m0"], tool_wait_s=0.5, api_s=4.0, t=6.5),
        _compact("m1", "main", 0, 60, after=["m0", "x"], shared_tokens=40, tool_wait_s=6.0, t=12.0),
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_trace(read_trace(source), target, form="mooncake", block_tokens=BLOCK)
    first, second, sub, third = (json.loads(line) for line in target.read_text().splitlines())
    # blocks 0 and 1 are main's static prefix; 2 and the partial 3 are the first request's own
    assert first == {
        "request_id": "s/m0/0",
        "session_id": "s/m0",
        "input_length": 35,
        "output_length": 5,
        "hash_ids": [0, 1, 2, 3],
        "timestamp": 3500.0,
        "prefix_reset": True,
    }
    # of the 50 tokens said to be shared, the first request has three whole blocks
    assert second["hash_ids"] == [0, 1, 2, 4, 5, 6]
    assert (second["wait_for"], second["tool_wait_ms"]) == (["s/m0/0"], 3000.0)
    assert second["branches"] == ["s/x/0"]
    assert (sub["session_id"], sub["wait_for"], sub["hash_ids"]) == ("s/x", ["s/m0/1"], [7])
    assert third["session_id"] == "s/m0"
    assert third["wait_for"] == ["s/m0/1", "s/x/0"]
    assert third["hash_ids"] == [0, 1, 2, 4, 8, 9]
    # main waits 6 s from its own end; the sub-agent ends at 10.5 s, 1.5 s before main goes on
    assert third["tool_wait_ms"] == 1500.0


def test_contexts_that_share_a_head_share_an_agent(tmp_path: Path) -> None:
    rows = [
        _row(1000.0 * index, [1, 2, 100 + index], session_id=f"s{index}") for index in range(3)
    ] + [_row(9000, [1, 2, 100, 101], session_id="s0"), _row(9000, [1, 2], session_id="s1")]
    trace = _read(tmp_path, rows)
    assert {row.agent for row in trace.rows} == {"prefix-1"}
    assert {row.static_prefix_tokens for row in trace.rows} == {20}
    two = _read(tmp_path, [*rows[:2], rows[3]])
    assert {row.agent for row in two.rows} == {"unshared"}


@pytest.mark.parametrize(
    ("index", "fields", "message"),
    [
        (1, {"wait_for": ["p9"]}, r"line 2: wait_for: no row has request_id 'p9'"),
        (0, {"branches": ["c9"]}, r"line 1: branches: no row has request_id 'c9'"),
        (2, {"request_id": "p1"}, r"line 3: request_id: 'p1' is that of line 1"),
        (0, {"wait_for": ["p3"]}, r"wait_for: a cycle: line \d -> line \d"),
        (5, {"timestamp": None}, r"line 6: timestamp: missing, and the row waits for no other"),
        (3, {"input_length": 55}, r"line 4: hash_ids: 3 blocks of 10 tokens .* --block-tokens"),
        (3, {"input_length": -1}, r"line 4: input_length: .*-1"),
        (3, {"input_length": 10**20}, r"line 4: input_length: .*, got 1000000"),
        (3, {"output_length": 10**20}, r"line 4: output_length: "),
        (3, {"output_length": 0}, r"line 4: output_length: .*0"),
        (3, {"output_length": 1.5}, r"line 4: output_length: .*1.5"),
        (3, {"timestamp": 1.7e12}, r"line 4: timestamp: 1700000000000.0 looks like wall clock"),
        (3, {"timestamp": -1}, r"line 4: timestamp: .*-1"),
        (3, {"timestamp": float("nan")}, r"line 4: timestamp: .*nan"),
        (3, {"delay": -5}, r"line 4: delay: .*-5"),
        (3, {"tool_wait_ms": "x"}, r"line 4: tool_wait_ms: .*'x'"),
        (3, {"hash_ids": [1, 2, None]}, r"line 4: hash_ids.2"),
        (3, {"wait_for": "p1"}, r"line 4: wait_for: .*'p1'"),
    ],
)
def test_a_wrong_row_is_named(
    tmp_path: Path, index: int, fields: dict[str, Any], message: str
) -> None:
    rows = _agentic()
    rows[index].update(fields)
    with pytest.raises(TraceError, match=message):
        _read(tmp_path, rows)


def test_aliases_are_taken(tmp_path: Path) -> None:
    row = {"created_time": 0, "input_tokens": 20, "output_tokens": 5, "hash_ids": [1, 2]}
    later = {**row, "created_time": 2000, "input_tokens": 30, "hash_ids": [1, 2, 3]}
    trace = _read(tmp_path, [row, later])
    assert [row.tool_wait_s for row in trace.rows] == [0.0, 2.0]


def test_the_versioned_form_is_refused(tmp_path: Path) -> None:
    header = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64}
    with pytest.raises(TraceError, match=r"line 1: schema: 'dynamo.agentic_mooncake' version 2"):
        read_trace(_write(tmp_path, [header, _row(0, [1])]))


def test_all_policies_run_an_agentic_trace(tmp_path: Path) -> None:
    path = _write(tmp_path, _agentic())
    workload = load_trace(path, scale=WHOLE, block_tokens=BLOCK)
    for run in compare(workload, list(POLICY_NAMES)).runs:
        assert (run.arrived, run.finished, run.completed_requests) == (1, 1, 6)
