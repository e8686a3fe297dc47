"""What was reproduced, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from topas.reproduce.figures import METRICS, Comparison, Point, Reduction
from topas.reproduce.gantt import Gantt
from topas.reproduce.run import NOT_REPRODUCED, Evaluation
from topas.reproduce.table1 import Table1Row
from topas.sim.study.statistics import Interval

__all__ = ["notes", "to_tables"]

_HEADERS = {
    "mean_jct_s": "mean JCT s",
    "p99_jct_s": "p99 JCT s",
    "first_task_s": "first task s",
    "requests_per_s": "req/s",
}
# The kinds of baselines that have columns; the better of the last two is marked.
_KIND_HEADERS = {
    "paper_baselines": "less than paper's\nbaselines %",
    "without_host": "than all without\nhost cache %",
    "with_host": "than all with\nhost cache %",
}
_TITLES = {
    "fig1": "Figure 1: Chain-3 under locality, progress and topas",
    "fig3": "Figure 3: synthetic workloads",
    "fig4": "Figure 4: MetaGPT workloads",
    "fig5": "Figure 5: ablation",
}


def to_tables(evaluation: Evaluation) -> list[Table]:
    """All tables, in the order of the paper."""
    tables = []
    if evaluation.table1:
        tables.append(_table1(evaluation.table1))
    if evaluation.gantt:
        tables.append(_gantt(evaluation.gantt))
    for part, sweep in evaluation.sweeps.items():
        tables.append(_points(_TITLES[part], sweep.points))
        if sweep.comparisons:
            what = "topas against the best baseline of each kind (*: the best of all)"
            tables.append(_comparisons(f"{_TITLES[part]}: {what}", sweep.comparisons))
        if sweep.reductions:
            title = f"{_TITLES[part]}: full policy against"
            tables.append(_reductions(title, sweep.reductions))
    return tables


def notes(evaluation: Evaluation) -> list[str]:
    """Lines below the tables: what is off, left out, incomplete or failed."""
    lines = [f"table1: {miss}" for row in evaluation.table1 for miss in row.misses()]
    for part, sweep in evaluation.sweeps.items():
        if part in NOT_REPRODUCED:
            lines.append(f"{part}: {NOT_REPRODUCED[part]}")
        lines.extend(
            f"{part}: {point.workload} at {point.rate:g} tasks/s, {point.label}: "
            f"{point.incomplete} runs did not finish all tasks"
            for point in sweep.points
            if point.incomplete
        )
    return lines + evaluation.errors


def _new(title: str, columns: Sequence[str], left: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1))
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < left else "right", no_wrap=True)
    return table


def _table1(rows: Sequence[Table1Row]) -> Table:
    columns = ("load", "order", "makespan s", "paper", "mean batch", "paper", "peak", "paper")
    table = _new("Table I: FCFS, agents grouped and alternating", columns, 2)
    for row in rows:
        table.add_row(
            f"n={row.requests}",
            row.order,
            f"{row.makespan_s:.1f}",
            f"{row.paper_makespan_s:.1f}",
            f"{row.mean_batch:.1f}",
            f"{row.paper_mean_batch:.1f}",
            str(row.peak_batch),
            str(row.paper_peak_batch),
        )
    return table


def _gantt(charts: Sequence[Gantt]) -> Table:
    columns = ("policy", "makespan", "mean JCT", "prefix setups")
    table = _new("Figure 2: one prefix fits (time units)", columns, 1)
    for chart in charts:
        table.add_row(chart.policy, f"{chart.makespan:g}", f"{chart.mean_jct:g}", str(chart.setups))
    return table


def _with_half(item: Interval | None, digits: int, sign: str = "") -> str:
    if item is None:
        return "-"
    half = "" if item.half_width is None else f" ±{item.half_width:.{digits}f}"
    return f"{item.mean:{sign}.{digits}f}{half}"


def _points(title: str, points: Sequence[Point]) -> Table:
    columns = ("workload", "tasks/s", "policy", *(_HEADERS[name] for name in METRICS), "preempt.")
    table = _new(title, columns, 3)
    ordered = sorted(points, key=lambda point: (_place(points, point), point.rate))
    last: tuple[str, float] | None = None
    for point in ordered:
        here = point.workload, point.rate
        preemptions = point.counts["preemptions"]
        table.add_row(
            point.workload if here != last else "",
            f"{point.rate:g}" if here != last else "",
            point.label + ("*" if point.incomplete else ""),
            *(
                _with_half(point.metrics[name], 3 if name.endswith("per_s") else 1)
                for name in METRICS
            ),
            "-" if preemptions is None else f"{preemptions:.0f}",
        )
        last = here
    return table


def _place(points: Sequence[Point], point: Point) -> int:
    return [other.workload for other in points].index(point.workload)


def _comparisons(title: str, comparisons: Sequence[Comparison]) -> Table:
    columns = ["workload", "metric", "policy"]
    for header in _KIND_HEADERS.values():
        columns += [header, "against"]
    table = _new(title, [*columns, "paper %"], 3)
    for item in comparisons:
        best = item.against["both"]
        cells = []
        for kind in _KIND_HEADERS:
            found = item.against[kind]
            star = "*" if found and best and found.best == best.best else ""
            cells.append(_with_half(found.percent if found else None, 1, "+"))
            cells.append(f"{found.best}{star}" if found else "-")
        table.add_row(
            item.workload,
            _HEADERS[item.metric].removesuffix(" s"),
            item.label,
            *cells,
            "-" if item.paper is None else f"{item.paper:.1f}",
        )
    return table


def _reductions(title: str, reductions: Sequence[Reduction]) -> Table:
    columns = ("workload", "metric", "policy", "against", "reduction %", "paper %")
    table = _new(title, columns, 4)
    for item in reductions:
        table.add_row(
            item.workload,
            _HEADERS[item.metric].removesuffix(" s"),
            item.label,
            item.best,
            _with_half(item.percent, 1, "+"),
            "-" if item.paper is None else f"{item.paper:.1f}",
        )
    return table
