"""Run the parts of the evaluation and write what comes out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import topas
from topas.errors import ConfigError
from topas.policies import BASELINE_NAMES, both_ways
from topas.reproduce.figures import (
    JCT_METRICS,
    PAPER_ABLATION,
    PAPER_REDUCTIONS,
    Comparison,
    Figures,
    Point,
    Reduction,
)
from topas.reproduce.gantt import Gantt, run_gantt
from topas.reproduce.points import (
    POLICIES,
    Scale,
    Variant,
    ablation,
    cells_of,
    contenders,
)
from topas.reproduce.table1 import TABLE1_SETTING, Table1Row, run_table1
from topas.sim.cost import EngineCosts
from topas.sim.options import EngineOptions
from topas.sim.study.sweep import Cell, CellResult, run_cells

__all__ = ["PARTS", "Evaluation", "Sweep", "evaluate", "write"]

#: What can be reproduced.
PARTS: tuple[str, ...] = ("table1", "fig1", "fig2", "fig3", "fig4", "fig5")

#: What is said where the paper's text does not describe enough to run it.
NOT_REPRODUCED: Mapping[str, str] = {
    "fig1": "downstream gating is left out: the paper has it in a caption, without a rule",
}

_WORKLOADS: Mapping[str, tuple[str, ...]] = {
    "fig3": ("chain-3", "dag-4", "dag-10-wide"),
    "fig4": ("metagpt-sop", "metagpt-tl"),
}
_FIG1 = ("chain-3", 0.15, ("lpm", "lpm+host", "srpt", "srpt+host", "topas"))
_FIG5 = ("metagpt-tl", 0.0175, ("topas-paper", "topas-guarded", "topas"))
_GANTT = ("lpm", "srpt")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Points of one figure and what they say of topas.

    Parameters
    ----------
    points : list of Point
        One for each variant and rate.
    comparisons : list of Comparison
        Topas against the baselines; empty for Figure 5.
    reductions : list of Reduction
        The full policy against its reduced forms; only for Figure 5.
    """

    points: list[Point]
    comparisons: list[Comparison] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "points": [point.to_dict() for point in self.points],
            "comparisons": [item.to_dict() for item in self.comparisons],
            "reductions": [item.to_dict() for item in self.reductions],
        }


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What was reproduced.

    Parameters
    ----------
    scale : Scale
        How much was run.
    baselines : tuple of str
        The policies that topas is compared with.
    table1 : list of Table1Row
        Empty if it was not asked for.
    gantt : list of Gantt
        Figure 2; empty if it was not asked for.
    sweeps : mapping
        The other figures by part.
    errors : list of str
        Runs that failed, each with its name.
    """

    scale: Scale
    baselines: tuple[str, ...]
    table1: list[Table1Row] = field(default_factory=list)
    gantt: list[Gantt] = field(default_factory=list)
    sweeps: Mapping[str, Sweep] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values in a fixed order; they depend on nothing but the inputs."""
        whole: dict[str, Any] = {
            "topas": topas.__version__,
            "scale": asdict(self.scale),
            "seeds": list(range(1, self.scale.seeds + 1)),
            "engine": {**EngineCosts().to_dict(), **EngineOptions().to_dict()},
            "baselines": list(self.baselines),
        }
        if self.table1:
            rows = [row.to_dict() for row in self.table1]
            misses = [miss for row in self.table1 for miss in row.misses()]
            whole["table1"] = {"setting": asdict(TABLE1_SETTING), "rows": rows, "misses": misses}
        if self.gantt:
            whole["fig2"] = [chart.to_dict() for chart in self.gantt]
        for part, sweep in self.sweeps.items():
            whole[part] = sweep.to_dict()
            if part in NOT_REPRODUCED:
                whole[part]["not_reproduced"] = NOT_REPRODUCED[part]
        whole["errors"] = self.errors
        return whole


_Plan = list[tuple[str, tuple[float, ...], list[Variant]]]  # workload, rates, variants


def _plans(parts: Sequence[str], scale: Scale, baselines: Sequence[str]) -> dict[str, _Plan]:
    """What each part sweeps."""
    plans: dict[str, _Plan] = {}
    for part in parts:
        if part == "fig1":
            workload, rate, names = _FIG1
            plans[part] = [(workload, (rate,), contenders(names, _GANTT, _GANTT))]
        elif part in _WORKLOADS:
            plans[part] = [
                (name, scale.rates_of(name), contenders(POLICIES, baselines))
                for name in _WORKLOADS[part]
            ]
        elif part == "fig5":
            workload, rate, presets = _FIG5
            variants = [variant for preset in presets for variant in ablation(preset)]
            plans[part] = [(workload, (rate,), variants)]
    return plans


