"""``topas decide``: the decision of each snapshot of a file."""

from __future__ import annotations

import json
import sys

import topas
from topas.cli.snapshots import (
    Exact,
    Expectation,
    PresetName,
    Samples,
    SnapshotFile,
    located,
    read_snapshots,
)

__all__ = ["decide"]


def decide(
    file: SnapshotFile,
    preset: PresetName = "default",
    samples: Samples = None,
    exact: Exact = False,
) -> None:
    """Print one JSON line for each snapshot: resident, admit, preempt, score, terms, credits."""
    for line in read_snapshots(file, preset, Expectation(exact, samples)):
        with located(file, line.number):
            decision = topas.decide(line.snapshot, line.config)
        sys.stdout.write(json.dumps(decision.to_dict()) + "\n")
