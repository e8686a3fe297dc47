"""One policy against the best of others: ratios of a figure over repeated runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topas.sim.study.statistics import Interval, interval

__all__ = [
    "JCT_METRICS",
    "SMALLEST_SHOWN",
    "Ratio",
    "best_of",
    "complete",
    "ratio_to",
    "ratio_to_best",
]

#: What policies are compared by; of both less is better.
JCT_METRICS: tuple[str, ...] = ("mean_jct_s", "p99_jct_s")

#: Smaller changes than this are shown as none.
SMALLEST_SHOWN = 0.005

#: A figure for each repetition; ``None`` where a run did not finish all its tasks.
Values = Sequence[float | None]


@dataclass(frozen=True)
class Ratio:
    """A figure of one policy over that of another, paired by repetition.

    Parameters
    ----------
    best : str
        The other policy.
    ratio : Interval
        Mean and 95 % interval of the ratios; below 1 the first policy is better.
    """

    best: str
    ratio: Interval

    def direction(self, least: float = 0.0) -> int:
        """-1: less than the other's, 1: more, 0: the interval has 1 in it or the change is small.

        Parameters
        ----------
        least : float
            Smallest change of the mean ratio that counts.
        """
        mean, half = self.ratio.mean, self.ratio.half_width
        if half is None or abs(mean - 1.0) < least:
            return 0
        if mean + half < 1.0:
            return -1
        return 1 if mean - half > 1.0 else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"best": self.best, **self.ratio.to_dict(), "direction": self.direction()}


def complete(values: Values) -> list[float] | None:
    """The values if there are some and none is missing."""
    there = [value for value in values if value is not None]
    return there if there and len(there) == len(values) else None


def best_of(others: Mapping[str, Values]) -> str | None:
    """The name with the least mean, the first of equals; those with a missing value do not count.

    Parameters
    ----------
    others : mapping
        Values by name.
    """
    least, chosen = math.inf, None
    for name, values in others.items():
        there = complete(values)
        if there is not None and math.fsum(there) < least:
            least, chosen = math.fsum(there), name
    return chosen


def ratio_to(ours: Values, name: str, theirs: Values, *, resampled: bool = False) -> Ratio | None:
    """The ratio to one other policy; ``None`` if a value is missing on either side.

    Parameters
    ----------
    ours, theirs : sequence of float or None
        One for each repetition, in the same order.
    name : str
        The other policy.
    resampled : bool
        Whether the repetitions are bootstrap replicates: then their own spread is the error of the
        figure. Else they are independent, and the error is that of their mean.
    """
    mine, others = complete(ours), complete(theirs)
    if mine is None or others is None:
        return None
    found = interval([a / b for a, b in zip(mine, others, strict=True)])
    if resampled and found.half_width is not None:
        half = found.half_width * math.sqrt(len(mine))
        found = Interval(found.mean, half, found.values)
    return Ratio(name, found)


def ratio_to_best(
    ours: Values, others: Mapping[str, Values], *, resampled: bool = False
) -> Ratio | None:
    """The ratio to the best of others (by their mean over the same repetitions).

    The best is picked with hindsight, which favours it. Parameters are those of :func:`ratio_to`;
    ``None`` also if there is no other.
    """
    best = best_of(others)
    return None if best is None else ratio_to(ours, best, others[best], resampled=resampled)
