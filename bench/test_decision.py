"""What one decision costs on the states that MetaGPT-SOP produces at high load.

    python -m pytest bench --benchmark-only

The answers are compared with the readable reference before anything is timed.
"""

from __future__ import annotations

import statistics
from functools import cache

import pytest
import topas
from recording import EventLog, record, replay
from topas import reference

PRESETS = ("paper", "default")


@cache
def _log(preset: str) -> EventLog:
    return record("metagpt-sop", rate=0.15, tasks=60, seed=1, preset=preset)


@cache
def _check(preset: str) -> None:
    """Every twentieth state: both doors and the reference give the same decision."""
    log = _log(preset)
    done = replay(log, snapshot_every=20)
    assert len(done.snapshots) > 20
    for snapshot, decision in zip(done.snapshots, done.decisions, strict=True):
        pure = topas.decide(snapshot, log.config)
        assert pure.to_dict() == decision.to_dict()
        wanted = reference.decide(snapshot.to_dict(), log.config.to_dict())
        got = decision.to_dict()
        assert {key: wanted[key] for key in ("resident", "admit", "preempt")} == {
            key: got[key] for key in ("resident", "admit", "preempt")
        }
        assert wanted["score"] == pytest.approx(got["score"], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("preset", PRESETS)
def test_run(benchmark, preset):
    """A whole run: every event, ``decide`` and ``commit``; extra_info: ``decide`` alone, µs."""
    _check(preset)
    log = _log(preset)
    times: list[float] = []

    def run() -> None:
        times.extend(replay(log).decide_s)

    benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    cuts = statistics.quantiles(times, n=100)
    benchmark.extra_info["decisions"] = log.decisions
    benchmark.extra_info["decide_mean_us"] = round(1e6 * statistics.fmean(times), 1)
    benchmark.extra_info["decide_p50_us"] = round(1e6 * cuts[49], 1)
    benchmark.extra_info["decide_p99_us"] = round(1e6 * cuts[98], 1)
    assert statistics.fmean(times) < 200e-6, "a decision takes well under 0.2 ms"


@pytest.mark.parametrize("preset", PRESETS)
def test_pure_decide(benchmark, preset):
    """The pure door on one loaded state: nothing is remembered from earlier decisions."""
    _check(preset)
    log = _log(preset)
    states = replay(log, snapshot_every=20).snapshots
    loaded = max(states, key=lambda state: len(state.to_dict()["requests"]))
    benchmark(topas.decide, loaded, log.config)
