"""Where a workload lies: the pressure of its prefixes on the KV pool, and the engine's load."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from topas.errors import CapacityError
from topas.sim.cost import EngineCosts
from topas.sim.options import EngineOptions
from topas.sim.workload import Round, Task, Workload

__all__ = ["OperatingPoint", "locate", "mean_rate", "task_gpu_s", "without_misfits"]

# A workload of which more tasks than this can never run is not the user's workload any more.
_MOST_MISFITS = 0.1


@dataclass(frozen=True)
class OperatingPoint:
    """Place of a workload on a phase map (docs/advise.md).

    Parameters
    ----------
    pressure : float
        Static prefixes of all agents that the tasks use, over the KV capacity.
    load : float or None
        GPU time that arrives in a second if every request runs in the largest batch that fits
        beside its own prefix: no policy serves more than 1 for long. ``None``: all tasks arrive at
        once, or there is only one.
    """

    pressure: float
    load: float | None

    def to_dict(self) -> dict[str, float | None]:
        """Plain values, ready for JSON."""
        return asdict(self)


def _requests(workload: Workload, task: Task) -> Iterator[tuple[str, Round]]:
    """Agent and lengths of each request of a task."""
    shape = workload.workflows[task.workflow]
    for stage, rounds in zip(shape.stages, task.stages, strict=True):
        for work in rounds:
            yield stage.agent, work


def _reservation(work: Round, options: EngineOptions) -> int:
    return work.input_tokens + math.ceil(work.output_tokens * options.over_reserve)


def task_gpu_s(workload: Workload, costs: EngineCosts, options: EngineOptions) -> float:
    """Least mean GPU time of a task, seconds.

    Of each request: the prefill of its dynamic input, and its decode steps shared among as many
    equal requests as fit into the KV pool beside its prefix (at least one, at most
    ``max_running``). Prefixes are taken to be resident; nothing is loaded or computed twice.

    Parameters
    ----------
    workload : Workload
        At least one task.
    costs, options : EngineCosts, EngineOptions
        Of the engine.
    """
    total = 0.0
    for task in workload.tasks:
        for agent, work in _requests(workload, task):
            prefix = workload.agents[agent]
            batch = max((costs.kv_capacity - prefix) / _reservation(work, options), 1.0)
            if options.max_running:
                batch = min(batch, float(options.max_running))
            context = prefix + work.input_tokens + 0.5 * work.output_tokens
            step_s = costs.decode_fixed_s / batch + costs.decode_s_per_context_token * context
            total += costs.prefill_s(work.input_tokens) + work.output_tokens * step_s
    return total / len(workload.tasks)


def mean_rate(workload: Workload) -> float | None:
    """Arrivals a second: the rate that the workload was made with, else the mean of its arrivals.

    ``None`` if there is only one task or all arrive at once.
    """
    rate = workload.parameters.get("rate")
    if rate is not None:
        return float(rate)
    first, last = workload.tasks[0].arrival_s, workload.tasks[-1].arrival_s
    return (len(workload.tasks) - 1) / (last - first) if last > first else None


def locate(workload: Workload, costs: EngineCosts, options: EngineOptions) -> OperatingPoint:
    """Prefix pressure and load of a workload on an engine.

    Parameters
    ----------
    workload : Workload
        At least one task.
    costs, options : EngineCosts, EngineOptions
        Of the engine.
    """
    used = {agent for task in workload.tasks for agent, _ in _requests(workload, task)}
    rate = mean_rate(workload)
    return OperatingPoint(
        pressure=sum(workload.agents[agent] for agent in used) / costs.kv_capacity,
        load=None if rate is None else rate * task_gpu_s(workload, costs, options),
    )


def without_misfits(
    workload: Workload, costs: EngineCosts, options: EngineOptions
) -> tuple[Workload, int]:
    """A workload without the tasks that can never run, and how many those are.

    Parameters
    ----------
    workload : Workload
        Any.
    costs, options : EngineCosts, EngineOptions
        Of the engine.

    Raises
    ------
    CapacityError
        More than a tenth of the tasks have a request that is larger than the KV pool.
    """
    kept, largest = [], 0
    for task in workload.tasks:
        needs = max(
            workload.agents[agent] + _reservation(work, options)
            for agent, work in _requests(workload, task)
        )
        largest = max(largest, needs)
        if needs <= costs.kv_capacity:
            kept.append(task)
    left_out = len(workload.tasks) - len(kept)
    if left_out > _MOST_MISFITS * len(workload.tasks):
        raise CapacityError(
            f"workload: {workload.name} does not fit: {left_out} of {len(workload.tasks)} tasks "
            f"have a request larger than the KV pool; the largest needs {largest} tokens (prefix, "
            f"input and output), the capacity is {costs.kv_capacity}"
        )
    return (replace(workload, tasks=tuple(kept)) if left_out else workload), left_out
