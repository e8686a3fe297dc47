"""bench/prefix_copy_gpu.py where there is no GPU, and its goals and files on made-up rows."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import prefix_copy_gpu
import pytest
from prefix_copy_goals import goals, is_time_left, line, summary


def row(tokens: int = 256, **fields: Any) -> dict[str, Any]:
    """A size that meets every goal but for the fields given."""
    copy = {
        "gb_per_s": 50.0,
        "share_of_plain": fields.get("share", 0.9),
        "share_of_plain_wall": 0.8,
    }
    return {
        "tokens": tokens,
        "exact": fields.get("exact", True),
        "save": {**copy, "share_of_plain": fields.get("save_share", 0.95)},
        "load": copy,
        "layers_s": {"first": 0.001, "last": 0.004},
        "overlap": {"save": {"ratio": 1.0}, "load": {"ratio": fields.get("ratio", 1.1)}},
        "took_s": fields.get("took_s", 1.0),
    }


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """The script as if there were a GPU; results go to a folder that is not there yet."""
    monkeypatch.setattr(prefix_copy_gpu, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(prefix_copy_gpu, "reason_not_to_run", lambda: None)
    monkeypatch.setattr(prefix_copy_gpu, "machine", lambda: {"device": "NVIDIA H200 (made up)"})
    monkeypatch.setattr(prefix_copy_gpu, "measure", row)
    return tmp_path / "results" / "prefix_copy_nvidia_h200_made_up.json"


def test_without_a_gpu_it_says_so_in_one_line():
    if prefix_copy_gpu.reason_not_to_run() is None:
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, prefix_copy_gpu.__file__], capture_output=True, text=True, check=True
    )
    (only,) = done.stdout.splitlines()
    assert only.startswith("prefix_copy_gpu: not run: torch ")


def test_goals_that_are_met():
    rows = [row(256), row(512)]
    found = goals(rows)
    assert all(goal["is_met"] and goal["missed"] == [] for goal in found.values())
    text = summary({"goals": found, "not_measured": [], "budget_s": 300.0})
    assert [one.partition(" (")[0] for one in text.splitlines()] == [
        "goal met: exact",
        "goal met: bandwidth",
        "goal met: overlap",
    ]
    assert "load  50.0 GB/s (90% of plain" in line(rows[0])


def test_a_missed_goal_is_said_plainly():
    rows = [row(256, save_share=0.712), row(512, ratio=1.15, share=0.8996), row(1024, exact=False)]
    found = goals(rows)
    assert found["bandwidth"] == {
        "wanted": "at least 90% of a plain pinned copy",
        "is_met": False,
        "missed": ["save of 256 tokens 71.20%", "load of 512 tokens 89.96%"],
    }
    assert found["overlap"]["missed"] == ["load of 512 tokens 1.150"]
    text = summary({"goals": found, "not_measured": [], "budget_s": 300.0})
    assert text.splitlines() == [
        "GOAL MISSED: exact (the same bits after a save and a load): 1024 tokens",
        "GOAL MISSED: bandwidth (at least 90% of a plain pinned copy): save of 256 tokens 71.20%, "
        "load of 512 tokens 89.96%",
        "GOAL MISSED: overlap (with compute less than 1.15 times the longer alone): "
        "load of 512 tokens 1.150",
    ]
    assert "WRONG BITS" in line(rows[2])


def test_no_goal_is_met_by_nothing():
    assert not any(goal["is_met"] for goal in goals([]).values())


def test_time_that_is_left():
    rows = [row(256, took_s=4.0)]
    assert is_time_left(512, rows, spent_s=92.0, budget_s=100.0)
    assert not is_time_left(512, rows, spent_s=92.1, budget_s=100.0)
    assert not is_time_left(64, rows, spent_s=96.1, budget_s=100.0), "a small one is no faster"
    assert is_time_left(512, [], spent_s=200.0, budget_s=100.0)


def test_the_file_is_named_with_the_device(on_a_gpu, capsys):
    assert prefix_copy_gpu.main([]) == 0
    written = json.loads(on_a_gpu.read_text("utf-8"))
    assert [one["tokens"] for one in written["rows"]] == list(prefix_copy_gpu.TOKENS)
    assert written["not_measured"] == []
    assert written["goals"]["bandwidth"]["is_met"]
    assert f"written: {on_a_gpu}" in capsys.readouterr().out
    assert [path.name for path in on_a_gpu.parent.iterdir()] == [on_a_gpu.name]


def test_a_missed_goal_is_in_the_file_and_wrong_bits_end_with_1(on_a_gpu, monkeypatch, capsys):
    monkeypatch.setattr(prefix_copy_gpu, "measure", lambda tokens: row(tokens, share=0.5))
    assert prefix_copy_gpu.main(["--tokens", "256"]) == 0
    assert not json.loads(on_a_gpu.read_text("utf-8"))["goals"]["bandwidth"]["is_met"]
    assert "GOAL MISSED: bandwidth" in capsys.readouterr().out
    monkeypatch.setattr(prefix_copy_gpu, "measure", lambda tokens: row(tokens, exact=False))
    assert prefix_copy_gpu.main(["--tokens", "256"]) == 1


def test_a_crash_keeps_what_was_measured(on_a_gpu, monkeypatch):
    def measure(tokens: int) -> dict[str, Any]:
        if tokens == 1024:
            raise RuntimeError("out of memory")
        return row(tokens)

    monkeypatch.setattr(prefix_copy_gpu, "measure", measure)
    with pytest.raises(RuntimeError, match="out of memory"):
        prefix_copy_gpu.main([])
    written = json.loads(on_a_gpu.read_text("utf-8"))
    assert [one["tokens"] for one in written["rows"]] == [256, 512]
    assert written["not_measured"] == [1024, 2048, 4096]


def test_sizes_without_time_are_skipped_and_named(on_a_gpu, monkeypatch, capsys):
    monkeypatch.setattr(prefix_copy_gpu, "measure", lambda tokens: row(tokens, took_s=tokens / 100))
    assert prefix_copy_gpu.main(["--budget-s", "15"]) == 0
    assert json.loads(on_a_gpu.read_text("utf-8"))["not_measured"] == [2048, 4096]
    out = capsys.readouterr().out
    assert "NOT MEASURED: 2048, 4096 tokens: 15 s would not be enough" in out
