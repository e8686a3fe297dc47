"""A comparison for people (a table) and for programs (JSON)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from topas.sim.metrics import RunMetrics
from topas.sim.runner import Comparison

__all__ = ["notes", "to_json", "to_tables"]


@dataclass(frozen=True)
class _Column:
    """A column: its header, what it shows of a run, and whether the least value is the best."""

    header: str
    value: Callable[[RunMetrics], float | None]
    digits: int = 0
    mark_least: bool = False

    def text(self, run: RunMetrics, least: float | None) -> str:
        value = self.value(run)
        shown = "-" if value is None else f"{value:.{self.digits}f}"
        return f"[bold]{shown}[/bold]" if self.mark_least and value == least else shown


_TASKS = (
    _Column("mean\nJCT s", lambda run: run.mean_jct_s, 1, mark_least=True),
    _Column("p99\nJCT s", lambda run: run.p99_jct_s, 1, mark_least=True),
    _Column("make-\nspan s", lambda run: run.makespan_s, 1),
    _Column("first\ntask s", lambda run: run.first_task_s, 1),
    _Column("req\n/s", lambda run: run.requests_per_s, 3),
    _Column("fin-\nished", lambda run: run.finished),
    _Column("can-\ncelled", lambda run: run.cancelled),
    _Column("unfin-\nished", lambda run: run.unfinished),
)
_ENGINE = (
    _Column("mean\nbatch", lambda run: run.mean_batch, 2),
    _Column("peak\nbatch", lambda run: run.peak_batch),
    _Column("swaps", lambda run: run.swaps),
    _Column("recomp\nktok", lambda run: run.recomputed_tokens / 1000, 1),
    _Column("hit\n%", lambda run: None if run.hit_rate is None else 100 * run.hit_rate, 1),
    _Column("preemp-\ntions", lambda run: run.preemptions),
)


def to_tables(comparison: Comparison, console: Console) -> list[Table]:
    """Tables with one row a policy: one if the console is wide enough for all columns, else two.

    The best mean and p99 JCT are bold; ``*`` marks a run that stopped early. Retractions and reused
    tokens are shown where the engine can have them.
    """
    engine = list(_ENGINE)
    if comparison.options.reservation == "estimated":
        engine.append(_Column("retrac-\ntions", lambda run: run.retractions))
    if comparison.options.reuse_context:
        engine.append(_Column("reused\nktok", lambda run: run.reused_tokens / 1000, 1))
    engine.append(_Column("µs/de-\ncision", lambda run: comparison.decision_us[run.policy], 1))
    whole = _table(comparison, [*_TASKS, *engine], _title(comparison))
    if console.measure(whole).maximum <= console.width - 1:
        return [whole]
    return [_table(comparison, _TASKS, _title(comparison)), _table(comparison, engine, None)]


def _table(comparison: Comparison, columns: Sequence[_Column], title: str | None) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        padding=(0, 1),
        collapse_padding=True,
    )
    table.add_column("policy", no_wrap=True)
    for column in columns:
        table.add_column(column.header, justify="right", no_wrap=True)
    values = [[column.value(run) for run in comparison.runs] for column in columns]
    least = [min((v for v in of if v is not None), default=None) for of in values]
    for run in comparison.runs:
        cells = [column.text(run, best) for column, best in zip(columns, least, strict=True)]
        table.add_row(run.policy + ("*" if run.stopped else ""), *cells)
    return table


def _title(comparison: Comparison) -> str:
    parameters = comparison.workload.parameters
    parts = [comparison.workload.name, f"{len(comparison.workload.tasks)} tasks"]
    for name, unit in (("rate", " task/s"), ("seed", "")):
        if parameters.get(name) is not None:
            parts.append(f"{name} {parameters[name]}{unit}")
    parts.append(f"capacity {comparison.costs.kv_capacity:,} tokens")
    return ", ".join(parts)


def notes(comparison: Comparison) -> list[str]:
    """Lines below the table: cancelled and unfinished tasks, and runs that stopped early."""
    lines = []
    for run in comparison.runs:
        if run.stopped:
            lines.append(f"* {run.policy}: stopped: {run.stopped}")
        for task, reason in run.cancelled_tasks.items():
            lines.append(f"{run.policy}: task {task} cancelled: {reason}")
        if run.unfinished_tasks:
            names = ", ".join(str(task) for task in run.unfinished_tasks)
            lines.append(f"{run.policy}: unfinished: {names}")
    return lines


def to_json(comparison: Comparison) -> str:
    """The comparison as JSON, keys in a fixed order.

    Everything but the key ``decision_us`` is the same for the same inputs, byte for byte.
    """
    return json.dumps(comparison.to_dict(), indent=2, allow_nan=False)
