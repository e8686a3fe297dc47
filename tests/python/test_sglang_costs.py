"""What the plugin learns of costs: the fit, the meter, the bandwidth on all ranks."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest
import topas
from topas.sglang.costs import FIRST_GUESS_BYTES_PER_S, CostMeter, Profile
from topas.sglang.fitting import LineFit
from topas.sglang.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIXED_S, TOKEN_S = 0.066, 129e-6  # a prefill on the CPU engine of the benchmarks
LENGTHS = (40, 60, 300, 1072, 2100)


def filled(
    lengths: Sequence[int] = LENGTHS,
    passes: int = 200,
    *,
    disturb: Callable[[int, float], float] = lambda at, seconds: seconds,
    seed: int = 0,
) -> LineFit:
    """Return a fit of prefill passes with 10 % noise, disturbed by a function of their number."""
    draw = random.Random(seed)
    fit = LineFit()
    for at in range(passes):
        tokens = draw.choice(lengths)
        seconds = (FIXED_S + TOKEN_S * tokens) * draw.lognormvariate(0.0, 0.1)
        fit.add(tokens, disturb(at, seconds))
    return fit


def off(fit: LineFit) -> float:
    """Return the largest relative error of a fit over the lengths."""
    return max(abs(fit.at(x) / (FIXED_S + TOKEN_S * x) - 1.0) for x in LENGTHS)


class TestLineFit:
    def test_both_parts_are_found_without_noise(self) -> None:
        fit = LineFit()
        for at in range(60):
            tokens = LENGTHS[at % len(LENGTHS)]
            fit.add(tokens, FIXED_S + TOKEN_S * tokens)
        assert fit.fixed_s == pytest.approx(FIXED_S, rel=0.01)
        assert fit.slope_s == pytest.approx(TOKEN_S, rel=0.01)

    @pytest.mark.parametrize("seed", range(5))
    def test_noise_costs_a_few_per_cent(self, seed: int) -> None:
        fit = filled(seed=seed)
        assert off(fit) < 0.1
        assert fit.slope_s == pytest.approx(TOKEN_S, rel=0.15)

    @pytest.mark.parametrize("flat", [False, True])
    def test_at_one_length_a_new_one_weighs_a_twentieth(self, flat: bool) -> None:
        fit = LineFit(flat=flat)
        for _ in range(400):
            fit.add(8, 0.02)
        fit.add(8, 0.03)
        assert fit.at(8) == pytest.approx(0.95 * 0.02 + 0.05 * 0.03, rel=1e-3)

    def test_the_start_is_a_median(self) -> None:
        fit = LineFit(flat=True)
        for seconds in (5.0, 0.02, 9.0, 0.021, 0.019):  # compilation on the first calls
            fit.add(1, seconds)
        assert fit.at(1) == 0.021
        assert fit.is_known

    def test_one_that_slept_moves_it_by_a_twentieth(self) -> None:
        fit = filled()
        before = [fit.at(x) for x in LENGTHS]
        fit.add(300, 50.0)
        for x, was in zip(LENGTHS, before, strict=True):
            assert was <= fit.at(x) < 1.12 * was

    @pytest.mark.parametrize("seed", range(5))
    def test_one_in_twenty_that_slept_is_borne(self, seed: int) -> None:
        def slept(at: int, seconds: float) -> float:
            return seconds * (100.0 if at % 20 == 7 else 1.0)

        assert off(filled(disturb=slept, passes=400, seed=seed)) < 0.25
        plain = sum(1.0 if at % 20 else 100.0 for at in range(20)) / 20
        assert plain > 5.0, "a mean would be off by a factor"

    def test_the_split_outlives_a_long_time_of_one_length(self) -> None:
        fit = filled()
        split = fit.fixed_s, fit.slope_s
        draw = random.Random(1)
        for _ in range(3000):
            fit.add(48, (FIXED_S + TOKEN_S * 48) * draw.lognormvariate(0.0, 0.1))
        assert (fit.fixed_s, fit.slope_s) == pytest.approx(split, rel=0.2)

    def test_an_engine_that_has_become_slower_is_followed(self) -> None:
        fit = filled(passes=400, disturb=lambda at, seconds: seconds * (4.0 if at > 200 else 1.0))
        assert fit.at(1072) == pytest.approx(4 * (FIXED_S + TOKEN_S * 1072), rel=0.15)
        fit = filled(passes=400, disturb=lambda at, seconds: seconds / (4.0 if at > 200 else 1.0))
        assert fit.at(1072) == pytest.approx((FIXED_S + TOKEN_S * 1072) / 4, rel=0.15)

    def test_times_that_fall_with_the_length_leave_no_negative_part(self) -> None:
        fit = LineFit()
        for at in range(200):
            fit.add(*((100, 1.0) if at % 2 else (1000, 0.5)))
            assert fit.fixed_s >= 0.0
            assert fit.slope_s >= 0.0
        assert fit.slope_s < 1e-4

    def test_a_convex_cost_leaves_no_negative_part(self) -> None:
        fit = LineFit()
        for at in range(300):
            x = (10, 100, 1000, 10_000)[at % 4]
            fit.add(x, 1e-8 * x * x)
            assert fit.fixed_s >= 0.0
            assert fit.slope_s > 0.0

    def test_what_is_no_duration_is_left_out(self) -> None:
        fit = filled()
        before = (fit.fixed_s, fit.slope_s, fit.count)
        for x, y in ((0, 1), (-1, 1), (5, 0), (5, -1), (5, math.nan), (math.nan, 1), (5, math.inf)):
            fit.add(x, y)
        assert (fit.fixed_s, fit.slope_s, fit.count) == before

    def test_a_length_without_any_doubt_divides_by_nothing(self) -> None:
        fit = filled()
        x = 1000.0
        fit._p = (1.0, -1.0 / x, 1.0 / x**2)  # the parts together are sure at x
        fit.add(x, 0.3)
        assert math.isfinite(fit.fixed_s + fit.slope_s + sum(fit._p))

    @pytest.mark.parametrize("seed", range(20))
    def test_numbers_stay_numbers(self, seed: int) -> None:
        draw = random.Random(seed)
        fit = LineFit(flat=draw.random() < 0.5)
        for _ in range(2000):
            fit.add(10.0 ** draw.uniform(0, 5), 10.0 ** draw.uniform(-9, 2))
            assert 0.0 <= fit.fixed_s < math.inf
            assert 0.0 <= fit.slope_s < math.inf
            assert all(map(math.isfinite, fit._p))
        for _ in range(1000):
            x = 10.0 ** draw.uniform(1, 4)
            fit.add(x, 0.01 + 1e-4 * x)
        assert fit.at(300) == pytest.approx(0.04, rel=0.3), "it recovers"


def measured(meter: CostMeter, passes: int = 60) -> CostMeter:
    """Give a meter prefill passes, and decode steps of one to eight requests."""
    for at in range(passes):
        tokens = LENGTHS[at % len(LENGTHS)]
        meter.passed(FIXED_S + TOKEN_S * tokens, tokens)
        running = 1 + at % 8
        meter.passed(0.008 + 0.001 * running, 0, 0, running)
    return meter


class TestCostMeter:
    def test_prompt_tokens_and_decode_steps_are_told_apart(self) -> None:
        meter = measured(CostMeter())
        assert meter.prefill_fixed_s == pytest.approx(FIXED_S, rel=0.02)
        assert meter.prefill_s_per_token == pytest.approx(TOKEN_S, rel=0.02)
        assert meter.decode_s_per_token == pytest.approx(0.0125, rel=0.1)
        expected = FIXED_S + 100 * TOKEN_S + 10 * meter.decode_s_per_token
        assert meter.request_s(100, 10) == pytest.approx(expected, rel=0.02)

    def test_a_decode_step_is_that_of_as_many_as_run(self) -> None:
        meter = measured(CostMeter())
        for _ in range(100):
            meter.passed(0.016, 0, 0, 8)
        assert meter.decode_s_per_token == pytest.approx(0.016, rel=0.02)
        for _ in range(100):
            meter.passed(0.009, 0, 0, 1)
        assert meter.decode_s_per_token == pytest.approx(0.009, rel=0.05)

    def test_passes_of_no_time_or_of_minutes_count_for_nothing(self) -> None:
        meter = CostMeter()
        before = meter.profile
        for seconds in (0.0, -1.0, 61.0, math.nan):
            meter.passed(seconds, 0)
            meter.passed(seconds, 10)
        assert meter.profile == before

    def test_of_a_mixed_batch_the_decode_step_is_taken_off(self) -> None:
        meter = measured(CostMeter())
        pure = meter.profile
        for at in range(200):
            tokens = LENGTHS[at % len(LENGTHS)]
            step_s = 0.008 + 0.001 * 6
            meter.passed(step_s + FIXED_S + TOKEN_S * tokens, tokens, 6, 8)
        assert meter.prefill_fixed_s == pytest.approx(FIXED_S, rel=0.05)
        assert meter.prefill_s_per_token == pytest.approx(TOKEN_S, rel=0.05)
        assert meter.decode_s_per_token == pure.decode_s_per_token

    def test_a_mixed_batch_before_any_decode_step_says_nothing(self) -> None:
        meter = CostMeter()
        before = meter.profile
        meter.passed(1.0, 100, 4, 5)
        assert meter.profile == before
        meter = measured(CostMeter())
        before = meter.profile
        meter.passed(1e-4, 100, 4, 5)  # less than a decode step
        assert meter.profile == before

    @pytest.mark.parametrize("delay", [0, 1])
    def test_a_batch_is_paid_for_by_the_pass_that_waited_for_it(self, delay: int) -> None:
        meter = CostMeter(delay=delay)
        launches = [(0.0, 500), (1.0, 0), (1.1, 0), (1.2, None), (9.0, None), (9.1, None)]
        if delay:  # the result of a launch is in a pass later
            launches = [(0.0, 500), (0.1, 0), (1.1, 0), (1.2, None), (1.3, None), (9.1, None)]
        for now, tokens in launches:
            meter.tick(now)
            if tokens is not None:
                meter.launched(tokens, running=1)
        assert meter.prefill_s_per_token == pytest.approx(1.0 / 500)
        assert meter.decode_s_per_token == pytest.approx(0.1)

    def test_an_idle_engine_that_wakes_up_has_measured_nothing(self) -> None:
        meter = CostMeter()
        now = 0.0
        for _ in range(20):
            for tokens in (100, 0, 0, None):
                meter.tick(now)
                if tokens is not None:
                    meter.launched(tokens, running=1)
                now += 0.03 if tokens else 0.01
            now += 45.0  # shorter than the longest pass
        assert meter.decode_s_per_token == pytest.approx(0.01)
        assert meter.request_s(100, 0) == pytest.approx(0.03)

    def test_only_changes_that_matter_are_told(self) -> None:
        meter = measured(CostMeter())
        assert meter.has_changed
        meter.config_fields()
        assert not meter.has_changed
        meter.passed(0.02, 0, 0, 8)
        assert not meter.has_changed, "a few per cent"
        for _ in range(40):
            meter.passed(0.04, 0, 0, 8)
        assert meter.has_changed
        meter.config_fields()
        assert not meter.has_changed

    def test_a_load_by_prefill_is_charged_with_all_that_wait_meanwhile(self) -> None:
        meter, plain = CostMeter(), CostMeter(stalls=False)
        for each in (meter, plain):
            each.passed(1.0, 1000)
            for _ in range(3):
                each.launched(0, running=8)
        assert plain.config_fields()["swap_bytes_per_s"] == pytest.approx(1000)
        assert "move_weight" not in plain.config_fields()
        assert meter.config_fields()["swap_bytes_per_s"] == pytest.approx(1000)
        assert meter.config_fields()["kv_bytes_per_token"] == 1.0
        assert meter.config_fields()["move_weight"] == pytest.approx(8)
        for _ in range(100):
            meter.launched(0, running=0)
        assert meter.has_changed
        assert meter.config_fields()["move_weight"] == 1.0, "it is paid for in any case"

    def test_a_load_by_prefill_has_its_share_of_the_fixed_part(self) -> None:
        meter = measured(CostMeter())
        usual = meter._prompt
        assert usual is not None
        price_s = 1.0 / meter.config_fields()["swap_bytes_per_s"]
        assert price_s == pytest.approx(FIXED_S / usual + TOKEN_S, rel=0.02)

    def test_the_fields_are_legal_from_the_start(self) -> None:
        topas.Config.from_dict({"kv_capacity_tokens": 1, **CostMeter().config_fields()})

    def test_the_core_gets_what_is_measured(self) -> None:
        meter = measured(CostMeter())
        meter.task_took(5.0)
        config = Settings().config(
            capacity=100, max_running_requests=4, costs=meter.config_fields()
        )
        assert config.prefill_fixed_s == meter.prefill_fixed_s
        assert config.prefill_s_per_token == meter.prefill_s_per_token
        assert config.decode_s_per_token == meter.decode_s_per_token
        assert config.age_scale_s == 5.0

    def test_whoever_wants_to_know_is_told_with_the_core(self) -> None:
        told: list[Profile] = []
        meter = CostMeter(tell=told.append)
        meter.config_fields()
        measured(meter)
        assert len(told) == 1
        meter.config_fields()
        assert [profile.is_full for profile in told] == [False, True]
        assert told[1] == meter.profile

    def test_a_full_profile_is_news_by_itself(self) -> None:
        meter = CostMeter()
        for _ in range(5):
            meter.config_fields()
            meter.passed(0.1, 1000)
            meter.passed(0.02, 0)
        assert meter.profile.is_full
        assert meter.has_changed


class TestCopies:
    def test_until_one_is_measured_there_is_a_first_guess(self) -> None:
        meter = measured(CostMeter())
        for _ in range(9):
            meter.ran(8)
        meter.copy_prefixes(28_672, lambda: None)
        fields = meter.config_fields()
        assert fields["kv_bytes_per_token"] == 28_672
        assert fields["swap_bytes_per_s"] == FIRST_GUESS_BYTES_PER_S
        assert "move_weight" not in fields, "others go on meanwhile"

    def test_bytes_and_bandwidth_are_in_real_units(self) -> None:
        bandwidth: list[float | None] = [None]
        meter = measured(CostMeter())
        meter.config_fields()
        meter.copy_prefixes(28_672, lambda: bandwidth[0])
        assert meter.has_changed, "loads cost something else now"
        meter.config_fields()
        bandwidth[0] = 21e9
        assert not meter.has_changed, "what was guessed was about right"
        bandwidth[0] = 52e9
        assert meter.has_changed
        fields = meter.config_fields()
        assert fields["swap_bytes_per_s"] == meter.profile.swap_bytes_per_s == 52e9
        config = Settings().config(capacity=100, max_running_requests=4, costs=fields)
        assert config.move_weight == 0.0  # the preset's
        assert config.kv_bytes_per_token / config.swap_bytes_per_s == 28_672 / 52e9

    @pytest.mark.parametrize("bytes_", [0.0, -1.0, math.nan])
    def test_a_token_has_bytes(self, bytes_: float) -> None:
        with pytest.raises(topas.ArgumentError, match=r"kv_bytes_per_token: .* got"):
            CostMeter().copy_prefixes(bytes_, lambda: None)


class TestRanks:
    def test_the_same_times_give_the_same_costs_bit_for_bit(self) -> None:
        draw = random.Random(3)
        passes = [
            (draw.uniform(0.001, 0.5), draw.choice((0, 0, 50, 900)), draw.randrange(9))
            for _ in range(500)
        ]
        meters = CostMeter(1), CostMeter(1)
        for meter in meters:
            now = 0.0
            for seconds, tokens, running in passes:
                now += seconds
                meter.tick(now)
                meter.launched(tokens, running, min(running, 2) if tokens else 0)
        assert meters[0].config_fields() == meters[1].config_fields()
        assert meters[0].profile.is_full
