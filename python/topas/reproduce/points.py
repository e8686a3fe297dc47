"""What is run for the figures: operating points, policies and settings, seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topas.errors import ConfigError
from topas.policies import BASELINE_NAMES, PolicyName, both_ways, parse_policies
from topas.sim.builtin import Lengths, prefixes_at
from topas.sim.checks import check_int, check_number
from topas.sim.cost import EngineCosts
from topas.sim.options import EngineOptions
from topas.sim.study.sweep import Cell

__all__ = [
    "PAPER_BASELINES",
    "POLICIES",
    "RATES",
    "Scale",
    "Variant",
    "ablation",
    "cells_of",
    "contenders",
]

#: Five arrival rates (tasks/s) for each workload, from light load to overload. The paper's figures
#: show theirs, its text names two: Chain-3 at 0.15 and MetaGPT-TL at 0.0175.
RATES: Mapping[str, tuple[float, ...]] = {
    "chain-3": (0.05, 0.075, 0.1, 0.125, 0.15),
    "dag-4": (0.03, 0.045, 0.06, 0.075, 0.09),
    "dag-10-wide": (0.005, 0.01, 0.015, 0.02, 0.025),
    "metagpt-sop": (0.005, 0.01, 0.015, 0.02, 0.025),
    "metagpt-tl": (0.0075, 0.01, 0.0125, 0.015, 0.0175),
}

#: The baselines of the paper's evaluation (Section V).
PAPER_BASELINES: tuple[str, ...] = ("fcfs", "lpm", "parrot", "las", "spf")

#: What a figure shows: every policy, each baseline without and with a host cache.
POLICIES: tuple[str, ...] = tuple(parse_policies("all+host"))


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A policy with its settings: one line of a figure.

    Parameters
    ----------
    label : str
        Its name in figures, unique among those of a figure.
    policy : str
        One of :data:`topas.policies.POLICY_NAMES`, with ``+host`` for a baseline with a host cache.
    config, options : mapping
        Fields of :class:`topas.Config` and of :class:`topas.sim.EngineOptions`.
    baseline : bool
        Whether topas is compared with it.
    in_paper : bool
        Whether the paper compares with it.
    """

    label: str
    policy: str
    config: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    baseline: bool = False
    in_paper: bool = False

    @property
    def has_host_cache(self) -> bool:
        """Whether its name gives its engine's cache host copies."""
        return PolicyName.parse(self.policy).has_host_cache


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is run.

    Parameters
    ----------
    tasks : int
        Tasks of a run, at least 1.
    seeds : int
        Runs of each point, with the seeds 1, 2, ...; at least 1.
    rates : int
        How many of a workload's five rates, at least 1: evenly spread, the highest always.
    pressure : float, optional
        Prefixes are scaled until their sum is so many times the KV capacity, above 0; by default
        they are the workload's own.

    Raises
    ------
    ConfigError
        Names the field and the value.
    """

    tasks: int = 100
    seeds: int = 5
    rates: int = 5
    pressure: float | None = None

    def __post_init__(self) -> None:
        for name in ("tasks", "seeds", "rates"):
            check_int(name, getattr(self, name), minimum=1)
        if self.pressure is not None:
            check_number("pressure", self.pressure, above=True)

    @classmethod
    def quick(cls, seeds: int = 2) -> Scale:
        """A look in seconds; too few tasks for load to build up, so no figures to quote."""
        return cls(tasks=30, seeds=seeds, rates=2)

    def rates_of(self, workload: str) -> tuple[float, ...]:
        """The rates of a workload that are run, ascending; tasks per second."""
        known = RATES[workload]
        step = len(known) / min(self.rates, len(known))
        picked = {round((index + 1) * step) - 1 for index in range(min(self.rates, len(known)))}
        return tuple(known[index] for index in sorted(picked))


def contenders(
    policies: Iterable[str] = POLICIES,
    baselines: Sequence[str] = BASELINE_NAMES,
    paper: Sequence[str] = PAPER_BASELINES,
) -> list[Variant]:
    """The policies of a figure.

    Parameters
    ----------
    policies : iterable of str
        Which ones, a baseline with a host cache as one of its own (``lpm``, ``lpm+host``).
    baselines : sequence of str
        Those that topas is compared with, without suffixes: in both ways that they are run in.
    paper : sequence of str
        Those that the paper compares with; all without a host cache.

    Raises
    ------
    ConfigError
        A policy is unknown, or a baseline is none of the policies that have no part in topas.
    """
    both_ways(baselines)  # refuses what is none
    return [
        Variant(
            label=name,
            policy=name,
            baseline=PolicyName.parse(name).base in baselines,
            in_paper=name in paper,
        )
        for name in policies
    ]


def ablation(policy: str) -> list[Variant]:
    """The full policy, the two without one component, and the base (the paper's Figure 5)."""
    without: Mapping[str, Mapping[str, Any]] = {
        "full": {},
        "without reuse": {"reuse_weight": 0.0},
        "without ageing": {"age_weight": 0.0},
        "base": {"reuse_weight": 0.0, "age_weight": 0.0},
    }
    return [
        Variant(label=f"{policy} {name}", policy=policy, config=config)
        for name, config in without.items()
    ]


def cells_of(
    workload: str, rates: Sequence[float], variants: Sequence[Variant], scale: Scale
) -> list[Cell]:
    """The runs of one workload: all rates, variants and seeds.

    Raises
    ------
    ConfigError
        Two variants have one label, or options are not legal.
    """
    labels = [variant.label for variant in variants]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"variants: {label!r} is given twice")
    lengths = None
    if scale.pressure is not None:
        prefixes = prefixes_at(workload, scale.pressure, EngineCosts().kv_capacity)
        lengths = Lengths(prefix_tokens=prefixes)
    known = {field.name for field in dataclasses.fields(EngineOptions)}
    for variant in variants:
        for name in variant.options:
            if name not in known:
                raise ConfigError(f"{name}: unknown engine option, known are {', '.join(known)}")
    return [
        Cell(
            workload=workload,
            tasks=scale.tasks,
            rate=rate,
            seed=seed,
            policy=variant.policy,
            label=variant.label,
            lengths=lengths,
            config=variant.config,
            options=EngineOptions(**variant.options),
        )
        for rate in rates
        for variant in variants
        for seed in range(1, scale.seeds + 1)
    ]
