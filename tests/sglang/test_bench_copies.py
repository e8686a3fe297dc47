"""Copies of an engine's KV are timed beside computing it (bench/copy_or_compute.py)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import copy_or_compute


def test_rows_of_short_prompts() -> None:
    rows = copy_or_compute.compare(model="tiny", tokens=(48, 96), rounds=2)
    assert [row["tokens"] for row in rows] == [48, 96]
    for row in rows:
        assert row["exact"]
        assert 0.0 < row["cached_ms"] < row["computed_ms"]
        assert row["load_ms"] > 0.0
        assert row["save_ms"] > 0.0
    assert "| 96 |" in copy_or_compute.report(rows)
    assert "DIFFER" not in copy_or_compute.report(rows)
