"""Figures of one run: completion times, batches, prefix traffic, and what became of each task."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from topas.errors import StateError
from topas.policies.base import Id
from topas.sim.result import RunResult

__all__ = ["RunMetrics", "summarise"]


@dataclass(frozen=True, kw_only=True)
class RunMetrics:
    """Figures of one run; seconds and tokens, ``None`` where there is nothing to measure.

    Parameters
    ----------
    policy : str
        Name of the policy.
    arrived, finished, cancelled, unfinished : int
        Tasks; the first is the sum of the others.
    mean_jct_s, p99_jct_s : float or None
        Job completion time of finished tasks: end minus arrival.
    makespan_s : float or None
        From the first arrival to the last completion.
    first_task_s : float or None
        From the first arrival to the first completion of a task.
    requests_per_s : float or None
        Finished requests over the makespan.
    mean_batch, peak_batch : float or None, int
        Requests in a decode step: mean over the steps, and maximum.
    swaps : int
        Prefixes loaded from the host into the pool.
    recomputed_prefixes, recomputed_tokens : int
        Prefixes that were computed once more, and their tokens.
    hit_rate : float or None
        Share of admissions, weighted by prefix tokens, whose prefix needed neither.
    preemptions, redone_tokens : int
        Preempted requests, and generated tokens that had to be made again.
    retractions : int
        Requests that the engine stopped because decoding ran out of memory; no preemptions.
    reused_tokens : int
        Input tokens not prefilled because a stage's own context was still in the pool or on the
        host.
    completed_requests, decisions : int
        Counts.
    peak_kv_tokens : int
        Most KV in use at any instant.
    stopped : str
        Why the run ended early, or empty.
    jct_s : dict
        By task.
    cancelled_tasks : dict
        By task: the reason.
    unfinished_tasks : list
        Tasks that arrived and did not end.
    """

    policy: str
    arrived: int
    finished: int
    cancelled: int
    unfinished: int
    mean_jct_s: float | None
    p99_jct_s: float | None
    makespan_s: float | None
    first_task_s: float | None
    requests_per_s: float | None
    mean_batch: float | None
    peak_batch: int
    swaps: int
    recomputed_prefixes: int
    recomputed_tokens: int
    hit_rate: float | None
    preemptions: int
    redone_tokens: int
    retractions: int
    reused_tokens: int
    completed_requests: int
    decisions: int
    peak_kv_tokens: int
    stopped: str
    jct_s: dict[Id, float]
    cancelled_tasks: dict[Id, str]
    unfinished_tasks: list[Id]

    def to_dict(self) -> dict[str, Any]:
        """Plain values in a fixed order, ready for JSON."""
        return asdict(self)


def _check_conservation(result: RunResult) -> None:
    """Each task that arrived has ended in exactly one way.

    Raises
    ------
    StateError
        Names the tasks that are lost or counted twice: an error of the engine.
    """
    ended = Counter([*result.finish_s, *result.cancelled, *result.unfinished])
    lost = [task for task in result.arrival_s if task not in ended]
    twice = [task for task, count in ended.items() if count > 1]
    if lost or twice or len(ended) != len(result.arrival_s):
        raise StateError(
            f"policy {result.policy!r}: {len(result.arrival_s)} tasks arrived, {len(ended)} are "
            f"accounted for (lost {lost[:10]}, twice {twice[:10]})"
        )


def summarise(result: RunResult) -> RunMetrics:
    """Figures of a run, after checking that no task is lost.

    Raises
    ------
    StateError
        Arrived tasks are not exactly the finished, cancelled and unfinished ones.
    """
    _check_conservation(result)
    counters = result.counters
    jct = {task: end - result.arrival_s[task] for task, end in _sorted_items(result.finish_s)}
    times = np.array(list(jct.values()))
    begin = min(result.arrival_s.values(), default=0.0)
    makespan = max(result.finish_s.values()) - begin if jct else None
    return RunMetrics(
        policy=result.policy,
        arrived=len(result.arrival_s),
        finished=len(jct),
        cancelled=len(result.cancelled),
        unfinished=len(result.unfinished),
        mean_jct_s=float(times.mean()) if jct else None,
        p99_jct_s=float(np.percentile(times, 99)) if jct else None,
        makespan_s=makespan,
        first_task_s=min(result.finish_s.values()) - begin if jct else None,
        requests_per_s=counters.completed_requests / makespan if makespan else None,
        mean_batch=_ratio(counters.decode_tokens, counters.decode_steps),
        peak_batch=counters.peak_batch,
        swaps=counters.loads,
        recomputed_prefixes=counters.recomputed_prefixes,
        recomputed_tokens=counters.recomputed_tokens,
        hit_rate=_ratio(counters.prefix_tokens_hit, counters.prefix_tokens_needed),
        preemptions=counters.preemptions,
        redone_tokens=counters.redone_tokens,
        retractions=counters.retractions,
        reused_tokens=counters.reused_tokens,
        completed_requests=counters.completed_requests,
        decisions=counters.decisions,
        peak_kv_tokens=result.peak_kv_tokens,
        stopped=result.stopped,
        jct_s=jct,
        cancelled_tasks=dict(result.cancelled),
        unfinished_tasks=list(result.unfinished),
    )


def _sorted_items(by_task: dict[Id, float]) -> list[tuple[Id, float]]:
    """Items by task id, integers before strings."""
    return sorted(by_task.items(), key=lambda item: (isinstance(item[0], str), item[0]))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
