"""The cost model against sums made one step at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from topas.errors import ConfigError
from topas.sim import EngineCosts, EngineOptions
from topas.sim.cost import TYPICAL_BATCH


def _step_by_step(costs: EngineCosts, steps: int, batch: int, context: int) -> float:
    total = 0.0
    for step in range(steps):
        total += costs.decode_fixed_s
        total += costs.decode_s_per_context_token * (context + batch * step)
    return total


def test_defaults_are_those_of_the_a100() -> None:
    costs = EngineCosts()
    assert costs.decode_s(1, 10, 80_000) == pytest.approx(0.036 + 0.0128)
    assert costs.prefill_s(1400) == pytest.approx(0.49)
    assert costs.swap_s(7500) == pytest.approx(0.098304)
    assert costs.prefill_s(0) == 0.0


@given(st.integers(1, 300), st.integers(1, 30), st.integers(0, 100_000))
def test_many_steps_cost_the_sum_of_single_ones(steps: int, batch: int, context: int) -> None:
    costs = EngineCosts()
    assert costs.decode_s(steps, batch, context) == pytest.approx(
        _step_by_step(costs, steps, batch, context), rel=1e-12
    )


@given(
    st.floats(0.0, 50.0),
    st.integers(1, 30),
    st.integers(0, 100_000),
    st.integers(1, 400),
    st.sampled_from([0.0, 0.16e-6, 1e-3]),
    st.sampled_from([0.0, 0.036, 1.0]),
)
def test_steps_to_reach_is_the_first_boundary_at_or_after(
    delay: float, batch: int, context: int, limit: int, per_token: float, fixed: float
) -> None:
    costs = EngineCosts(decode_s_per_context_token=per_token, decode_fixed_s=fixed)
    steps = costs.steps_to_reach(delay, batch, context, limit)
    expected = limit
    for candidate in range(1, limit + 1):
        if costs.decode_s(candidate, batch, context) >= delay - 1e-9:
            expected = candidate
            break
    assert steps == expected


def test_a_boundary_met_exactly_counts_as_reached() -> None:
    costs = EngineCosts(decode_fixed_s=0.1, decode_s_per_context_token=0.0)
    assert costs.steps_to_reach(0.3, 1, 0, 10) == 3
    assert costs.steps_to_reach(0.3000001, 1, 0, 10) == 4
    assert costs.steps_to_reach(float("inf"), 1, 0, 10) == 10


def test_profiled_service_of_a_request() -> None:
    costs = EngineCosts()
    step = 0.036 + 0.16e-6 * TYPICAL_BATCH * (5000 + 1400 + 350)
    assert costs.request_s(5000, 1400, 700) == pytest.approx(0.49 + 700 * step)


@pytest.mark.parametrize(
    "field",
    [
        "kv_capacity",
        "kv_bytes_per_token",
        "swap_bytes_per_s",
        "decode_fixed_s",
        "decode_s_per_context_token",
        "prefill_fixed_s",
        "prefill_s_per_token",
    ],
)
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "5", True, None])
def test_illegal_costs_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        EngineCosts(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["kv_capacity", "swap_bytes_per_s"])
def test_zero_capacity_and_bandwidth_are_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        EngineCosts(**{field: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("over_reserve", 0.5),
        ("over_reserve", float("nan")),
        ("redo_model", "magic"),
        ("max_running", -1),
        ("max_running", 1.5),
        ("max_time_s", 0),
        ("max_time_s", float("inf")),
        ("stall_limit", 0),
        ("batching", "piecewise"),
        ("chunked_prefill_tokens", 0),
        ("charge_decisions_s", -1.0),
        ("charge_decisions_s", float("inf")),
    ],
)
def test_illegal_options_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        EngineOptions(**{field: value})  # type: ignore[arg-type]
