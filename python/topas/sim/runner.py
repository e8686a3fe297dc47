"""Run one workload under several policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from topas.errors import ConfigError
from topas.policies import PolicyName, make_policy
from topas.sim.cost import EngineCosts
from topas.sim.engine import Engine
from topas.sim.metrics import RunMetrics, summarise
from topas.sim.options import EngineOptions
from topas.sim.profiles import config_fields
from topas.sim.workload import Workload

__all__ = ["Comparison", "best_baseline", "compare", "run_policy"]

# What "best" means, by figure: the least or the greatest value.
_BEST: Mapping[str, Callable[..., RunMetrics]] = {
    "mean_jct_s": min,
    "p99_jct_s": min,
    "makespan_s": min,
    "first_task_s": min,
    "requests_per_s": max,
}


@dataclass(frozen=True)
class Comparison:
    """One workload under several policies.

    Parameters
    ----------
    workload : Workload
        What was run.
    costs : EngineCosts
        The engine's costs.
    options : EngineOptions
        The engine's behaviour.
    config : mapping
        Options of the topas policies on top of their presets.
    runs : list of RunMetrics
        One for each policy, in the order asked for.
    decision_us : mapping
        Mean real time of a decision by policy, microseconds; the only figures that depend on the
        machine.
    """

    workload: Workload
    costs: EngineCosts
    options: EngineOptions
    config: Mapping[str, Any]
    runs: list[RunMetrics]
    decision_us: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain values in a fixed order; all but ``decision_us`` depend on the inputs alone."""
        workload = {"name": self.workload.name, **self.workload.parameters}
        return {
            "workload": workload,
            "engine": {**self.costs.to_dict(), **self.options.to_dict()},
            "config": dict(self.config),
            "policies": [run.to_dict() for run in self.runs],
            "decision_us": dict(self.decision_us),
        }


def run_policy(
    workload: Workload,
    policy: str,
    *,
    costs: EngineCosts | None = None,
    options: EngineOptions | None = None,
    config: Mapping[str, Any] | None = None,
    on_task_end: Callable[[], None] | None = None,
) -> tuple[RunMetrics, float]:
    """Run a workload under one policy.

    Parameters
    ----------
    workload : Workload
        What arrives.
    policy : str
        One of :data:`topas.policies.POLICY_NAMES`; a baseline may have the suffix ``+host`` or
        ``+host:TOKENS``, which gives its engine a host cache whatever ``options`` say
        (:class:`topas.policies.PolicyName`).
    costs, options
        Of the engine; default those of the classes.
    config : mapping, optional
        Fields of :class:`topas.Config` on top of the preset and of the engine's costs.
    on_task_end : callable, optional
        Called after each task that ended.

    Returns
    -------
    tuple of RunMetrics and float
        The figures, and the mean real time of a decision, microseconds.

    Raises
    ------
    ConfigError
        The policy or a setting is not legal.
    StateError, CapacityError
        The run cannot go on; the message names request and numbers.
    """
    costs, options = costs or EngineCosts(), options or EngineOptions()
    suffix = PolicyName.parse(policy).host_cache_tokens
    if suffix != 0:
        options = replace(options, host_cache_tokens=suffix)
    fields = {**config_fields(workload, costs, options), **(config or {})}
    engine = Engine(workload, make_policy(policy, fields), costs, options, on_task_end)
    result = engine.run()
    decisions = max(result.counters.decisions, 1)
    return summarise(result), result.decision_ns / decisions / 1e3


def compare(
    workload: Workload,
    policies: Sequence[str],
    *,
    costs: EngineCosts | None = None,
    options: EngineOptions | None = None,
    config: Mapping[str, Any] | None = None,
    on_task_end: Callable[[], None] | None = None,
    on_policy: Callable[[str], None] | None = None,
) -> Comparison:
    """Run a workload under several policies, all with the same arrivals and lengths.

    Parameters are those of :func:`run_policy`; ``on_policy`` is called with the name of each policy
    before its run.

    Raises
    ------
    ConfigError
        No policy, or a policy or setting is not legal.
    StateError, CapacityError
        A run cannot go on.
    """
    if not policies:
        raise ConfigError("policies: none given")
    runs, decision_us = [], {}
    for name in policies:
        if on_policy is not None:
            on_policy(name)
        metrics, mean_us = run_policy(
            workload,
            name,
            costs=costs,
            options=options,
            config=config,
            on_task_end=on_task_end,
        )
        runs.append(metrics)
        decision_us[name] = mean_us
    return Comparison(
        workload,
        costs or EngineCosts(),
        options or EngineOptions(),
        dict(config or {}),
        runs,
        decision_us,
    )


def best_baseline(
    runs: Iterable[RunMetrics], metric: str = "mean_jct_s", *, host: bool | None = None
) -> RunMetrics:
    """The best of the baselines, whether it has a host cache or not.

    Only runs that finished as many tasks as any baseline did count: one that leaves the slow tasks
    unfinished has no better mean.

    Parameters
    ----------
    runs : iterable of RunMetrics
        Runs of one workload; those of topas are passed over.
    metric : str
        ``mean_jct_s``, ``p99_jct_s``, ``makespan_s``, ``first_task_s`` (the least is best) or
        ``requests_per_s`` (the greatest).
    host : bool or None
        Only runs whose name gives them (does not give them) a host cache; ``None``: all of them.

    Returns
    -------
    RunMetrics
        The first of equally good ones.

    Raises
    ------
    ConfigError
        The metric is none of these, or no baseline has it.
    """
    if metric not in _BEST:
        raise ConfigError(f"metric: unknown {metric!r}, known are {', '.join(_BEST)}")
    kept = []
    for run in runs:
        name = PolicyName.parse(run.policy)
        if name.is_baseline and host in (None, name.has_host_cache):
            kept.append(run)
    most = max((run.finished for run in kept), default=0)
    kept = [run for run in kept if run.finished == most and getattr(run, metric) is not None]
    if not kept:
        raise ConfigError(f"metric: no baseline has a {metric}")
    return _BEST[metric](kept, key=lambda run: getattr(run, metric))
