"""``topas reproduce``: the paper's evaluation, as plots, tables and one JSON file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from topas.cli.common import console_of, option, parts
from topas.policies import BASELINE_NAMES
from topas.reproduce.points import PAPER_BASELINES, Scale
from topas.reproduce.run import PARTS, Evaluation, evaluate, write
from topas.reproduce.tables import notes, to_tables
from topas.sim.checks import file_errors
from topas.sim.study.sweep import show_progress

__all__ = ["reproduce"]


def reproduce(
    part: Annotated[str, typer.Argument(help=f"One of {', '.join(PARTS)}, or all.")] = "all",
    out: Annotated[Path, option("Folder for results.json and the plots.")] = Path(
        "topas-reproduce"
    ),
    seeds: Annotated[int | None, option("Runs of each point. (5; with --quick 2)")] = None,
    quick: Annotated[bool, option("Few tasks, two rates: a look, no figures.", "--quick")] = False,
    pressure: Annotated[
        float | None, option("Scale prefixes to a sum of so many KV capacities. (their own)")
    ] = None,
    processes: Annotated[int | None, option("Runs at a time. (as many as processors)")] = None,
    baselines: Annotated[
        str,
        option("Compared with, without and with host cache: 'all', 'paper', or some with commas."),
    ] = "all",
) -> None:
    """Reproduce Table I and Figures 1 to 5 of the paper in the simulator.

    Finished runs are kept in cells.jsonl of the folder, so that an interrupted command goes on
    where it was. The same arguments give the same results.json, byte for byte.
    """
    scale = Scale.quick() if quick else Scale()
    scale = replace(scale, seeds=scale.seeds if seeds is None else seeds, pressure=pressure)
    with file_errors(f"--out {out}"):
        out.mkdir(parents=True, exist_ok=True)
    evaluation = evaluate(
        PARTS if part == "all" else (part,),
        scale=scale,
        baselines=_baselines(baselines),
        processes=processes,
        resume=out / "cells.jsonl",
        progress=lambda total: show_progress(total, "runs"),
    )
    with file_errors(f"--out {out}"):
        files = write(evaluation, out)
    _show(evaluation, files)
    if evaluation.errors:
        raise typer.Exit(1)


def _baselines(text: str) -> tuple[str, ...]:
    if text == "paper":
        return PAPER_BASELINES
    if text == "all":
        return BASELINE_NAMES
    return parts(text)


def _show(evaluation: Evaluation, files: list[Path]) -> None:
    console = console_of()
    for table in to_tables(evaluation):
        console.print(table)
    for line in notes(evaluation):
        console.print(line, markup=False, highlight=False)
    console.print("written: " + ", ".join(map(str, files)), markup=False, highlight=False)
