"""SGLang's own policies and topas are timed on equal queues (bench/sglang_policies.py)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import sglang_policies


def test_rows_of_a_short_queue() -> None:
    rows = sglang_policies.compare(waiting=(10,), rounds=3)
    policies = ["SGLang fcfs", "SGLang lpm", "topas paper", "topas guarded", "topas default"]
    assert [row["policy"] for row in rows] == policies
    assert all(0 < row["p50"] <= row["max"] for row in rows)
    assert all(policy in sglang_policies.report(rows) for policy in policies)
