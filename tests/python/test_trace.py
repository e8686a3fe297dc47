"""Trace files: what is read, and how wrong rows are named by their line."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from topas.errors import ConfigError, TraceError
from topas.policies import PRESET_POLICIES
from topas.sim import Round, run_policy
from topas.sim.trace import TraceScale, load_trace

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "coding_agents.jsonl"
WHOLE = TraceScale(max_rounds=None, token_scale=1.0, max_tool_wait_s=1e9)


def _row(stage: str, round_: int, **fields: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "session": "s1",
        "stage": stage,
        "agent": "main" if stage.startswith("main") else "Explore",
        "round": round_,
        "after": [],
        "input_tokens": 1000,
        "output_tokens": 50,
        "shared_tokens": 0,
        "api_s": 1.0,
        "tool_wait_s": 2.0 if round_ else 0,
        "t": 0.0,
    }
    if row["agent"] == "main":
        row["static_prefix_tokens"] = 600
    return {**row, **fields}


def _good() -> list[dict[str, Any]]:
    return [
        _row("main0", 0),
        _row("main0", 1, input_tokens=1200, t=10.0),
        _row("sub0", 0, after=["main0"], input_tokens=500, t=20.0),
        _row("sub0", 1, input_tokens=700, shared_tokens=480, t=25.0),
        _row("main1", 0, after=["main0", "sub0"], tool_wait_s=30.0, t=40.0),
        _row("main0", 0, session="s2", t=5.0, static_prefix_tokens=550),
    ]


def _write(path: Path, rows: list[Any]) -> Path:
    file = path / "trace.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return file


def test_sessions_become_tasks_and_stages_the_dag(tmp_path: Path) -> None:
    workload = load_trace(_write(tmp_path, _good()), scale=WHOLE)
    # the smallest prefix that main shows, and what sub0's second round shares with its first
    assert workload.agents == {"Explore": 480, "main": 550}
    assert [(task.id, task.arrival_s) for task in workload.tasks] == [("s1", 0.0), ("s2", 5.0)]
    shape = workload.workflows["s1"]
    assert [(s.name, s.agent, s.after, s.wait_from) for s in shape.stages] == [
        ("main0", "main", (), None),
        ("sub0", "Explore", (0,), None),
        ("main1", "main", (0, 1), 0),
    ]
    assert workload.tasks[0].stages == (
        (Round(450, 50, 0.0), Round(650, 50, 2.0)),
        (Round(20, 50, 0.0), Round(220, 50, 2.0)),
        (Round(450, 50, 30.0),),
    )
    main = shape.stages[0]
    assert main.rounds == pytest.approx(4 / 3)  # three stages of main in both sessions
    assert main.input_tokens == pytest.approx((450 + 650 + 450 + 450) / 4)
    assert main.output_tokens == 50


def test_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    expected = load_trace(_write(tmp_path, _good()), scale=WHOLE)
    for seed in range(10):
        rows = _good()
        random.Random(seed).shuffle(rows)
        workload = load_trace(_write(tmp_path, rows), scale=WHOLE)
        assert workload.tasks == expected.tasks
        assert workload.workflows == expected.workflows


def test_scale(tmp_path: Path) -> None:
    file = _write(tmp_path, _good())
    scale = TraceScale(sessions=1, max_stages=2, max_rounds=1, token_scale=0.5, max_tool_wait_s=1.5)
    workload = load_trace(file, scale=scale)
    assert workload.agents == {"Explore": 250, "main": 300}
    assert [task.id for task in workload.tasks] == ["s1"]
    assert workload.tasks[0].stages == ((Round(200, 25, 0.0),), (Round(0, 25, 0.0),))
    capped = load_trace(file, scale=TraceScale(token_scale=1.0, max_tool_wait_s=1.5))
    assert capped.tasks[0].stages[0][1].wait_s == 1.5
    poisson = load_trace(file, rate=0.5, seed=3)
    again = load_trace(file, rate=0.5, seed=3)
    assert poisson.tasks == again.tasks
    assert poisson.tasks[1].arrival_s not in (0.0, 5.0)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("t", None, "t: "),
        ("t", "", "t: "),
        ("t", "12", "t: "),
        ("t", -1.0, "t: .*-1"),
        ("t", float("nan"), "t: .*nan"),
        ("t", float("inf"), "t: "),
        ("t", 1.7e9, "t: 1700000000.0 looks like wall clock time"),
        ("tool_wait_s", -2.0, "tool_wait_s: "),
        ("tool_wait_s", float("nan"), "tool_wait_s: "),
        ("api_s", "fast", "api_s: "),
        ("input_tokens", -5, "input_tokens: "),
        ("input_tokens", 10.5, "input_tokens: "),
        ("input_tokens", 10**20, "input_tokens: .*, got 1000000"),
        ("shared_tokens", 10**20, "shared_tokens: "),
        ("input_tokens", True, "input_tokens: "),
        ("output_tokens", 0, "output_tokens: "),
        ("output_tokens", 10**20, "output_tokens: "),
        ("shared_tokens", -1, "shared_tokens: "),
        ("static_prefix_tokens", -1, "static_prefix_tokens: "),
        ("static_prefix_tokens", 10**20, "static_prefix_tokens: "),
        ("round", -1, "round: "),
        ("round", "0", "round: "),
        ("session", 7, "session: "),
        ("session", "", "session: "),
        ("stage", None, "stage: "),
        ("agent", ["main"], "agent: "),
        ("after", "main0", "after: "),
        ("after", [1], "after.0: "),
    ],
)
def test_a_wrong_field_is_named_with_its_line(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    rows = _good()
    rows[1][field] = value
    with pytest.raises(TraceError, match=rf"1 wrong row\n  line 2: {message}"):
        load_trace(_write(tmp_path, rows))


@pytest.mark.parametrize("field", sorted(set(_row("sub0", 0))))
def test_a_missing_field_is_named_with_its_line(tmp_path: Path, field: str) -> None:
    rows = _good()
    del rows[3][field]
    with pytest.raises(TraceError, match=rf"1 wrong row\n  line 4: {field}: missing"):
        load_trace(_write(tmp_path, rows))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "blank line"),
        ("   ", "blank line"),
        ('{"session": "s1"', "broken JSON"),
        ("[1, 2]", "not a JSON object but list"),
        ("null", "not a JSON object but NoneType"),
        ("[" * 100_000, "broken JSON"),
        ('{"t": ' + "9" * 5000 + "}", "broken JSON"),
    ],
)
def test_a_line_that_is_no_row(tmp_path: Path, line: str, message: str) -> None:
    rows: list[Any] = [*_good()[:3], line, *_good()[3:]]
    with pytest.raises(TraceError, match=rf"1 wrong row\n  line 4: {message}"):
        load_trace(_write(tmp_path, rows))


@pytest.mark.parametrize(
    ("index", "fields", "line", "message"),
    [
        (4, {"after": ["main0", "sub9"]}, 5, "after: session 's1' has no stage 'sub9'"),
        (5, {"after": ["sub0"]}, 6, "after: session 's2' has no stage 'sub0'"),
        (1, {"round": 0}, 2, "round 0 of stage 'main0' is given twice"),
        (1, {"round": 2}, 2, "stage 'main0': round 2 follows 0"),
        (1, {"agent": "Plan"}, 2, "stage 'main0' has agents 'main' and 'Plan'"),
        (1, {"after": ["sub0"]}, 2, "after: only the first round of stage 'main0'"),
        (0, {"after": ["main0"]}, 1, "session 's1' has a cycle: main0 -> main0"),
    ],
)
def test_inconsistent_rows(
    tmp_path: Path, index: int, fields: dict[str, Any], line: int, message: str
) -> None:
    rows = _good()
    rows[index].update(fields)
    with pytest.raises(TraceError, match=rf"1 wrong row\n  line {line}: {message}"):
        load_trace(_write(tmp_path, rows))


def test_a_cycle_is_named_with_its_path(tmp_path: Path) -> None:
    rows = _good()
    rows[0]["after"] = ["main1"]
    with pytest.raises(TraceError, match=r"line \d: session 's1' has a cycle: \w+( -> \w+){2,3}$"):
        load_trace(_write(tmp_path, rows))


def test_unusual_characters_do_not_shift_line_numbers(tmp_path: Path) -> None:
    rows: list[Any] = _good()
    rows[0] = json.dumps({**rows[0], "note": "a\u2028b\x0b"}, ensure_ascii=False)
    rows[2]["t"] = 10**400
    with pytest.raises(TraceError, match=r"1 wrong row\n  line 3: t: "):
        load_trace(_write(tmp_path, rows))
    crlf = tmp_path / "crlf.jsonl"
    crlf.write_text("\r\n".join(json.dumps(row) for row in _good()) + "\r\n", encoding="utf-8")
    assert len(load_trace(crlf).tasks) == 2


def test_all_errors_are_counted_and_the_first_twenty_shown(tmp_path: Path) -> None:
    rows = [_row("main0", index) for index in range(40)]
    for row in rows[:30]:
        row["t"] = -1.0
    with pytest.raises(TraceError) as caught:
        load_trace(_write(tmp_path, rows))
    lines = str(caught.value).splitlines()
    assert "30 wrong rows" in lines[0]
    assert [line.split(":")[0] for line in lines[1:21]] == [f"  line {n}" for n in range(1, 21)]
    assert lines[21] == "  ... and 10 more"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nowhere"):
        load_trace(tmp_path / "nowhere.jsonl")
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="binary"):
        load_trace(binary)
    with pytest.raises(TraceError, match="no row at all"):
        load_trace(_write(tmp_path, []))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sessions", 0),
        ("max_stages", -1),
        ("max_rounds", 0),
        ("max_rounds", 1.5),
        ("token_scale", 0.0),
        ("token_scale", float("nan")),
        ("max_tool_wait_s", -1.0),
    ],
)
def test_an_illegal_scale_is_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        TraceScale(**{field: value})  # type: ignore[arg-type]


def test_more_sessions_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sessions: the trace has 2, asked for 3"):
        load_trace(_write(tmp_path, _good()), scale=TraceScale(sessions=3))


@pytest.mark.skipif(not SHARED.exists(), reason="shared/data/coding_agents.jsonl is not here")
def test_the_real_trace_as_a_whole() -> None:
    workload = load_trace(SHARED, scale=WHOLE)
    assert len(workload.tasks) == 17
    assert sum(len(rounds) for task in workload.tasks for rounds in task.stages) == 3775
    assert workload.agents == {
        "Explore": 8832,
        "Plan": 9536,
        "general-purpose": 9472,
        "main": 14666,
    }


@pytest.mark.skipif(not SHARED.exists(), reason="shared/data/coding_agents.jsonl is not here")
@pytest.mark.parametrize(
    "policy",
    [*("fcfs", "lpm", "parrot", "las", "spf"), *PRESET_POLICIES.values()],
)
def test_the_real_trace_runs_to_its_end(policy: str) -> None:
    workload = load_trace(SHARED, scale=TraceScale(max_rounds=4), rate=0.02, seed=1)
    metrics, _ = run_policy(workload, policy)
    assert metrics.arrived == metrics.finished == 17
    rounds = sum(len(item) for task in workload.tasks for item in task.stages)
    assert metrics.completed_requests == rounds
