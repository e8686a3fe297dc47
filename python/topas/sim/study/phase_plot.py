"""Phase maps as heat maps, drawn with matplotlib's Agg."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from topas.sim.study.phase_map import PhaseMap
from topas.sim.study.versus import JCT_METRICS, SMALLEST_SHOWN, Ratio

__all__ = ["plot_map"]

_TITLES = {"mean_jct_s": "mean JCT", "p99_jct_s": "p99 JCT"}
_DPI = 75
_CELL, _MARGIN = 0.72, 1.1  # inches
# Colours by the logarithm of the ratio, full at these ratios and beyond.
_FULL = math.log(2.0)
_TICKS = (0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0)
_NOTHING = "0.85"
_DARK = 0.7  # of the colour's range: white letters beyond


def _panel(axes: Axes, phases: PhaseMap, metric: str, colors: ScalarMappable) -> None:
    """One metric: a square for each cell of the map."""
    for row, cells in enumerate(phases.grid()):
        for column, cell in enumerate(cells):
            _draw_cell(axes, (column, row), cell.ratio(metric), colors)
    count = phases.study.scale.points
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_ylim(-0.5, count - 0.5)
    axes.set_xticks(range(count), [f"{value:g}" for value in phases.study.scale.axis("loads")])
    axes.set_yticks(range(count), [f"{value:g}" for value in phases.study.scale.axis("pressures")])
    axes.set_xlabel("load")
    axes.set_title(_TITLES[metric], fontsize=10)


def _draw_cell(
    axes: Axes, place: tuple[int, int], found: Ratio | None, colors: ScalarMappable
) -> None:
    """A square with its ratio, in brackets and hatched if undecided, grey if there is none."""
    corner = place[0] - 0.5, place[1] - 0.5
    square = Rectangle(corner, 1.0, 1.0, edgecolor="white", facecolor=_NOTHING)
    axes.add_patch(square)
    text, weight, ink = "–", "normal", "black"
    if found is not None:
        value = math.log(found.ratio.mean)
        red, green, blue, _ = colors.to_rgba(np.asarray([value]))[0]
        square.set_facecolor((float(red), float(green), float(blue)))
        text = f"{found.ratio.mean:.2f}"
        if found.direction(SMALLEST_SHOWN) == 0:
            square.set_hatch("//")
            text = f"({text})"
        else:
            weight = "bold"
        if abs(value) > _DARK * _FULL:
            ink = "white"
    axes.text(*place, text, ha="center", va="center", fontsize=9, color=ink, weight=weight)


def plot_map(phases: PhaseMap, path: Path) -> None:
    """Draw a map: mean JCT on the left, p99 JCT on the right, against all baselines.

    Each cell has the ratio topas / best baseline; blue is where topas is better, red where it is
    worse. Cells whose 95 % interval has 1 in it are hatched, their number is in brackets. Grey:
    no figure.

    Parameters
    ----------
    phases : PhaseMap
        The map.
    path : Path
        PNG file to write.
    """
    side = _CELL * phases.study.scale.points
    size = (2 * side + 2.2 * _MARGIN, side + 1.3 * _MARGIN)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(JCT_METRICS), squeeze=False)[0]
    colors = ScalarMappable(Normalize(-_FULL, _FULL), "RdBu_r")
    for axes, metric in zip(panels, JCT_METRICS, strict=True):
        _panel(axes, phases, metric, colors)
    panels[0].set_ylabel("prefix pressure")
    bar = figure.colorbar(colors, ax=list(panels), shrink=0.9)
    bar.set_ticks([math.log(tick) for tick in _TICKS], labels=[f"{tick:.2f}" for tick in _TICKS])
    settings = "".join(f", {name}={value}" for name, value in phases.study.config.items())
    figure.suptitle(
        f"{phases.workload}: JCT of {phases.study.policy}{settings} / best baseline\n"
        "hatched, in brackets: the 95 % interval has 1 in it",
        fontsize=10,
    )
    FigureCanvasAgg(figure)
    figure.savefig(  # the same bytes each time
        path, dpi=_DPI, metadata={"Software": None}, pil_kwargs={"optimize": True}
    )
