"""Where topas pays: its completion times against the best baseline over prefix pressure and load.

A map has one cell for each prefix pressure and load (:mod:`topas.sim.study.operating_point`) of a
built-in workload. Pressure is set by scaling the static prefixes, load by the arrival rate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import topas
from topas.errors import CapacityError, ConfigError
from topas.policies import (
    BASELINE_NAMES,
    PRESET_POLICIES,
    PolicyName,
    both_ways,
    make_policy,
)
from topas.sim.builtin import BUILTIN_WORKLOADS, Lengths, make_workload, prefixes_at
from topas.sim.checks import check_choice, check_int, check_number
from topas.sim.cost import EngineCosts
from topas.sim.options import EngineOptions
from topas.sim.profiles import config_fields
from topas.sim.study.operating_point import task_gpu_s, without_misfits
from topas.sim.study.sweep import Cell, CellResult, run_cells
from topas.sim.study.versus import JCT_METRICS, Ratio, Values, ratio_to_best

__all__ = [
    "KINDS",
    "MapCell",
    "MapScale",
    "MapStudy",
    "PhaseMap",
    "map_phases",
    "write_maps",
]

#: Which baselines topas is compared with: all, those without and those with a host cache.
KINDS: Mapping[str, bool | None] = {"both": None, "without_host": False, "with_host": True}


@dataclass(frozen=True, kw_only=True)
class MapScale:
    """How fine a map is and how much is run for each cell.

    Parameters
    ----------
    points : int
        Pressures and loads, each at least 2, evenly spread over their ranges.
    seeds : int
        Runs of each cell and policy, with the seeds 1, 2, ...; at least 1.
    tasks : int
        Tasks of a run, at least 1.
    pressures, loads : tuple of float
        Least and greatest value.

    Raises
    ------
    ConfigError
        Names the field and the value.
    """

    points: int = 5
    seeds: int = 5
    tasks: int = 50
    pressures: tuple[float, float] = (0.25, 1.75)
    loads: tuple[float, float] = (0.4, 1.2)

    def __post_init__(self) -> None:
        check_int("points", self.points, minimum=2)
        check_int("seeds", self.seeds, minimum=1)
        check_int("tasks", self.tasks, minimum=1)
        for name in ("pressures", "loads"):
            least, most = getattr(self, name)
            check_number(name, least, above=name == "loads")
            if not most > least:
                raise ConfigError(
                    f"{name}: the greatest must be above the least, got {least, most}"
                )

    @classmethod
    def quick(cls) -> MapScale:
        """A look in seconds; too few tasks for load to build up, so no figures to quote."""
        return cls(points=3, seeds=2, tasks=20)

    def axis(self, name: str) -> list[float]:
        """The values of ``pressures`` or ``loads``, ascending."""
        least, most = getattr(self, name)
        return [round(float(value), 4) for value in np.linspace(least, most, self.points)]


@dataclass(frozen=True, kw_only=True)
class MapCell:
    """One pressure and load.

    Parameters
    ----------
    pressure, load : float
        As asked for; prefixes are whole tokens.
    prefix_tokens : tuple of int
        Static prefixes, one for each agent in the workload's order.
    rate : float or None
        Arrivals a second; ``None``: the workload does not fit at this pressure.
    values : mapping
        For each metric and policy the figure of each seed; ``None`` for a run that did not finish
        all its tasks.
    ratios : mapping
        For each metric and each of :data:`KINDS` topas against the best of these baselines;
        ``None`` where there is no complete pair.
    """

    pressure: float
    load: float
    prefix_tokens: tuple[int, ...]
    rate: float | None
    values: Mapping[str, Mapping[str, Values]] = field(default_factory=dict)
    ratios: Mapping[str, Mapping[str, Ratio | None]] = field(default_factory=dict)

    def ratio(self, metric: str, kind: str = "both") -> Ratio | None:
        """Topas against the best baseline of a kind, if there is such a figure."""
        return self.ratios.get(metric, {}).get(kind)

    def to_dict(self) -> dict[str, Any]:
        """Plain values in a fixed order, ready for JSON."""
        ratios = {
            metric: {kind: item and item.to_dict() for kind, item in kinds.items()}
            for metric, kinds in self.ratios.items()
        }
        values = {
            metric: {name: list(of) for name, of in policies.items()}
            for metric, policies in self.values.items()
        }
        return {
            "pressure": self.pressure,
            "load": self.load,
            "prefix_tokens": list(self.prefix_tokens),
            "rate": self.rate,
            "ratios": ratios,
            "values": values,
        }


@dataclass(frozen=True, kw_only=True)
class MapStudy:
    """What is compared on the maps.

    Parameters
    ----------
    scale : MapScale
        How fine and how much.
    policy : {"topas", "topas-guarded", "topas-paper", "topas-rollout"}
        Which preset of topas.
    baselines : tuple of str
        What it is compared with, each without and with a host cache; without suffixes.
    config : mapping
        Fields of :class:`topas.Config` on top of the preset.
    costs, options : EngineCosts, EngineOptions
        The engine; what ``options`` say of a host cache does not count.

    Raises
    ------
    ConfigError
        A policy is none of these, or a field of ``config`` is unknown or not legal.
    """

    scale: MapScale = field(default_factory=MapScale)
    policy: str = "topas"
    baselines: tuple[str, ...] = BASELINE_NAMES
    config: Mapping[str, Any] = field(default_factory=dict)
    costs: EngineCosts = field(default_factory=EngineCosts)
    options: EngineOptions = field(default_factory=EngineOptions)

    def __post_init__(self) -> None:
        check_choice("policy", self.policy, tuple(PRESET_POLICIES.values()))
        both_ways(self.baselines)
        some = make_workload(BUILTIN_WORKLOADS[0], tasks=1, rate=1.0)
        engine = config_fields(some, self.costs, self.options)
        make_policy(self.policy, {**engine, **self.config})  # refused here, not in every run

    def places(self, workload: str) -> list[MapCell]:
        """The cells of a map before anything is run."""
        found = []
        for pressure in self.scale.axis("pressures"):
            prefixes = prefixes_at(workload, pressure, self.costs.kv_capacity)
            most = self._rate_of_load_1(workload, prefixes)
            for load in self.scale.axis("loads"):
                rate = None if most is None else load * most
                place = MapCell(pressure=pressure, load=load, prefix_tokens=prefixes, rate=rate)
                found.append(place)
        return found

    def _rate_of_load_1(self, workload: str, prefixes: tuple[int, ...]) -> float | None:
        """Arrivals a second that make a load of 1; ``None`` if a task does not fit."""
        scale, lengths, gpu_s = self.scale, Lengths(prefix_tokens=prefixes), 0.0
        for seed in range(1, scale.seeds + 1):
            made = make_workload(workload, tasks=scale.tasks, rate=1.0, seed=seed, lengths=lengths)
            try:
                left_out = without_misfits(made, self.costs, self.options)[1]
            except CapacityError:
                return None
            if left_out:
                return None
            gpu_s += task_gpu_s(made, self.costs, self.options) / scale.seeds
        return 1.0 / gpu_s

    def runs(self, workload: str, place: MapCell) -> list[Cell]:
        """The runs of a cell of the map: all policies and seeds; none if nothing fits."""
        if place.rate is None:
            return []
        lengths = Lengths(prefix_tokens=place.prefix_tokens)
        return [
            Cell(
                workload=workload,
                tasks=self.scale.tasks,
                rate=place.rate,
                seed=seed,
                policy=name,
                lengths=lengths,
                costs=self.costs,
                options=self.options,
                config=self.config if name == self.policy else {},
            )
            for name in (*both_ways(self.baselines), self.policy)
            for seed in range(1, self.scale.seeds + 1)
        ]

    def filled(self, place: MapCell, results: Sequence[CellResult]) -> MapCell:
        """A cell of the map with the figures of its runs."""
        if not results:
            return place
        values: dict[str, dict[str, list[float | None]]] = {metric: {} for metric in JCT_METRICS}
        for result in results:
            for metric, policies in values.items():
                policies.setdefault(result.cell.policy, []).append(_value(result, metric))
        ratios = {
            metric: {
                kind: ratio_to_best(policies[self.policy], self._of_kind(policies, host))
                for kind, host in KINDS.items()
            }
            for metric, policies in values.items()
        }
        return replace(place, values=values, ratios=ratios)

    def _of_kind(self, policies: Mapping[str, Values], host: bool | None) -> dict[str, Values]:
        """The baselines with a host cache, without one, or all."""
        return {
            name: policies[name]
            for name in both_ways(self.baselines)
            if host in (None, PolicyName.parse(name).has_host_cache)
        }

    def map_of(
        self, workload: str, places: Sequence[MapCell], results: Sequence[Sequence[CellResult]]
    ) -> PhaseMap:
        """The finished map: each place with the results of its runs."""
        return PhaseMap(
            workload=workload,
            study=self,
            cells=tuple(map(self.filled, places, results)),
            errors=tuple(r.describe_error() for of in results for r in of if r.error),
        )


def _value(result: CellResult, metric: str) -> float | None:
    if result.error or result.metrics["stopped"]:
        return None
    if result.metrics["finished"] < result.metrics["arrived"]:
        return None
    return float(result.metrics[metric])


@dataclass(frozen=True, kw_only=True)
class PhaseMap:
    """The map of one workload.

    Parameters
    ----------
    workload : str
        One of :data:`topas.sim.BUILTIN_WORKLOADS`.
    study : MapStudy
        Its axes, and what is compared.
    cells : tuple of MapCell
        By pressure, then by load, ascending.
    errors : tuple of str
        Runs that failed, each with its name.
    """

    workload: str
    study: MapStudy
    cells: tuple[MapCell, ...]
    errors: tuple[str, ...] = ()

    def grid(self) -> list[list[MapCell]]:
        """The cells, one row for each pressure."""
        count = self.study.scale.points
        return [list(self.cells[i : i + count]) for i in range(0, len(self.cells), count)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values in a fixed order; they depend on nothing but the inputs."""
        study = self.study
        return {
            "workload": self.workload,
            "scale": asdict(study.scale),
            "policy": study.policy,
            "baselines": list(both_ways(study.baselines)),
            "config": dict(study.config),
            "engine": {**study.costs.to_dict(), **study.options.to_dict()},
            "cells": [cell.to_dict() for cell in self.cells],
            "errors": list(self.errors),
        }


