"""The simulator's cost model, fitted to what requests took on the engine.

Prefills: requests whose prefills overlap were one batch, and its duration is a fixed part for each
request and a part for each computed token. Decode steps: what is left of the time between a
request's prefill and its end, after the prefills that ran in between, went into its steps; each
takes a fixed part and a part for each token of context of the requests that ran beside it. Both are
least squares with coefficients of at least zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from topas.enginebench.results import RequestRecord
from topas.errors import StateError
from topas.sim.cost import EngineCosts
from topas.sim.cost.fit import LinearFit, fit_linear

__all__ = ["Fit", "fit_costs"]

_FEWEST = 8  # requests, to fit anything


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted cost model.

    Parameters
    ----------
    costs : EngineCosts
        For the simulator; moving a prefix costs its prefill, as the engine has no copies.
    batches, requests : int
        Prefill batches and requests it was fitted to.
    prefill_error, decode_error : float
        Root mean square of what is left, over the mean duration.
    batch_tokens, batch_s, step_s : float
        Means: tokens that a prefill batch computes, its duration, and that of a decode step.
    """

    costs: EngineCosts
    batches: int
    requests: int
    prefill_error: float
    decode_error: float
    batch_tokens: float
    batch_s: float
    step_s: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Timed:
    """A request with the engine's times."""

    begin: float
    prefilled: float
    end: float
    computed: int
    steps: int
    context: float

    @classmethod
    def of(cls, record: RequestRecord) -> _Timed | None:
        """``None`` for a request without times, or one that began more than once."""
        entry, prefilled, end = record.entry_s, record.prefilled_s, record.finished_s
        if record.retractions or entry is None or prefilled is None or end is None:
            return None
        context = record.prompt_tokens + 0.5 * record.output_tokens
        steps = record.output_tokens - 1
        return cls(entry, prefilled, end, record.computed_tokens, steps, context)


@dataclass
class _Batch:
    """A prefill batch."""

    begin: float
    end: float
    requests: int = 0
    tokens: int = 0


def fit_costs(runs: Sequence[Sequence[RequestRecord]], kv_capacity: int) -> Fit:
    """Fit the simulator's costs to the requests of some runs.

    Parameters
    ----------
    runs : sequence of sequence of RequestRecord
        The requests of each run.
    kv_capacity : int
        KV pool of the engine, tokens.

    Raises
    ------
    StateError
        Too few requests have times.
    """
    prefill: list[tuple[float, float, float]] = []
    decode: list[tuple[float, float, float]] = []
    for records in runs:
        timed = [entry for record in records if (entry := _Timed.of(record)) is not None]
        batches = _batches(timed)
        prefill += [(b.requests, b.tokens, b.end - b.begin) for b in batches]
        decode += _decode_rows(timed, batches)
    if len(decode) < _FEWEST:
        raise StateError(
            f"calibration: {len(decode)} requests have the engine's times, {_FEWEST} are needed"
        )
    batch, step = _solve(prefill), _solve(decode)
    return Fit(
        costs=EngineCosts(
            kv_capacity=kv_capacity,
            kv_bytes_per_token=1.0,
            swap_bytes_per_s=1.0 / max(batch.second, 1e-12),
            decode_fixed_s=step.first,
            decode_s_per_context_token=step.second,
            prefill_fixed_s=batch.first,
            prefill_s_per_token=batch.second,
        ),
        batches=len(prefill),
        requests=len(decode),
        prefill_error=batch.error,
        decode_error=step.error,
        batch_tokens=sum(tokens for _, tokens, _ in prefill) / len(prefill),
        batch_s=sum(seconds for _, _, seconds in prefill) / len(prefill),
        step_s=sum(seconds for _, _, seconds in decode) / sum(steps for steps, _, _ in decode),
    )


def _batches(timed: Sequence[_Timed]) -> list[_Batch]:
    """Prefill batches: the prefills of one overlap, those of two do not."""
    batches: list[_Batch] = []
    for request in sorted(timed, key=lambda r: r.begin):
        if not batches or request.begin >= batches[-1].end:
            batches.append(_Batch(request.begin, request.prefilled))
        batch = batches[-1]
        batch.end = max(batch.end, request.prefilled)
        batch.requests += 1
        batch.tokens += request.computed
    return batches


def _decode_rows(
    timed: Sequence[_Timed], batches: Sequence[_Batch]
) -> list[tuple[float, float, float]]:
    """Steps, context summed over the steps, and seconds of each request's decode."""
    if not timed:
        return []
    clock = _decode_clock(batches, max(request.end for request in timed))
    starts = clock(np.array([request.prefilled for request in timed]))
    ends = clock(np.array([request.end for request in timed]))
    contexts = np.array([request.context for request in timed])
    rows = []
    for request, start, end in zip(timed, starts, ends, strict=True):
        if end <= start or request.steps < 1:
            continue
        shared = np.clip(np.minimum(ends, end) - np.maximum(starts, start), 0.0, None)
        beside = float((shared / (end - start) * contexts).sum())  # itself included
        rows.append((float(request.steps), request.steps * beside, float(end - start)))
    return rows


def _decode_clock(
    batches: Sequence[_Batch], last_s: float
) -> Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]:
    """A clock that stands still while prefills run."""
    times = [0.0]
    shown = [0.0]
    for batch in batches:
        shown += [shown[-1] + batch.begin - times[-1]] * 2
        times += [batch.begin, batch.end]
    shown.append(shown[-1] + max(last_s - times[-1], 0.0))
    times.append(max(last_s, times[-1]))
    return lambda at: np.interp(at, times, shown)


def _solve(rows: Sequence[tuple[float, float, float]]) -> LinearFit:
    """The two coefficients, and the error relative to the mean."""
    table = np.array(rows, dtype=np.float64)
    return fit_linear(table[:, :2], table[:, 2])