def evaluate(
    parts: Sequence[str] = PARTS,
    *,
    scale: Scale | None = None,
    baselines: Sequence[str] = BASELINE_NAMES,
    processes: int | None = None,
    resume: Path | str | None = None,
    progress: Callable[[int], AbstractContextManager[Callable[[CellResult], None]]] | None = None,
) -> Evaluation:
    """Run parts of the paper's evaluation.

    Parameters
    ----------
    parts : sequence of str
        Of :data:`PARTS`.
    scale : Scale, optional
        How much; default :class:`Scale`.
    baselines : sequence of str
        Policies that topas is compared with, each without and with a host cache; the paper's five
        without one are compared with in any case.
    processes, resume
        As of :func:`topas.sim.study.sweep.run_cells`.
    progress : callable, optional
        Called with the number of runs; gives a context whose value is called after each.

    Raises
    ------
    ConfigError
        A part or a baseline is unknown, or an argument is not legal.
    StateError
        A worker process died.
    """
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"part: unknown {part!r}, known are {', '.join(PARTS)}, all")
    both_ways(baselines)  # also where no part asks for any
    scale = scale or Scale()
    plans = _plans(parts, scale, baselines)
    cells: list[Cell] = []
    begins: dict[str, slice] = {}
    for part, plan in plans.items():
        begin = len(cells)
        for workload, rates, variants in plan:
            cells.extend(cells_of(workload, rates, variants, scale))
        begins[part] = slice(begin, len(cells))
    with progress(len(cells)) if progress and cells else nullcontext() as on_cell:
        results = run_cells(cells, processes=processes, resume=resume, on_cell=on_cell)
    sweeps = {part: _sweep(part, plan, results[begins[part]]) for part, plan in plans.items()}
    return Evaluation(
        scale=scale,
        baselines=tuple(baselines),
        table1=run_table1() if "table1" in parts else [],
        gantt=[run_gantt(policy) for policy in _GANTT] if "fig2" in parts else [],
        sweeps=sweeps,
        errors=[result.describe_error() for result in results if result.error],
    )


def _sweep(part: str, plan: _Plan, results: Sequence[CellResult]) -> Sweep:
    figures = Figures(results)
    points = [
        figures.point(workload, rate, variant.label)
        for workload, rates, variants in plan
        for variant in variants
        for rate in rates
    ]
    if part == "fig5":
        return Sweep(points=points, reductions=_ablation(figures, plan))
    comparisons = [
        item
        for workload, rates, variants in plan
        for item in figures.comparisons(
            workload, rates, variants, paper=None if part == "fig1" else PAPER_REDUCTIONS[workload]
        )
    ]
    return Sweep(points=points, comparisons=comparisons)


def _ablation(figures: Figures, plan: _Plan) -> list[Reduction]:
    """The full policy against each of its reduced forms."""
    found = []
    for workload, rates, variants in plan:
        for metric in JCT_METRICS:
            for policy in _FIG5[2]:
                full, *reduced = [v.label for v in variants if v.policy == policy]
                for label in reduced:
                    paper = PAPER_ABLATION[metric] if label.endswith("base") else None
                    item = figures.reduction(workload, rates, full, [label], metric, paper)
                    found.extend([item] if item else [])
    return found


def write(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Write ``results.json`` and a PNG for each figure; the same evaluation, the same bytes.

    Parameters
    ----------
    evaluation : Evaluation
        What to write.
    folder : Path
        Made if it is missing; files of earlier runs are overwritten.

    Returns
    -------
    list of Path
        The files.
    """
    from topas.reproduce.plots import plot_bars, plot_gantt, plot_lines

    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "results.json"]
    text = json.dumps(evaluation.to_dict(), indent=1, allow_nan=False)
    files[0].write_text(text + "\n", encoding="utf-8")
    if evaluation.gantt:
        files.append(folder / "fig2.png")
        plot_gantt(evaluation.gantt, files[-1])
    for part, sweep in evaluation.sweeps.items():
        files.append(folder / f"{part}.png")
        if part in _WORKLOADS:
            plot_lines(sweep.points, files[-1], sweep.comparisons)
        else:
            workload, rate, _ = _FIG1 if part == "fig1" else _FIG5
            plot_bars(sweep.points, files[-1], f"{workload} at {rate:g} tasks/s")
    return files
