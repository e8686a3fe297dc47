"""Random streams of the workloads: numpy's PCG64, one for each seed, purpose and task."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["lognormal_tokens", "stream"]


def stream(seed: int, purpose: int, task: int = 0) -> np.random.Generator:
    """The stream of a seed for a purpose (a number that is part of "same seed, same bytes")."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, purpose, task])))


def lognormal_tokens(mean: float, sigma: float, draw: np.random.Generator) -> int:
    """A lognormal length of the given mean, at least 1; the mean where nothing varies."""
    if sigma == 0.0:
        return max(round(mean), 1)
    return max(round(mean * math.exp(sigma * draw.standard_normal() - 0.5 * sigma * sigma)), 1)
