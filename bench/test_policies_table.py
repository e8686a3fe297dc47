"""The table of bench/policies.py, on small runs and on rows with known answers."""

from __future__ import annotations

import json

import policies
import pytest
from topas.reproduce.points import Scale, Variant
from topas.sim.statistics import interval

SMALL = ["--workloads", "chain-3", "--tasks", "3", "--seeds", "2", "--processes", "1"]


def test_save_and_compare(tmp_path, monkeypatch, capsys):
    """A variant is compared with the saved row of its policy, the rest with their own."""
    monkeypatch.setattr(policies, "RESULTS", tmp_path / "results")
    policies.main([*SMALL, "--policies", "lpm,topas", "--save", "one"])
    saved = json.loads((tmp_path / "results" / "one.json").read_text())
    assert list(saved["rows"]["chain-3"]) == ["lpm", "topas"]
    assert len(saved["rows"]["chain-3"]["topas"]["mean_jct_s"]) == 2
    assert "saved" not in capsys.readouterr().out
    for seed, value in enumerate(saved["rows"]["chain-3"]["lpm"]["mean_jct_s"]):
        saved["rows"]["chain-3"]["topas"]["mean_jct_s"][seed] = 2.0 * value
    (tmp_path / "results" / "one.json").write_text(json.dumps(saved))
    policies.main([*SMALL, "--policies", "lpm", "--against", "one", "--set", "age_weight=0"])
    output = capsys.readouterr().out
    assert "topas age_weight=0" in output
    assert "saved %" in output
    with pytest.raises(SystemExit, match="no such table, there are: one"):
        policies.main([*SMALL, "--against", "two"])
    with pytest.raises(SystemExit, match="was made with"):
        policies.load("one", Scale(tasks=4))


def test_baselines_both_ways():
    """By default topas is compared with each baseline without and with a host cache."""
    variants = policies.variants_of(policies.arguments([]))
    baselines = {variant.label for variant in variants if variant.baseline}
    assert {"lpm", "lpm+host", "kvflow"} < baselines
    assert {variant.label for variant in variants} - baselines == {"topas-paper", "topas"}
    narrow = policies.variants_of(policies.arguments(["--baselines", "lpm"]))
    assert [variant.label for variant in narrow if variant.baseline] == ["lpm", "lpm+host"]


def test_percentages():
    """Reductions are paired, of complete rows only, and averaged over the workloads by seed."""
    ours, theirs = {"m": [50.0, 90.0]}, {"m": [100.0, 100.0]}
    assert policies.reduction(ours, theirs, "m").values == (50.0, pytest.approx(10.0))
    assert policies.reduction({"m": None}, theirs, "m") is None
    rows = {"a": {"m": [3.0, 3.0]}, "b": {"m": [1.0, 4.0]}, "c": {"m": None}}
    assert policies.best_of(rows, ["a", "b", "c"], "m") == "b"
    assert policies.best_of(rows, ["c"], "m") is None
    both = policies.overall([interval([10.0, 20.0]), interval([30.0, 0.0])])
    assert both.values == (20.0, 10.0)
    assert policies.overall([interval([1.0]), None]) is None
    varied = Variant(label="topas x=1", policy="topas")
    saved = {"w": {"topas": {"m": [1.0]}}}
    assert policies.old_row(saved, "w", varied) == {"m": [1.0]}


def test_settings():
    """Values are numbers, words of JSON or text; unknown fields are refused."""
    config = policies.variant_of("topas", "age_weight=0.5,count_running=False,move_model=once")
    assert config.config == {"age_weight": 0.5, "count_running": False, "move_model": "once"}
    for wrong in ("no_such=1", "age_weight"):
        with pytest.raises(SystemExit, match=f"--set {wrong}: must be FIELD=VALUE"):
            policies.variant_of("topas", wrong)
