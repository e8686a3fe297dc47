"""How the cost of a decision grows: waiting requests, agents, draws."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from figures import exponent
from replaying import lowest, replay, replays
from rows import PRESETS
from synthetic import Shape, record_synthetic

Axis = tuple[tuple[int, ...], Callable[[int], Shape]]

AXES: dict[str, Axis] = {
    "waiting (8 agents, 32 running)": (
        (10, 32, 100, 316, 1000, 3162, 10_000),
        lambda size: Shape(agents=8, waiting=size, running=32, room=0.8),
    ),
    "agents (500 waiting, 64 running)": (
        (2, 4, 8, 16, 32, 64, 128, 256),
        lambda size: Shape(agents=size, waiting=500, running=64, room=0.5, warm_tasks=8),
    ),
    "draws (16 agents, 200 waiting, 32 running; nothing enumerated)": (
        (32, 64, 128, 256, 512, 1024),
        lambda size: Shape(agents=16, waiting=200, running=32, samples=size, exact_limit=1),
    ),
}
QUICK: dict[str, Axis] = {
    "waiting (4 agents, 4 running)": (
        (10, 20),
        lambda size: Shape(agents=4, waiting=size, running=4, warm_tasks=2),
    ),
}


def median_us(shape: Shape, preset: str, decisions: int) -> float:
    """Median cost of a decision on states of a shape, each with the lowest of three replays."""
    log = record_synthetic(shape, preset, decisions=decisions)
    first = replay(log)
    return statistics.median(lowest([first, *replays(log, first, 2)], "decide"))


def measure_growth(axes: dict[str, Axis], decisions: int) -> list[dict[str, Any]]:
    """A row for each axis and preset: sizes, median costs, the fitted exponent."""
    rows = []
    for name, (sizes, shape_of) in axes.items():
        for preset in PRESETS:
            costs = [median_us(shape_of(size), preset, decisions) for size in sizes]
            row = {"axis": name, "preset": preset, "sizes": sizes, "median": costs}
            rows.append({**row, "exponent": exponent(sizes, costs)})
    return rows
