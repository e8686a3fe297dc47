"""Means over seeds with 95 % confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from topas.errors import ArgumentError

__all__ = ["Interval", "interval", "paired_reduction"]

# The 97.5 % quantile of Student's t by degrees of freedom, 1 to 30; normal above (1.96 + 2.4/df).
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % confidence interval.

    Parameters
    ----------
    mean : float
        Of the values.
    half_width : float or None
        Half of the interval around it; ``None`` for a single value.
    values : tuple of float
        One for each seed.
    """

    mean: float
    half_width: float | None
    values: tuple[float, ...]

    def to_dict(self) -> dict[str, object]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "values": list(self.values)}


def interval(values: Sequence[float]) -> Interval:
    """Mean over independent values, with Student's t.

    Parameters
    ----------
    values : sequence of float
        At least one.

    Raises
    ------
    ArgumentError
        There is none.
    """
    if not values:
        raise ArgumentError("values: none given")
    sample = np.asarray(values, dtype=float)
    mean, freedom = float(sample.mean()), len(values) - 1
    if freedom == 0:
        return Interval(mean, None, tuple(values))
    quantile = _T[freedom - 1] if freedom <= len(_T) else 1.96 + 2.4 / freedom
    half = quantile * float(sample.std(ddof=1)) / math.sqrt(len(values))
    return Interval(mean, half, tuple(values))


def paired_reduction(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Reduction ``1 - ours / theirs`` in percent, paired by seed.

    Parameters
    ----------
    ours, theirs : sequence of float
        One value for each seed, in the same order; ``theirs`` above 0.

    Raises
    ------
    ArgumentError
        The two do not match, are empty, or a value of ``theirs`` is not above 0.
    """
    if len(ours) != len(theirs):
        raise ArgumentError(f"ours: {len(ours)} values for {len(theirs)} of theirs")
    for value in theirs:
        if not value > 0.0:
            raise ArgumentError(f"theirs: must be above 0, got {value!r}")
    return interval([100.0 * (1.0 - a / b) for a, b in zip(ours, theirs, strict=True)])
