"""Means over seeds with Student's t, and paired reductions."""

from __future__ import annotations

import math

import pytest
from topas.errors import ArgumentError
from topas.sim.study.statistics import interval, paired_reduction


def test_interval_with_students_t() -> None:
    item = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert item.mean == 3.0
    assert item.half_width == pytest.approx(2.776 * math.sqrt(2.5) / math.sqrt(5))
    assert interval([7.0]).half_width is None
    many = interval([0.0, 1.0] * 30)  # 59 degrees of freedom: 2.001
    assert many.half_width == pytest.approx(2.001 * math.sqrt(15 / 59) / math.sqrt(60), rel=1e-3)
    with pytest.raises(ArgumentError, match="values: none given"):
        interval([])


def test_reductions_are_paired_by_seed() -> None:
    item = paired_reduction([50.0, 150.0], [100.0, 300.0])
    assert (item.mean, item.half_width) == (50.0, 0.0)
    assert paired_reduction([110.0], [100.0]).mean == pytest.approx(-10.0)
    with pytest.raises(ArgumentError, match="2 values for 1"):
        paired_reduction([1.0, 2.0], [1.0])
    with pytest.raises(ArgumentError, match="theirs: must be above 0"):
        paired_reduction([1.0], [0.0])
