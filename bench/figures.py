"""What a table says of many costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

Figures = dict[str, float]


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the ascending costs that so large a share stays within."""
    return ordered[max(1, math.ceil(share * len(ordered))) - 1]


def figures(costs: Sequence[float]) -> Figures:
    """Count, mean, median, 99th percentile and maximum."""
    ordered = sorted(costs)
    return {
        "count": len(ordered),
        "mean": statistics.fmean(ordered),
        "p50": quantile(ordered, 0.5),
        "p99": quantile(ordered, 0.99),
        "max": ordered[-1],
    }


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The power of the size that the costs grow with: least squares in logarithms."""
    slope, _ = statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    )
    return slope