def map_phases(
    workloads: Sequence[str],
    study: MapStudy | None = None,
    *,
    processes: int | None = None,
    resume: Path | str | None = None,
    progress: Callable[[int], AbstractContextManager[Callable[[CellResult], None]]] | None = None,
) -> list[PhaseMap]:
    """Run the maps of some workloads.

    Parameters
    ----------
    workloads : sequence of str
        Names in :data:`topas.sim.BUILTIN_WORKLOADS`.
    study : MapStudy, optional
        What is compared.
    processes, resume
        As of :func:`topas.sim.study.sweep.run_cells`.
    progress : callable, optional
        Given the number of runs, a context whose value is called with each result.

    Returns
    -------
    list of PhaseMap
        One for each workload. The same arguments give the same maps, whatever ``processes`` is.

    Raises
    ------
    ConfigError
        A workload is unknown, or ``processes`` or ``resume`` is not legal.
    """
    for name in workloads:
        check_choice("workload", name, BUILTIN_WORKLOADS)
    study = study or MapStudy()
    places = [(name, study.places(name)) for name in dict.fromkeys(workloads)]
    runs = [[study.runs(name, place) for place in of] for name, of in places]
    flat = [cell for of in runs for cells in of for cell in cells]
    with progress(len(flat)) if progress is not None else nullcontext() as on_cell:
        results = iter(run_cells(flat, processes=processes, resume=resume, on_cell=on_cell))
    return [
        study.map_of(name, of, [list(islice(results, len(cells))) for cells in wanted])
        for (name, of), wanted in zip(places, runs, strict=True)
    ]


def write_maps(maps: Sequence[PhaseMap], folder: Path) -> list[Path]:
    """Write ``phase_map.json`` and a PNG for each map; the same maps, the same bytes.

    Parameters
    ----------
    maps : sequence of PhaseMap
        What to write.
    folder : Path
        Made if it is missing; files of earlier maps are overwritten.

    Returns
    -------
    list of Path
        The files.
    """
    from topas.sim.study.phase_plot import plot_map

    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "phase_map.json"]
    whole = {"topas": topas.__version__, "maps": [item.to_dict() for item in maps]}
    files[0].write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    for item in maps:
        files.append(folder / f"{item.workload}.png")
        plot_map(item, files[-1])
    return files
