"""The figures as PNG files, drawn with matplotlib's Agg."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from topas.policies import POLICY_NAMES
from topas.reproduce.figures import METRICS, Comparison, Point
from topas.reproduce.gantt import Gantt

__all__ = ["plot_bars", "plot_gantt", "plot_lines"]

_TITLES = {
    "mean_jct_s": "mean JCT, s",
    "p99_jct_s": "p99 JCT, s",
    "first_task_s": "first task, s",
    "requests_per_s": "requests/s",
}
# Which kinds of baselines stand above a panel, and how they are called there.
_KIND_WORDS = {
    "paper_baselines": "paper's",
    "without_host": "all without host cache",
    "with_host": "all with host cache",
}
_DPI = 120
_WIDTH, _HEIGHT = 5.2, 2.9  # of one panel, inches
_TASK_COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})  # the same bytes each time


def _color(label: str, place: int) -> str:
    """One colour a policy in all figures, with and without host cache."""
    known, base = list(POLICY_NAMES), label.partition("+")[0]
    return f"C{(known.index(base) if base in known else len(known) + place) % 10}"


def plot_lines(points: Sequence[Point], path: Path, comparisons: Sequence[Comparison] = ()) -> None:
    """Each metric over the arrival rate: a row for each metric, a column for each workload.

    JCT is on a logarithmic axis; bars are 95 % confidence intervals; incomplete points are left
    out. Policies with a host cache are dashed.

    Parameters
    ----------
    points : sequence of Point
        At least one.
    path : Path
        PNG file to write.
    comparisons : sequence of Comparison
        Written above the panel of their workload and metric, beside the paper's reduction.
    """
    workloads = list(dict.fromkeys(point.workload for point in points))
    labels = list(dict.fromkeys(point.label for point in points))
    figure = Figure(figsize=(_WIDTH * len(workloads), _HEIGHT * len(METRICS)), layout="constrained")
    axes = figure.subplots(len(METRICS), len(workloads), squeeze=False)
    for row, metric in enumerate(METRICS):
        for column, workload in enumerate(workloads):
            panel = axes[row][column]
            for place, label in enumerate(labels):
                _draw_line(
                    panel,
                    [p for p in points if (p.workload, p.label) == (workload, label)],
                    metric,
                    _color(label, place),
                )
            if metric.endswith("jct_s"):
                panel.set_yscale("log")
            here = [c for c in comparisons if (c.workload, c.metric) == (workload, metric)]
            panel.set_title(_words(here), loc="left", fontsize=7)
            panel.set_ylabel(_TITLES[metric] if column == 0 else "")
            if row == len(METRICS) - 1:
                panel.set_xlabel(f"{workload}, tasks/s")
            panel.locator_params(axis="x", nbins=6)
            panel.grid(alpha=0.3)
    handles, names = axes[0][0].get_legend_handles_labels()
    columns = min(len(labels), 3 * len(workloads))
    figure.legend(handles, names, loc="outside lower center", ncols=columns)
    _save(figure, path)


def _words(comparisons: Sequence[Comparison]) -> str:
    """One line for each kind of baselines: percent less than the best of them."""
    papers = [f" (paper {item.paper:+.1f})" for item in comparisons if item.paper is not None]
    lines = [f"% less{papers[0] if papers else ''} than"] if comparisons else []
    for kind, words in _KIND_WORDS.items():
        best, parts = "none", []
        for item in comparisons:
            found = item.against[kind]
            if found is not None:
                half = found.percent.half_width
                spread = "" if half is None else f"±{half:.1f}"
                best = found.best.partition("+")[0]
                parts.append(f"{item.label} {found.percent.mean:+.1f}{spread}")
        if parts:
            lines.append(f"{words} ({best}): " + ", ".join(parts))
    return "\n".join(lines)


def _draw_line(panel: Axes, points: Sequence[Point], metric: str, color: str) -> None:
    drawn = [(p.rate, p.metrics[metric]) for p in points]
    there = [(rate, item) for rate, item in drawn if item is not None]
    panel.errorbar(
        [rate for rate, _ in there],
        [item.mean for _, item in there],
        yerr=[item.half_width or 0.0 for _, item in there],
        label=points[0].label,
        color=color,
        linestyle="--" if "+host" in points[0].label else "-",
        linewidth=2.4 if points[0].label.startswith("topas") else 1.2,
        marker="o",
        markersize=3,
        capsize=2,
        elinewidth=0.8,
    )


def plot_bars(points: Sequence[Point], path: Path, title: str) -> None:
    """Each metric as bars, one for each variant, with 95 % confidence intervals.

    Parameters
    ----------
    points : sequence of Point
        One for each variant.
    path : Path
        PNG file to write.
    title : str
        Of the figure.
    """
    figure = Figure(figsize=(_WIDTH * len(METRICS), 1.2 * _HEIGHT), layout="constrained")
    axes = figure.subplots(1, len(METRICS), squeeze=False)
    for panel, metric in zip(axes[0], METRICS, strict=True):
        for place, point in enumerate(points):
            item = point.metrics[metric]
            if item is not None:
                color = _color(point.label, place)
                panel.bar(place, item.mean, yerr=item.half_width or 0.0, color=color, capsize=3)
        panel.set_xticks(
            range(len(points)), [point.label for point in points], rotation=35, ha="right"
        )
        panel.set_title(_TITLES[metric])
        panel.grid(axis="y", alpha=0.3)
    figure.suptitle(title)
    _save(figure, path)


def plot_gantt(charts: Sequence[Gantt], path: Path) -> None:
    """Charts below each other, one lane a task: hatched the prefix setup, then the service.

    Parameters
    ----------
    charts : sequence of Gantt
        At least one.
    path : Path
        PNG file to write.
    """
    figure = Figure(figsize=(10.0, 2.4 * len(charts)), layout="constrained")
    axes = figure.subplots(len(charts), 1, squeeze=False, sharex=True)
    for (panel,), chart in zip(axes, charts, strict=True):
        tasks = list(dict.fromkeys(sorted(str(bar.task) for bar in chart.bars)))
        for bar in chart.bars:
            lane = tasks.index(str(bar.task))
            color = _TASK_COLORS[lane % len(_TASK_COLORS)]
            if bar.service > bar.start:
                setup = bar.service - bar.start
                panel.barh(lane, setup, left=bar.start, color="lightgrey", hatch="//")
            panel.barh(lane, bar.end - bar.service, left=bar.service, color=color, edgecolor="k")
            middle = 0.5 * (bar.service + bar.end)
            panel.text(middle, lane, bar.agent, ha="center", va="center", color="white")
        panel.set_yticks(range(len(tasks)), [f"task {task}" for task in tasks])
        panel.invert_yaxis()
        panel.set_title(
            f"{chart.policy}: makespan {chart.makespan:g}, mean JCT {chart.mean_jct:g}, "
            f"{chart.setups} prefix setups",
            loc="left",
        )
    axes[-1][0].set_xlabel("time units")
    _save(figure, path)
