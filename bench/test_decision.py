"""What one decision costs on the states that MetaGPT-SOP produces at high load.

    python -m pytest bench --benchmark-only

The answers are compared with the readable reference before anything is timed.
"""

from __future__ import annotations

from functools import cache

import pytest
import topas
from figures import figures
from recording import EventLog, record
from replaying import check, replay

PRESETS = ("paper", "guarded", "default")


@cache
def _log(preset: str) -> EventLog:
    return record("metagpt-sop", rate=0.15, tasks=60, seed=1, preset=preset)


@cache
def _states(preset: str) -> list[topas.Snapshot]:
    """Every twentieth state: both doors and the reference give the same decision."""
    log = _log(preset)
    done = replay(log, snapshot_every=20)
    assert len(check(log, done, referenced=len(done.snapshots)).reference_us) > 20
    return list(done.snapshots.values())


@pytest.mark.parametrize("preset", PRESETS)
def test_run(benchmark, preset):
    """A whole run: every event, ``decide`` and ``commit``; extra_info: ``decide`` alone, µs."""
    _states(preset)
    log = _log(preset)
    times: list[int] = []

    def run() -> None:
        times.extend(replay(log).decide_ns)

    benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    cost = figures([took / 1000 for took in times])
    benchmark.extra_info["decisions"] = log.decisions
    for name in ("mean", "p50", "p99"):
        benchmark.extra_info[f"decide_{name}_us"] = round(cost[name], 1)
    assert cost["mean"] < 200, "a decision takes well under 0.2 ms"


@pytest.mark.parametrize("preset", PRESETS)
def test_pure_decide(benchmark, preset):
    """The pure door on one loaded state: nothing is remembered from earlier decisions."""
    loaded = max(_states(preset), key=lambda state: len(state.to_dict()["requests"]))
    benchmark(topas.decide, loaded, _log(preset).config)
