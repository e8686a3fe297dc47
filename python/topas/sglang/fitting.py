"""A straight line fitted to a stream of durations: it forgets, and no single one can spoil it."""

from __future__ import annotations

import math

__all__ = ["LineFit"]

_WEIGHT = 0.05  # of a new measurement, once many are known
_FIRST = 5  # measurements whose median is the start
_UNSURE = 3.0  # what the start may be wrong by, relative
_CLIP = 2.0  # a measurement counts as at most so many times what was expected, and as at least half
_LEAST_UNSURE = 0.1  # of a part, relative to what was expected
_TINY = 1e-12


class LineFit:
    """Durations ``fixed + slope * x``, neither part below zero; weighted recursive least squares.

    Errors are relative: a duration weighs by the inverse square of what was expected. What is old
    is forgotten only in the direction that a new measurement tells of (Kulhavý, "Restricted
    exponential forgetting in real-time identification", Automatica 23, 1987). So many durations at
    the same ``x`` follow the level, a new one weighing a twentieth, and leave alone what is known
    of the split into the two parts.

    The start is the median of the first five durations; then one counts as at most about twice what
    was expected, so that a pass during which the process slept moves it by about 5 %.

    Parameters
    ----------
    flat : bool
        Whether the first durations are taken for the fixed part; else for the slope.

    Attributes
    ----------
    fixed_s, slope_s : float
        Seconds, and seconds per unit of ``x``; 0 before the first measurement.
    count : int
        Measurements so far.
    """

    def __init__(self, *, flat: bool = False) -> None:
        self.fixed_s = self.slope_s = 0.0
        self.count = 0
        self._flat = flat
        self._first: list[tuple[float, float]] = []
        self._p = (0.0, 0.0, 0.0)  # covariance: fixed, both, slope
        self._usual = 0.0  # mean of the latest x

    @property
    def is_known(self) -> bool:
        """Whether enough is measured to go by it."""
        return self.count >= _FIRST

    def at(self, x: float) -> float:
        """Expected duration at ``x``, seconds."""
        return self.fixed_s + self.slope_s * x

    def add(self, x: float, seconds: float) -> None:
        """Take in a duration, at ``x`` > 0; anything but positive finite numbers is left out."""
        if not (0.0 < x < math.inf and 0.0 < seconds < math.inf):
            return
        self.count += 1
        if self.count <= _FIRST:
            self._start(x, seconds)
        else:
            self._learn(x, seconds)

    def _start(self, x: float, seconds: float) -> None:
        """The lower median of the first few."""
        self._first.append((seconds if self._flat else seconds / x, x))
        self._first.sort()
        value, at = self._first[(len(self._first) - 1) // 2]
        self.fixed_s, self.slope_s = (value, 0.0) if self._flat else (0.0, value)
        self._usual = at
        level = _UNSURE * self.at(at)
        self._p = (level * level, 0.0, (level / at) ** 2)

    def _learn(self, x: float, seconds: float) -> None:
        expected = max(self.at(x), _TINY)
        self._keep_doubt(x, expected)
        scale = 1.0 / expected
        p_ff, p_fs, p_ss = self._p
        g_f, g_s = scale * (p_ff + p_fs * x), scale * (p_fs + p_ss * x)
        unsure = max(scale * (g_f + g_s * x), _TINY)  # variance of what was expected, relative
        ratio = seconds / expected
        most = _CLIP + unsure
        error = min(max(ratio, 1.0 / most), most) - 1.0
        gain = error / (1.0 + unsure)
        self._p = _forgetting(self._p, (g_f, g_s), unsure)
        self._stay_legal(self.fixed_s + gain * g_f, self.slope_s + gain * g_s)

    def _keep_doubt(self, x: float, expected: float) -> None:
        """The part that ``x`` tells most of is never so sure that it could not change."""
        p_ff, p_fs, p_ss = self._p
        least = (_LEAST_UNSURE * expected) ** 2
        if x <= self._usual:
            p_ff = max(p_ff, least)
        else:
            p_ss = max(p_ss, least / (x * x))
        self._p = (p_ff, p_fs, p_ss)
        self._usual += _WEIGHT * (x - self._usual)

    def _stay_legal(self, fixed_s: float, slope_s: float) -> None:
        """Where a part would be below zero it is zero, and the other what it then has to be."""
        p_ff, p_fs, p_ss = self._p
        if fixed_s < 0.0:
            slope_s -= fixed_s * p_fs / p_ff if p_ff > 0.0 else 0.0
            fixed_s = 0.0
        elif slope_s < 0.0:
            fixed_s -= slope_s * p_fs / p_ss if p_ss > 0.0 else 0.0
            slope_s = 0.0
        self.fixed_s, self.slope_s = max(fixed_s, 0.0), max(slope_s, 0.0)


def _forgetting(
    p: tuple[float, float, float], g: tuple[float, float], unsure: float
) -> tuple[float, float, float]:
    """The covariance after a measurement; ``unsure`` tends to the weight over its complement."""
    change = (1.0 - _WEIGHT) - _WEIGHT / unsure
    change /= 1.0 + change * unsure  # the divisor is at least 1 - _WEIGHT
    g_f, g_s = g
    p_ff = max(p[0] - change * g_f * g_f, 0.0)
    p_ss = max(p[2] - change * g_s * g_s, 0.0)
    most = math.sqrt(p_ff * p_ss)
    return p_ff, min(max(p[1] - change * g_f * g_s, -most), most), p_ss
