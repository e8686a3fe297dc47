"""Run one workload under several policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topas.errors import ConfigError
from topas.policies import make_policy
from topas.sim.cost import EngineCosts
from topas.sim.engine import Engine
from topas.sim.metrics import RunMetrics, summarise
from topas.sim.options import EngineOptions
from topas.sim.profiles import config_fields
from topas.sim.workload import Workload

__all__ = ["Comparison", "compare", "run_policy"]


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
        One of :data:`topas.policies.POLICY_NAMES`.
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
