"""The tables of bench/decision.py can be made, on small states."""

from __future__ import annotations

import json

import decision
import instructions
import machine
from figures import exponent, figures
from growth import AXES
from recording import record
from rows import PRESETS, QUICK, ROWS
from states import STATES, logs


def test_quick(tmp_path, capsys):
    """Every table but SGLang's, also as JSON."""
    out = tmp_path / "out.json"
    decision.main(["--quick", "--json", str(out)])
    printed = capsys.readouterr().out
    written = json.loads(out.read_text("utf-8"))
    assert {"processor", "compiler", "commit"} <= written["machine"].keys()
    assert len(written["rows"]) == len(QUICK) * len(PRESETS)
    for row in written["rows"]:
        assert row["referenced_states"] > 0
        assert 0 < row["p50"] <= row["p99"] <= row["max"]
        assert row["ratio"] > 1
        assert (row["core"] is not None) == machine.BENCH.exists()
        assert row["row"] in printed
    assert [row["preset"] for row in written["growth"]] == list(PRESETS)


def test_figures():
    assert figures([4.0, 1.0, 3.0, 2.0]) == {"count": 4, "mean": 2.5, "p50": 2, "p99": 4, "max": 4}
    assert abs(exponent([1, 10, 100], [5, 50, 500]) - 1) < 1e-9


def test_every_row_is_named_once():
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert len(AXES) == 3


def test_cut_logs_are_kept():
    """The logs whose instructions are counted are those that bench/states.py names."""
    log = record("chain-3", rate=0.15, tasks=10, seed=1, preset="paper")
    assert log.first(3).decisions == 3
    assert log.to_text().startswith(log.first(3).to_text())
    names = {f"{name}-{preset}" for preset in PRESETS for name in logs(preset)}
    assert {path.stem for path in STATES.glob("*.log")} == names


def test_growth_of_a_count_is_a_fault():
    assert not instructions.compare({"a": 104, "b": 50}, {"a": 100, "b": 100})
    (fault,) = instructions.compare({"a": 106, "b": 100}, {"a": 100, "b": 100})
    assert fault.startswith("a: +6.0%")
    assert len(instructions.compare({"a": 100}, {"b": 100})) == 2
    recorded = json.loads(instructions.RECORD.read_text("ascii"))
    assert recorded["counts"].keys() == {path.stem for path in STATES.glob("*.log")}
