"""``topas bench-engine`` on the real engine: two policies, each in an engine of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import typer
from topas.cli.bench_engine import bench_engine
from typer.testing import CliRunner

if TYPE_CHECKING:
    from pathlib import Path

APP = typer.Typer()
APP.command()(bench_engine)

SIZE = ("--tasks", "10", "--agents", "4", "--prefix-tokens", "256", "--concurrency", "6")


def test_a_small_run_of_fcfs_and_topas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPAS_ENABLE", "1")  # the command decides, not who calls it
    path = tmp_path / "bench.json"
    arguments = ["chain-3", "--policies", "fcfs,topas", *SIZE, "--pool", "1500"]
    result = CliRunner().invoke(APP, [*arguments, "--json", str(path)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    assert "outputs: the same tokens in all 2 runs" in result.output
    fields = json.loads(path.read_text())
    assert [run["policy"] for run in fields["runs"]] == ["fcfs", "topas"]
    fcfs, topas = (run["figures"] for run in fields["runs"])
    for run in fields["runs"]:
        assert len(run["jct_s"]) == 10
        assert min(run["jct_s"]) > 0.0
        assert 0.0 < run["figures"]["hit_rate"] < 1.0
        assert run["figures"]["requests_per_s"] * run["figures"]["makespan_s"] == pytest.approx(30)
        # each prefix once at least, and the tokens that nobody shares
        assert 4 * 256 + 30 * 24 < run["figures"]["computed_tokens"] < 30 * (256 + 90)
    assert fcfs["decisions"] is None
    assert topas["decisions"] >= 10
    assert 0.0 < topas["decision_share"] <= topas["topas_share"] < 0.2
    assert topas["fallbacks"] == topas["hint_errors"] == 0
    counters = fields["runs"][1]["counters"]
    assert counters["topas:task_seconds_count"] == 10  # workflows were known and have ended
    assert not any(name.startswith("topas:") for name in fields["runs"][0]["counters"])
    calibration = fields["calibration"]
    assert calibration["fit"]["requests"] >= 20
    assert calibration["fit"]["costs"]["prefill_s_per_token"] > 0.0
    (learned,) = calibration["learned"]
    assert "costs learned by topas: prefill" in result.output
    assert learned["profile"] == fields["runs"][1]["learned"]
    for what in ("prefill_batch", "decode_step"):  # one run on a machine that may be busy
        assert 0.2 < learned[what]["learned_s"] / learned[what]["measured_s"] < 5.0
    assert fields["runs"][0]["learned"] == {}
    for row in calibration["comparison"].values():
        assert abs(row["mean JCT"]["error_percent"]) < 100.0
