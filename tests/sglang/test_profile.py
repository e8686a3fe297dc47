"""What the plugin learns of the engine's costs, beside what a test measures or makes up."""

from __future__ import annotations

import logging
import statistics
import time
from typing import TYPE_CHECKING, Any

import pytest
from driving import LOOPS, bridge_of, finish, tokens
from topas.sglang.costs import CostMeter

if TYPE_CHECKING:
    from collections.abc import Callable

    from driving import Start
    from engine import InProcessEngine

PREFILL_S, PROMPT_TOKEN_S = 0.02, 50e-6
DECODE_S, ROW_S = 0.005, 0.001


class Model:
    """A clock that goes on by what a batch costs, by a made-up model."""

    def __init__(self, engine: InProcessEngine, patch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        patch.setattr("topas.sglang.clock.time", self)
        self._forward = engine.scheduler.run_batch
        self.steps = self.mixed = 0
        engine.scheduler.run_batch = self._run_batch  # type: ignore[method-assign]

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def _run_batch(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if batch.forward_mode.is_decode():
            self.steps += 1
            self.now += DECODE_S + ROW_S * len(batch.reqs)
        else:
            rows = len(batch.decoding_reqs or ())
            self.mixed += rows > 0
            self.now += (DECODE_S + ROW_S * rows) if rows else 0.0
            self.now += PREFILL_S + PROMPT_TOKEN_S * (batch.extend_num_tokens - rows)
        return self._forward(batch, *args, **kwargs)


def meter_of(engine: InProcessEngine) -> CostMeter:
    """Return what an engine's bridge has learned."""
    return bridge_of(engine)._costs


def submit_alone(engine: InProcessEngine, count: int = 40) -> None:
    """Submit requests that share nothing, of very different lengths."""
    for at in range(count):
        engine.submit(f"r{at:02}", tokens(700 + at, (20, 90, 250)[at % 3]), 6 + at % 9)


@LOOPS
def test_the_costs_of_a_made_up_engine_are_found(
    drive: Start, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    engine = drive(disable_overlap_schedule=not overlap, max_running_requests=6)
    model = Model(engine, monkeypatch)
    submit_alone(engine)
    finish(engine)
    profile = bridge_of(engine).counts.profile
    meter = meter_of(engine)
    assert profile is not None
    assert profile.is_full
    assert profile.prefill_fixed_s == pytest.approx(PREFILL_S, rel=0.25), "told within a fifth"
    assert meter.prefill_fixed_s == pytest.approx(PREFILL_S, rel=0.1)
    assert meter.prefill_s_per_token == pytest.approx(PROMPT_TOKEN_S, rel=0.1)
    for rows in (1, 3, 6):
        assert meter._decode.at(rows) == pytest.approx(DECODE_S + ROW_S * rows, rel=0.1)
    assert model.steps > 50
    assert profile.swap_bytes_per_s is None


@LOOPS
def test_mixed_batches_are_taken_apart(
    drive: Start, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    engine = drive(
        disable_overlap_schedule=not overlap,
        max_running_requests=6,
        chunked_prefill_size=64,
        enable_mixed_chunk=True,
    )
    model = Model(engine, monkeypatch)
    submit_alone(engine, 60)
    finish(engine)
    meter = meter_of(engine)
    assert model.mixed > 20, "most prompts are computed beside requests that decode"
    for count in (20, 60):  # chunks are too short to tell the two parts well apart
        learned_s = meter.prefill_fixed_s + meter.prefill_s_per_token * count
        assert learned_s == pytest.approx(PREFILL_S + PROMPT_TOKEN_S * count, rel=0.2)
    expected = DECODE_S + ROW_S * (meter._decoding or 0.0)
    assert meter.decode_s_per_token == pytest.approx(expected, rel=0.1)


@pytest.mark.stopwatch
@LOOPS
def test_the_costs_of_the_real_engine_are_about_what_a_stopwatch_says(
    drive: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    overlap: bool,
) -> None:
    caplog.set_level(logging.INFO, "topas.sglang.metrics")
    engine = drive(disable_overlap_schedule=not overlap, max_running_requests=6)
    monkeypatch.setattr("topas.sglang.clock.time", time)
    prefills: list[tuple[int, float]] = []
    decodes: list[float] = []
    forward = engine.scheduler.run_batch

    def run_batch(batch: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        result = forward(batch, *args, **kwargs)
        took = time.perf_counter() - begin
        if batch.forward_mode.is_decode():
            decodes.append(took)
        else:
            prefills.append((int(batch.extend_num_tokens), took))
        return result

    engine.scheduler.run_batch = run_batch  # type: ignore[method-assign]
    submit_alone(engine, 60)
    finish(engine)
    meter = meter_of(engine)
    # a pass is a batch and what the scheduler does around it; the machine may be busy
    late = prefills[len(prefills) // 2 :]
    passes_s = statistics.median(took for _, took in late)
    mean_tokens = statistics.median(count for count, _ in late)
    learned_s = meter.prefill_fixed_s + meter.prefill_s_per_token * mean_tokens
    assert passes_s / 2 < learned_s < 3 * passes_s
    step_s = statistics.median(decodes[len(decodes) // 2 :])
    assert step_s / 2 < meter.decode_s_per_token < 4 * step_s
    lines = [record.getMessage() for record in caplog.records if "profile: " in record.message]
    assert len(lines) == 1
    assert "ms/token, no copies" in lines[0]


def test_the_core_is_configured_with_what_is_learned(
    drive: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = drive(max_running_requests=4)
    Model(engine, monkeypatch)
    bridge = bridge_of(engine)
    told: list[Any] = []
    reconfigure = bridge.core.reconfigure

    def seen(config: Any) -> None:
        told.append(config)
        reconfigure(config)

    monkeypatch.setattr(bridge, "core", _Spied(bridge.core, seen))
    submit_alone(engine)
    engine.run()
    assert told
    profile = bridge.counts.profile
    assert profile is not None
    assert told[-1].prefill_fixed_s == profile.prefill_fixed_s
    assert told[-1].prefill_s_per_token == profile.prefill_s_per_token
    assert told[-1].decode_s_per_token == profile.decode_s_per_token


class _Spied:
    """A core whose ``reconfigure`` is looked at."""

    def __init__(self, core: Any, reconfigure: Callable[[Any], None]) -> None:
        self._core = core
        self.reconfigure = reconfigure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)
