"""A report for people: tables, and lines on what must hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from topas.enginebench.results import Figures, Report
from topas.sim.metrics import RunMetrics

__all__ = ["against_simulator", "calibration_table", "figures_table", "notes"]


@dataclass(frozen=True)
class _Column:
    """A column: header, what it shows, factor and digits, whether the least value is the best."""

    header: str
    name: str
    factor: float = 1.0
    digits: int = 0
    mark_least: bool = False

    def value(self, figures: Figures) -> float | None:
        found = getattr(figures, self.name)
        return None if found is None else self.factor * float(found)

    def text(self, figures: Figures, least: float | None) -> str:
        value = self.value(figures)
        shown = "-" if value is None else f"{value:.{self.digits}f}"
        return f"[bold]{shown}[/bold]" if self.mark_least and value == least else shown


_COLUMNS = (
    _Column("mean\nJCT s", "mean_jct_s", 1, 2, mark_least=True),
    _Column("p50\nJCT s", "p50_jct_s", 1, 2),
    _Column("p99\nJCT s", "p99_jct_s", 1, 2, mark_least=True),
    _Column("make-\nspan s", "makespan_s", 1, 2, mark_least=True),
    _Column("req\n/s", "requests_per_s", 1, 2),
    _Column("hit\n%", "hit_rate", 100, 1),
    _Column("comp.\nktok", "computed_tokens", 1e-3, 1),
    _Column("engine\nCPU s", "cpu_s", 1, 1),
    _Column("retrac-\ntions", "retractions"),
    _Column("preemp-\ntions", "preemptions"),
    _Column("deci-\nsions", "decisions"),
    _Column("µs/de-\ncision", "decision_us", 1, 0),
    _Column("decisions\n% of wall", "decision_share", 100, 2),
    _Column("topas\n% of wall", "topas_share", 100, 2),
)


def _new_table(title: str) -> Table:
    return Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        padding=(0, 1),
        collapse_padding=True,
    )


def figures_table(report: Report) -> Table:
    """Medians of the measured figures, one row a policy."""
    medians = report.medians()
    table = _new_table(_title(report.settings))
    table.add_column("policy", no_wrap=True)
    shown = [c for c in _COLUMNS if any(c.value(m) is not None for m in medians.values())]
    for column in shown:
        table.add_column(column.header, justify="right", no_wrap=True)
    for policy, figures in medians.items():
        cells = []
        for column in shown:
            values = [v for m in medians.values() if (v := column.value(m)) is not None]
            cells.append(column.text(figures, min(values)))
        table.add_row(policy, *cells)
    return table


def _title(settings: Mapping[str, Any]) -> str:
    arrivals = f"{settings['concurrency']} in flight"
    if settings["rate"] is not None:
        arrivals = f"{settings['rate']:g} tasks/s"
    pool = "" if settings["pool"] is None else f", pool {settings['pool']:,} tokens"
    repeat = settings["repeat"]
    return (
        f"{settings['workload']} on {settings['device']}, {settings['tasks']} tasks, {arrivals}, "
        f"{settings['agents']} agents x {settings['prefix_tokens']:,} tokens{pool}, "
        f"seed {settings['seed']}" + (f", medians of {repeat} runs" if repeat > 1 else "")
    )


_LEAST_CPU = 0.85  # of a processor, for an engine that never waits for work


def _busy(report: Report) -> list[str]:
    """A word when an engine on a CPU did not get the processor it wanted."""
    if report.settings["device"] != "cpu" or report.settings["rate"] is not None:
        return []
    shares = {name: f.cpu_s / f.makespan_s for name, f in report.medians().items()}
    if min(shares.values()) >= _LEAST_CPU:
        return []
    text = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
    return [f"the machine was busy, times say little: of one processor the engine had {text}"]


_COMPARED: Sequence[tuple[str, Callable[[Any], float | None]]] = (
    ("mean JCT", lambda figures: figures.mean_jct_s),
    ("p99 JCT", lambda figures: figures.p99_jct_s),
    ("makespan", lambda figures: figures.makespan_s),
)


def against_simulator(
    medians: Mapping[str, Figures], simulated: Mapping[str, RunMetrics]
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Measured and simulated values and the error of the simulator in percent, by policy."""
    result: dict[str, dict[str, dict[str, float | None]]] = {}
    for policy, run in simulated.items():
        result[policy] = {}
        for name, value in _COMPARED:
            real, model = value(medians[policy]), value(run)
            error = 100.0 * (model / real - 1.0) if real and model is not None else None
            result[policy][name] = {"measured": real, "simulated": model, "error_percent": error}
    return result


def calibration_table(
    comparison: Mapping[str, Mapping[str, Mapping[str, float | None]]],
) -> Table:
    """Measured beside simulated, seconds, with the error in percent."""
    table = _new_table("measured / simulated, s (error of the simulator)")
    table.add_column("policy", no_wrap=True)
    for name, _ in _COMPARED:
        table.add_column(name, justify="right", no_wrap=True)
    for policy, row in comparison.items():
        table.add_row(policy, *(_beside(row[name]) for name, _ in _COMPARED))
    return table


def _beside(entry: Mapping[str, float | None]) -> str:
    real, model, error = entry["measured"], entry["simulated"], entry["error_percent"]
    if real is None or model is None or error is None:
        return "-"
    return f"{real:.2f} / {model:.2f} ({error:+.1f} %)"


def notes(report: Report) -> list[str]:
    """Lines below the table: outputs, and what topas could not do."""
    hashes = sorted({run.output_hash for run in report.runs})
    if report.same_outputs:
        lines = [f"outputs: the same tokens in all {len(report.runs)} runs (hash {hashes[0]})"]
    else:
        lines = [
            f"outputs DIFFER: {report.different_requests()} requests; hashes by policy: "
            + "; ".join(f"{name} {' '.join(found)}" for name, found in report.output_hashes.items())
        ]
    lines += _busy(report)
    for policy, figures in report.medians().items():
        for name, text in (
            ("fallbacks", "passes were left to SGLang's own policy"),
            ("hint_errors", "hints were malformed"),
        ):
            count = getattr(figures, name)
            if count:
                lines.append(f"{policy}: {count:.0f} {text}")
    return lines
