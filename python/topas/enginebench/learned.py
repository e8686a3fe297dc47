"""The costs that the plugin has learned in a run, beside what the run's requests took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topas.enginebench.calibration import fit_costs
from topas.enginebench.results import EngineRun, Report
from topas.errors import StateError

__all__ = ["learned_costs", "learned_lines"]

_NEEDED = ("prefill_fixed_seconds", "prefill_token_seconds", "decode_token_seconds")


def learned_costs(report: Report, kv_capacity: int) -> list[dict[str, Any]]:
    """What topas has learned in each of its runs, and how far that is from the requests' times.

    Parameters
    ----------
    report : Report
        All runs; those in which topas has learned nothing are left out.
    kv_capacity : int
        KV pool of the engine, tokens.

    Returns
    -------
    list of dict
        For each run ``profile`` (seconds by the names of the gauges) and, if the run has enough
        requests for a fit, ``prefill_batch`` and ``decode_step``: ``learned_s`` beside the mean
        ``measured_s``, and ``difference_percent``; of the batch also its mean ``tokens``.
    """
    runs = (run for run in report.runs if all(name in run.learned for name in _NEEDED))
    return [_beside(run, kv_capacity) for run in runs]


def _beside(run: EngineRun, kv_capacity: int) -> dict[str, Any]:
    fixed_s, token_s, step_s = (run.learned[name] for name in _NEEDED)
    result: dict[str, Any] = {"profile": dict(run.learned)}
    try:
        fit = fit_costs([run.requests], kv_capacity)
    except StateError:
        return result
    batch = _compared(fixed_s + token_s * fit.batch_tokens, fit.batch_s)
    result["prefill_batch"] = {"tokens": fit.batch_tokens, **batch}
    result["decode_step"] = _compared(step_s, fit.step_s)
    return result


def _compared(learned_s: float, measured_s: float) -> dict[str, float]:
    difference = 100.0 * (learned_s / measured_s - 1.0)
    return {"learned_s": learned_s, "measured_s": measured_s, "difference_percent": difference}


def learned_lines(learned: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each run: what :func:`learned_costs` returns, for people."""
    lines = []
    for entry in learned:
        fixed_s, token_s, step_s = (entry["profile"][name] for name in _NEEDED)
        text = (
            f"costs learned by topas: prefill {1e3 * fixed_s:.2f} ms + {1e6 * token_s:.0f} µs a "
            f"token, decode step {1e3 * step_s:.2f} ms"
        )
        if "prefill_batch" in entry:
            batch, step = entry["prefill_batch"], entry["decode_step"]
            text += (
                f"; beside its requests' times: a prefill of {batch['tokens']:.0f} tokens "
                f"{batch['difference_percent']:+.0f} %, a decode step "
                f"{step['difference_percent']:+.0f} %"
            )
        lines.append(text)
    return lines
