"""What the plugin shows of costs and copies: in memory, in the log, and as Prometheus has it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from topas.sglang.copy_counts import CopyCounts
from topas.sglang.costs import Profile
from topas.sglang.metrics import Copies, Counts, Prometheus

PROFILE = Profile(
    prefill_fixed_s=0.0021,
    prefill_s_per_token=64e-6,
    decode_s_per_token=0.0187,
    swap_bytes_per_s=42e9,
    task_s=3.5,
    is_full=True,
)


class Log:
    """The lines of the log, on a clock that is set by hand."""

    def __init__(self, patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self.now = 100.0
        caplog.set_level(logging.INFO, "topas.sglang.metrics")
        patch.setattr("topas.sglang.metrics.time", self)

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    @property
    def lines(self) -> list[str]:
        """Return what was written."""
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Log:
    """Return the log."""
    return Log(monkeypatch, caplog)


class TestLog:
    def test_the_first_full_profile_is_a_line(self, log: Log) -> None:
        counts = Counts()
        counts.set_profile(replace(PROFILE, is_full=False))
        assert log.lines == []
        counts.set_profile(PROFILE)
        counts.set_profile(PROFILE)
        assert log.lines == [
            "profile: prefill 2.1 ms + 64 us/token, decode 18.7 ms/token, swap 42 GB/s, tasks 3.5 s"
        ]

    def test_without_copies_and_tasks_the_line_says_so(self, log: Log) -> None:
        Counts().set_profile(replace(PROFILE, swap_bytes_per_s=None, task_s=None))
        assert log.lines == [
            "profile: prefill 2.1 ms + 64 us/token, decode 18.7 ms/token, no copies"
        ]

    @pytest.mark.parametrize(
        ("change", "worth_it"),
        [
            ({"decode_s_per_token": 0.0187 * 1.6}, True),
            ({"decode_s_per_token": 0.0187 / 1.6}, True),
            ({"decode_s_per_token": 0.0187 * 1.4}, False),
            ({"swap_bytes_per_s": 20e9}, True),
            ({"prefill_fixed_s": 0.0}, False),
            ({"prefill_s_per_token": 1e-9}, True),
        ],
    )
    def test_large_changes_are_lines(self, log: Log, change: dict, worth_it: bool) -> None:
        counts = Counts()
        counts.set_profile(PROFILE)
        log.now += 61.0
        counts.set_profile(replace(PROFILE, **change))
        assert len(log.lines) == 1 + worth_it

    def test_there_is_at_most_one_a_minute(self, log: Log) -> None:
        counts = Counts()
        for at in range(200):
            log.now += 1.0
            counts.set_profile(replace(PROFILE, decode_s_per_token=0.01 * (1 + at % 2)))
        assert 3 <= len(log.lines) <= 4

    def test_small_steps_add_up_to_a_large_change(self, log: Log) -> None:
        counts = Counts()
        for at in range(10):
            log.now += 61.0
            counts.set_profile(replace(PROFILE, decode_s_per_token=0.01 * 1.1**at))
        assert len(log.lines) == 2

    def test_the_first_task_is_news(self, log: Log) -> None:
        counts = Counts()
        counts.set_profile(replace(PROFILE, task_s=None))
        log.now += 61.0
        counts.set_profile(PROFILE)
        assert len(log.lines) == 2


def test_counts_have_the_latest_profile_and_copies() -> None:
    counts = Counts()
    assert counts.profile is None
    assert counts.copies == Copies()
    counts.set_profile(PROFILE)
    counts.set_copies(Copies(loads=3, pinned_prefixes=2))
    assert counts.profile is PROFILE
    assert (counts.copies.loads, counts.copies.pinned_prefixes) == (3, 2)


def test_the_totals_of_the_store_go_in_as_they_are() -> None:
    totals = CopyCounts(saves=1, loads=2, load_bytes=3, load_s=0.5, failures=4)
    copies = Copies(**vars(totals), pinned_prefixes=5)
    assert (copies.saves, copies.loads, copies.load_bytes, copies.load_s) == (1, 2, 3, 0.5)
    assert (copies.failures, copies.pinned_prefixes) == (4, 5)


class TestPrometheus:
    """The same through the real client."""

    @pytest.fixture(autouse=True)
    def _client(self) -> None:
        self.registry = pytest.importorskip("prometheus_client").REGISTRY

    def sample(self, name: str, model: str, **labels: str) -> Any:
        return self.registry.get_sample_value("topas:" + name, {"model_name": model, **labels})

    def test_every_cost_is_a_gauge(self) -> None:
        counts = Prometheus({"model_name": "costs"})
        counts.set_profile(replace(PROFILE, swap_bytes_per_s=None, task_s=None))
        assert self.sample("swap_bytes_per_second", "costs") is None, "nothing is copied"
        counts.set_profile(PROFILE)
        found = [
            self.sample(name, "costs")
            for name in (
                "prefill_fixed_seconds",
                "prefill_token_seconds",
                "decode_token_seconds",
                "swap_bytes_per_second",
                "task_scale_seconds",
            )
        ]
        assert found == [0.0021, 64e-6, 0.0187, 42e9, 3.5]

    def test_totals_are_counters_and_the_rest_gauges(self) -> None:
        counts = Prometheus({"model_name": "copies"})
        first = Copies(saves=1, loads=2, save_bytes=10, load_bytes=20, save_s=0.1, load_s=0.2)
        counts.set_copies(replace(first, pinned_prefixes=3, pinned_tokens=300, loads_in_flight=1))
        then = replace(first, loads=5, load_bytes=50, failures=1, cancellations=2)
        counts.set_copies(replace(then, host_evictions=4, pins_dropped=6, pinned_tokens=200))
        totals = {
            (name, way): self.sample(f"prefix_{name}_total", "copies", direction=way)
            for name in ("copies", "copy_bytes", "copy_seconds")
            for way in ("save", "load")
        }
        assert totals == {
            ("copies", "save"): 1,
            ("copies", "load"): 5,
            ("copy_bytes", "save"): 10,
            ("copy_bytes", "load"): 50,
            ("copy_seconds", "save"): 0.1,
            ("copy_seconds", "load"): 0.2,
        }
        assert self.sample("prefix_copy_failures_total", "copies") == 1
        assert self.sample("prefix_copy_cancellations_total", "copies") == 2
        assert self.sample("host_evictions_total", "copies") == 4
        assert self.sample("pins_dropped_total", "copies") == 6
        assert self.sample("pinned_prefixes", "copies") == 0
        assert self.sample("pinned_prefix_tokens", "copies") == 200
        assert self.sample("prefix_loads_in_flight", "copies") == 0

    def test_a_store_that_begins_anew_takes_nothing_back(self) -> None:
        counts = Prometheus({"model_name": "anew"})
        for loads in (3, 0, 2):
            counts.set_copies(Copies(loads=loads))
        assert self.sample("prefix_copies_total", "anew", direction="load") == 5
