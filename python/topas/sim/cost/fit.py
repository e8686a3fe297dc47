"""Costs fitted to measured durations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from topas.errors import ConfigError
from topas.sim.cost.linear import EngineCosts

__all__ = [
    "DecodeRow",
    "LinearFit",
    "MeasuredCosts",
    "PrefillRow",
    "fit_linear",
    "fit_rows",
    "least_squares",
]

_FEWEST = 3  # rows: two fix a line, the third shows an error
_LEAST_SPREAD = 0.1  # of the largest length


class DecodeRow(NamedTuple):
    """A measured decode step: requests, their context summed (tokens), duration (seconds)."""

    batch: int
    context_tokens: int
    seconds: float


class PrefillRow(NamedTuple):
    """A measured prefill batch: tokens computed, duration (seconds)."""

    tokens: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class MeasuredCosts:
    """Costs with what is known of their error.

    Parameters
    ----------
    costs : EngineCosts
        The fitted costs.
    prefill_rows, decode_rows : int
        What they were fitted to.
    prefill_error, decode_error : float
        Root mean square of what is left, over the mean duration.
    """

    costs: EngineCosts
    prefill_rows: int
    decode_rows: int
    prefill_error: float
    decode_error: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def summary(self) -> str:
        """The fit in a line."""
        costs = self.costs
        return (
            f"prefill {1e3 * costs.prefill_fixed_s:.3g} ms + "
            f"{1e3 * costs.prefill_s_per_token:.3g} ms a token ({self.prefill_rows} rows, residual "
            f"{100 * self.prefill_error:.1f} %), decode step {1e3 * costs.decode_fixed_s:.3g} ms + "
            f"{1e6 * costs.decode_s_per_context_token:.3g} µs a context token "
            f"({self.decode_rows} rows, residual {100 * self.decode_error:.1f} %)"
        )


@dataclass(frozen=True)
class LinearFit:
    """Coefficients of two columns, and the root mean square of what is left over the mean."""

    first: float
    second: float
    error: float


def fit_rows(
    decode: Sequence[DecodeRow], prefill: Sequence[PrefillRow], base: EngineCosts
) -> MeasuredCosts:
    """Fit decode steps to the context and prefills to the tokens, by least squares.

    The batch of a decode step is not in the model: its cost is part of the error.

    Parameters
    ----------
    decode : sequence of DecodeRow
        At least three, with contexts that differ.
    prefill : sequence of PrefillRow
        At least three, with lengths that differ.
    base : EngineCosts
        Capacity and costs of copies, which stay.

    Raises
    ------
    ConfigError
        There are too few rows, or all have about the same length; the message names what is
        missing.
    """
    step = _fit_line("decode", "context_tokens", [(r.context_tokens, r.seconds) for r in decode])
    batch = _fit_line("prefill", "tokens", [(r.tokens, r.seconds) for r in prefill])
    costs = replace(
        base,
        decode_fixed_s=step.first,
        decode_s_per_context_token=step.second,
        prefill_fixed_s=batch.first,
        prefill_s_per_token=batch.second,
    )
    return MeasuredCosts(
        costs=costs,
        prefill_rows=len(prefill),
        decode_rows=len(decode),
        prefill_error=batch.error,
        decode_error=step.error,
    )


def _fit_line(kind: str, length: str, rows: Sequence[tuple[int, float]]) -> LinearFit:
    if len(rows) < _FEWEST:
        raise ConfigError(f"{kind}: {len(rows)} rows, at least {_FEWEST} are needed")
    table = np.array(rows, dtype=np.float64)
    least, most = table[:, 0].min(), table[:, 0].max()
    if most - least < _LEAST_SPREAD * most or most == 0.0:
        raise ConfigError(
            f"{kind}: all rows have {least:.0f} to {most:.0f} {length}: rows of other lengths are "
            "missing, without them the cost of a token is not known"
        )
    if not (np.isfinite(table).all() and (table >= 0.0).all() and table[:, 1].any()):
        raise ConfigError(f"{kind}: {length} and seconds must be finite and at least 0")
    return fit_linear(np.column_stack((np.ones(len(rows)), table[:, 0])), table[:, 1])


def fit_linear(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> LinearFit:
    """Least squares over two columns with coefficients of at least zero.

    Parameters
    ----------
    x : array of shape (n, 2)
        The columns, none negative.
    y : array of shape (n,)
        What they add up to; not all zero.
    """
    found = least_squares(x, y)
    left = y - x @ found
    return LinearFit(float(found[0]), float(found[1]), float(np.sqrt(np.mean(left**2)) / y.mean()))


def least_squares(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Least squares with coefficients of at least zero.

    Columns are few, so each subset of them is tried.

    Parameters
    ----------
    x : array of shape (n, k)
        The columns, none negative.
    y : array of shape (n,)
        What they add up to.

    Returns
    -------
    array of shape (k,)
        The coefficients.
    """
    columns = x.shape[1]
    best, least = np.zeros(columns), float(y @ y)
    for subset in range(1, 1 << columns):
        chosen = [i for i in range(columns) if subset >> i & 1]
        scale = np.maximum(np.abs(x[:, chosen]).max(axis=0), 1e-300)
        part = np.linalg.lstsq(x[:, chosen] / scale, y, rcond=None)[0] / scale
        if (part < 0.0).any():
            continue
        left = y - x[:, chosen] @ part
        if float(left @ left) < least:
            best, least = np.zeros(columns), float(left @ left)
            best[chosen] = part
    return best
