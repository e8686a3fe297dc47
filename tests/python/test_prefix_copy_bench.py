"""bench/prefix_copy_gpu.py from end to end without a GPU: on the stand-ins for streams and events.

Its figures mean nothing there; that it runs, and what it writes, does.
"""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="copies of prefixes need torch")

from test_prefix_copy_streams import Event, _streams  # noqa: E402, F401 - used for every test here

BENCH = Path(__file__).resolve().parents[2] / "bench"
SMALL = {"DEVICE": "cpu", "LAYERS": 3, "DIM": 4, "SLOTS": 64, "MATRIX": 8, "REPEATS": 2}


class Timed(Event):
    """A stand-in for an event that knows when it was recorded."""

    def record(self, stream: Any = None) -> None:
        super().record(stream)
        self.time_s = time.perf_counter()

    def elapsed_time(self, other: Event) -> float:
        assert super().elapsed_time(other)
        assert isinstance(other, Timed)
        return (other.time_s - self.time_s) * 1e3


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, on small buffers in host memory."""
    monkeypatch.syspath_prepend(str(BENCH))
    module = importlib.import_module("prefix_copy_gpu")
    for name, value in SMALL.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "reason_not_to_run", lambda: None)
    monkeypatch.setattr(module, "machine", lambda: {"device": "none"})
    monkeypatch.setattr(module, "plain_seconds", lambda nbytes: {"save": 1e3, "load": 0.0})
    monkeypatch.setattr(torch.cuda, "Event", Timed)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return module


def test_all_is_measured_and_written(script: Any, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out.json"
    assert script.main(["--tokens", "8", "16", "--out", str(out)]) == 0
    written = json.loads(out.read_text("utf-8"))
    assert [row["tokens"] for row in written["rows"]] == [8, 16]
    for row in written["rows"]:
        assert row["exact"]
        for direction in ("save", "load"):
            runs = row["overlap"][direction]["runs"]
            assert len(runs) == SMALL["REPEATS"]
            for run in runs:
                assert len(run) == 4
                assert 0.0 < run["copy_start_ms"] < run["copy_end_ms"]
                assert 0.0 < run["compute_start_ms"] < run["compute_end_ms"]
    assert written["goals"]["bandwidth"]["missed"] == [
        "load of 8 tokens 0.00%",
        "load of 16 tokens 0.00%",
    ]
    assert "GOAL MISSED: bandwidth" in capsys.readouterr().out
