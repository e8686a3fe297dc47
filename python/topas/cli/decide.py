"""``topas decide``: the decision of each snapshot of a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

import topas
from topas.cli.snapshots import Expectation, located, read_snapshots

__all__ = ["decide"]


def decide(
    file: Annotated[Path, typer.Argument(help="Snapshots, one JSON object a line; - is stdin.")],
    preset: Annotated[
        str, typer.Option(help="What a config leaves out: paper, guarded or default.")
    ] = "default",
    samples: Annotated[
        int | None, typer.Option(help="Sample every expectation with so many draws.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Enumerate every expectation.")] = False,
) -> None:
    """Print one JSON line for each snapshot: resident, admit, preempt, score, terms, credits."""
    for line in read_snapshots(file, preset, Expectation(exact, samples)):
        with located(file, line.number):
            decision = topas.decide(line.snapshot, line.config)
        sys.stdout.write(json.dumps(decision.to_dict()) + "\n")
