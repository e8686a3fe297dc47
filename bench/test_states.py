"""Decisions on the recorded states, whose instructions are counted, are those of other doors."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from machine import BENCH

STATES = sorted((Path(__file__).parent / "states").glob("*.log"))


@pytest.mark.parametrize("path", STATES, ids=lambda path: path.stem)
def test_decisions_on_recorded_states(path: Path) -> None:
    if not BENCH.exists():
        pytest.skip("topas_bench is not built (cmake --build --preset default)")
    done = subprocess.run([BENCH, "--check", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"(\d+) decisions are those of the other doors", done.stdout)
    assert found is not None
    assert int(found[1]) >= 10
