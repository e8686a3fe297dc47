"""The table of bench/policies.py, on small runs and on rows with known answers."""

from __future__ import annotations

import json

import policies
import pytest
from topas.reproduce.points import Scale, Variant
from topas.sim.study.statistics import interval

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
        policies.load("one", Scale(tasks=4), 1)
    scale = Scale(tasks=3, seeds=2)
    assert policies.load("one", scale, 1) == saved["rows"]
    with pytest.raises(SystemExit, match=r"was made with .*'first_seed': 1"):
        policies.load("one", scale, 11)


def test_baselines_both_ways():
    """By default topas is compared with each baseline without and with a host cache."""
    variants = policies.variants_of(policies.arguments([]))
    baselines = {variant.label for variant in variants if variant.baseline}
    assert {"lpm", "lpm+host", "kvflow"} < baselines
    presets = {"topas-paper", "topas-guarded", "topas", "topas-rollout"}
    assert {variant.label for variant in variants} - baselines == presets
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


def test_worst_rate():
    """At each rate the best baseline of that rate counts; a missing figure makes none."""

    def row(*values):
        return {"by_rate": {"m": list(values)}}

    rows = {"a": row(10.0, 100.0), "b": row(20.0, 50.0), "c": row(None, 80.0)}
    assert policies.worst_rate(row(9.0, 60.0), rows, ["a", "b"], "m") == pytest.approx(-20.0)
    assert policies.worst_rate(row(8.0, 40.0), rows, ["a", "b", "c"], "m") == pytest.approx(20.0)
    assert policies.worst_rate(row(None, 40.0), rows, ["a"], "m") is None
    assert policies.worst_rate(row(1.0, 1.0), rows, ["c"], "m") is None


def test_seeds():
    """A number counts from 1, a range is taken as it is; the runs have those seeds."""
    assert policies.seed_range("3") == range(1, 4)
    assert policies.seed_range("11-15") == range(11, 16)
    for wrong in ("0", "5-4", "-3", "x"):
        with pytest.raises(ValueError, match=r"seeds|invalid literal"):
            policies.seed_range(wrong)
    variants = [Variant(label="lpm", policy="lpm")]
    cells = policies.all_cells(["chain-3"], variants, Scale(seeds=2, rates=1), 11)
    assert [(cell.rate, cell.seed) for cell in cells] == [(0.15, 11), (0.15, 12)]


def test_a_brief_table_hides_baselines_both_ways(capsys):
    """By default each baseline runs without and with a host cache; ``--brief`` hides their rows."""
    words = ["--baselines", "paper", "--set", "age_weight=0"]
    variants = policies.variants_of(policies.arguments(words))
    by_label = {variant.label: variant.baseline for variant in variants}
    assert {label for label, counts in by_label.items() if counts} == {
        name + host for name in policies.PAPER_BASELINES for host in ("", "+host")
    }
    assert "topas age_weight=0" in by_label
    with pytest.raises(SystemExit, match="--baselines: 'topas' is none of"):
        policies.variants_of(policies.arguments(["--baselines", "topas"]))
    policies.main([*SMALL, "--policies", "lpm+host,topas", "--brief", "--seeds", "7-8"])
    lines = capsys.readouterr().out.splitlines()
    assert "seeds 7 to 8" in lines[0]
    rows = [line for line in lines if "topas" in line or "lpm" in line]
    assert len(rows) == 2  # one of the workload, one of all workloads
    assert all(line.split().count("topas") == 1 for line in rows)
    assert "lpm+host" in rows[0]


def test_settings():
    """Values are numbers, words of JSON or text; unknown fields are refused."""
    config = policies.variant_of("topas", "age_weight=0.5,count_running=False,move_model=once")
    assert config.config == {"age_weight": 0.5, "count_running": False, "move_model": "once"}
    for wrong in ("no_such=1", "age_weight"):
        with pytest.raises(SystemExit, match=f"--set {wrong}: must be FIELD=VALUE"):
            policies.variant_of("topas", wrong)
