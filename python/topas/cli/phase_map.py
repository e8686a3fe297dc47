"""``topas phase-map``: where topas pays, over prefix pressure and load, as pictures and JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from topas.cli import engine_options
from topas.cli.common import console_of, option, parts
from topas.cli.simulate import config_fields
from topas.errors import ConfigError
from topas.policies import BASELINE_NAMES, PRESET_POLICIES
from topas.sim import BUILTIN_WORKLOADS
from topas.sim.checks import file_errors
from topas.sim.study.phase_map import MapScale, MapStudy, PhaseMap, map_phases, write_maps
from topas.sim.study.sweep import show_progress
from topas.sim.study.versus import JCT_METRICS, SMALLEST_SHOWN, Ratio

__all__ = ["phase_map"]

_TITLES = {"mean_jct_s": "mean JCT", "p99_jct_s": "p99 JCT"}


def phase_map(
    workload: Annotated[
        str, typer.Argument(help=f"One of {', '.join(BUILTIN_WORKLOADS)}, with commas, or all.")
    ] = "all",
    out: Annotated[Path, option("Folder for phase_map.json and the pictures.")] = Path(
        "topas-phase-map"
    ),
    seeds: Annotated[int | None, option("Runs of each cell and policy. (5; quick: 2)")] = None,
    points: Annotated[int | None, option("Pressures, and loads. (5; quick: 3)")] = None,
    tasks: Annotated[int | None, option("Tasks of a run. (50; quick: 20)")] = None,
    processes: Annotated[int | None, option("Runs at a time. (as many as processors)")] = None,
    quick: Annotated[bool, option("Few and short runs: a look, no figures.", "--quick")] = False,
    preset: Annotated[str, option(f"Of topas: {', '.join(PRESET_POLICIES)}.")] = "default",
    config: Annotated[list[str] | None, option("Option of topas, FIELD=VALUE.", "--set")] = None,
    baselines: Annotated[str, option("Compared with: 'all', or policies with commas.")] = "all",
    capacity: engine_options.Capacity = None,
    gpu: engine_options.GpuName = None,
    model: engine_options.ModelName = None,
    tensor_parallel: engine_options.TensorParallel = None,
    mem_fraction: engine_options.MemFraction = None,
    costs: engine_options.Costs = None,
    batching: engine_options.Batching = "prefill-first",
    chunked_prefill_tokens: engine_options.ChunkedPrefillTokens = 8192,
    charge_decisions: engine_options.ChargeDecisions = 0.0,
    over_reserve: engine_options.OverReserve = 1.0,
    max_running: engine_options.MaxRunning = 0,
    redo_model: engine_options.RedoModel = "decode",
) -> None:
    """Map where topas pays: JCT against the best baseline over prefix pressure and load.

    Finished runs are kept in cells.jsonl of the folder, so that an interrupted command goes on
    where it was. The same arguments give the same files, byte for byte.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    if preset not in PRESET_POLICIES:
        raise ConfigError(f"--preset: unknown {preset!r}, known are {', '.join(PRESET_POLICIES)}")
    study = MapStudy(
        scale=_scale(given),
        policy=PRESET_POLICIES[preset],
        baselines=BASELINE_NAMES if baselines == "all" else parts(baselines),
        config=config_fields(config or []),
        costs=engine_options.costs_of(given),
        options=engine_options.options_of(given),
    )
    with file_errors(f"--out {out}"):
        out.mkdir(parents=True, exist_ok=True)
    maps = map_phases(
        BUILTIN_WORKLOADS if workload == "all" else parts(workload),
        study,
        processes=processes,
        resume=out / "cells.jsonl",
        progress=lambda total: show_progress(total, "runs"),
    )
    with file_errors(f"--out {out}"):
        files = write_maps(maps, out)
    _show(maps, files)
    if any(item.errors for item in maps):
        raise typer.Exit(1)


def _show(maps: list[PhaseMap], files: list[Path]) -> None:
    console = console_of(120)
    for item in maps:
        for metric in JCT_METRICS:
            console.print(_table(item, metric))
        for line in item.errors:
            console.print(line, markup=False, highlight=False)
    console.print("written: " + ", ".join(map(str, files)), markup=False, highlight=False)


def _scale(given: dict[str, Any]) -> MapScale:
    fields = {name: given[name] for name in ("points", "seeds", "tasks") if name in given}
    return replace(MapScale.quick() if given["quick"] else MapScale(), **fields)


def _table(phases: PhaseMap, metric: str) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{phases.workload}: {_TITLES[metric]}, {phases.study.policy} / best baseline",
        caption="in brackets: the 95 % interval has 1 in it",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("pressure", justify="right")
    for load in phases.study.scale.axis("loads"):
        table.add_column(f"load {load:g}", no_wrap=True)
    for pressure, cells in zip(phases.study.scale.axis("pressures"), phases.grid(), strict=True):
        table.add_row(f"{pressure:g}", *(_words(cell.ratio(metric)) for cell in cells))
    return table


def _words(found: Ratio | None) -> str:
    if found is None:
        return "-"
    text = f"{found.ratio.mean:.2f}"
    return f"{f'({text})' if found.direction(SMALLEST_SHOWN) == 0 else text} {found.best}"
