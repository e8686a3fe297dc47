"""Try an idea about the policy: all workloads and rates, beside baselines and a saved table.

    .venv/bin/python bench/policies.py --save before
    .venv/bin/python bench/policies.py --against before --set redo_weight=10 --set age_weight=0
    .venv/bin/python bench/policies.py --brief --seeds 11-15 --set redo_weight=10

Each ``--set FIELD=VALUE[,FIELD=VALUE]`` is one more variant of topas with those fields of
topas.Config; ``--of`` names the policy that they change. ``--prototype MODULE:CLASS[,FIELD=VALUE]``
is one more policy that is no part of topas (bench/prototypes.py). Baselines run without and with a
host cache, each as a baseline of its own. The figures of a workload are averages over its rates and
seeds, its best baseline is the one with the lowest average of that metric. Percentages are
reductions (above 0 is better), paired over the seeds, with 95 % intervals; the row "all" is their
mean over the workloads. "worst rate" is the least reduction at any rate, against the best baseline
of that rate. ``*`` marks runs that did not finish all their tasks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import prototypes
from machine import commit
from rich import box
from rich.console import Console
from rich.table import Table
from topas.config import Config
from topas.errors import TopasError
from topas.policies import BASELINE_NAMES, PolicyName, parse_policies
from topas.reproduce.figures import JCT_METRICS, Figures
from topas.reproduce.points import PAPER_BASELINES, RATES, Scale, Variant, cells_of
from topas.sim.study.statistics import Interval, interval, paired_reduction
from topas.sim.study.sweep import Cell, run_cells, show_progress

RESULTS = Path(__file__).resolve().parent / "results"
BY_RATE = "by_rate"
SHOWN = ("first_task_s", "requests_per_s", "preemptions", "recomputed_tokens")
FULL, QUICK = Scale(tasks=100, seeds=5, rates=5), Scale(tasks=60, seeds=2, rates=2)

# A metric: one average over the rates for each seed, or None. BY_RATE: of each of JCT_METRICS the
# average over the seeds at each rate, or None.
Row = dict[str, Any]
Rows = dict[str, dict[str, Row]]  # by workload and label


def value_of(text: str) -> Any:
    """A number or a word of JSON, else the text itself."""
    try:
        return json.loads(text.lower())
    except ValueError:
        return text


def variant_of(policy: str, setting: str) -> Variant:
    """The variant that a ``--set`` names.

    Raises
    ------
    SystemExit
        A field is unknown or has no value.
    """
    known = {field.name for field in dataclasses.fields(Config)}
    parts = setting.split(",")
    for part in parts:
        if part.partition("=")[0] not in known:
            raise SystemExit(f"--set {part}: must be FIELD=VALUE with a field of {sorted(known)}")
    config = fields_of("--set", parts)
    return Variant(label=f"{policy} {setting}", policy=policy, config=config)


def fields_of(option: str, parts: Sequence[str]) -> dict[str, Any]:
    """Values by field from ``FIELD=VALUE`` parts.

    Raises
    ------
    SystemExit
        A part is none.
    """
    config = {}
    for part in parts:
        name, equals, text = part.partition("=")
        if not equals:
            raise SystemExit(f"{option} {part}: must be FIELD=VALUE")
        config[name] = value_of(text)
    return config


def prototype_of(text: str) -> Variant:
    """The variant that a ``--prototype`` names.

    Raises
    ------
    SystemExit
        There is no such class, or a setting has no value.
    """
    name, *parts = text.split(",")
    prototypes.load(name)
    label = " ".join([name.partition(":")[2], ",".join(parts)]).strip()
    config = fields_of("--prototype", parts)
    return Variant(label=label, policy=prototypes.PREFIX + name, config=config)


def rows_of(figures: Figures, workload: str, rates: Sequence[float], labels: Sequence[str]) -> Any:
    """What a table says of each variant of one workload."""
    rows: dict[str, Row] = {}
    for label in labels:
        row: Row = {
            name: figures.averages(workload, rates, label, name) for name in (*JCT_METRICS, *SHOWN)
        }
        points = [figures.point(workload, rate, label).metrics for rate in rates]
        row[BY_RATE] = {
            name: [None if (item := point[name]) is None else item.mean for point in points]
            for name in JCT_METRICS
        }
        rows[label] = row
    return rows


def best_of(rows: Mapping[str, Row], labels: Sequence[str], metric: str) -> str | None:
    """The variant with the lowest average over the seeds."""
    there = [label for label in labels if rows[label][metric]]
    return min(there, key=lambda label: math.fsum(rows[label][metric]), default=None)


def reduction(ours: Row | None, theirs: Row | None, metric: str) -> Interval | None:
    """Percent less than theirs, if both are complete."""
    if not ours or not theirs or not ours[metric] or not theirs[metric]:
        return None
    return paired_reduction(ours[metric], theirs[metric])


def worst_rate(
    row: Row, of_workload: Mapping[str, Row], baselines: Iterable[str], metric: str
) -> float | None:
    """The least reduction at any rate against the best baseline of that rate, percent."""
    theirs = [of_workload[label][BY_RATE][metric] for label in baselines]
    least: float | None = None
    for place, ours in enumerate(row[BY_RATE][metric]):
        there = [column[place] for column in theirs if column[place] is not None]
        if ours is None or not there:
            return None
        change = 100.0 * (1.0 - ours / min(there))
        least = change if least is None else min(least, change)
    return least


def percent(item: Interval | None) -> str:
    """A mean with its interval; bold green or red where the interval leaves out 0."""
    if item is None:
        return "-"
    half = item.half_width
    text = f"{item.mean:+.1f}" + ("" if half is None else f" ±{half:.1f}")
    if half is None or abs(item.mean) <= half:
        return text
    return f"[bold {'green' if item.mean > 0 else 'red'}]{text}[/]"


def mean_of(values: Sequence[float] | None, digits: int) -> str:
    return f"{math.fsum(values) / len(values):.{digits}f}" if values else "-"


def overall(items: Sequence[Interval | None]) -> Interval | None:
    """Mean over the workloads for each seed; none if one is missing."""
    there = [item for item in items if item is not None]
    if not there or len(there) < len(items):
        return None
    columns = zip(*(item.values for item in there), strict=True)
    return interval([math.fsum(column) / len(there) for column in columns])


def old_row(saved: Rows, workload: str, variant: Variant) -> Row | None:
    """The saved row of a variant, or of the policy that it varies."""
    rows = saved.get(workload, {})
    return rows.get(variant.label) or rows.get(variant.policy)


def table_of(
    rows: Rows, variants: Sequence[Variant], saved: Rows, title: str, *, brief: bool = False
) -> Table:
    """One row a variant and workload, and one for all workloads together.

    ``brief`` leaves out the rows of baselines.
    """
    columns = ["workload", "variant"]
    for name in ("mean", "p99"):
        columns += [f"{name}\nJCT s", "best\nbaseline", "less than\nit %", "worst\nrate %"]
        columns += ["less than\nsaved %"] if saved else []
    columns += ["first\ntask s", "req\n/s", "preemp-\ntions", "recomp\nktok"]
    table = Table(*columns, box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1))
    for place, column in enumerate(table.columns):
        column.no_wrap = True
        column.justify = "left" if place < 2 else "right"
    baselines = [variant.label for variant in variants if variant.baseline]
    shown = [variant for variant in variants if not (brief and variant.baseline)]
    everywhere: dict[str, list[list[Interval | None]]] = {v.label: [] for v in shown}
    for workload, of_workload in rows.items():
        for place, variant in enumerate(shown):
            row = of_workload[variant.label]
            old = old_row(saved, workload, variant)
            cells, items = jct_cells(row, of_workload, baselines, old, with_saved=bool(saved))
            star = "" if row["mean_jct_s"] else "*"
            head = workload if place == 0 else "", variant.label + star
            table.add_row(*head, *cells, *other_cells(row))
            everywhere[variant.label].append(items)
        table.add_section()
    add_overall(table, everywhere, bool(saved))
    return table


def jct_cells(
    row: Row,
    of_workload: Mapping[str, Row],
    baselines: Sequence[str],
    old: Row | None,
    *,
    with_saved: bool,
) -> tuple[list[str], list[Interval | None]]:
    """Completion times against the best baseline and the saved row, as text and as figures."""
    cells: list[str] = []
    items: list[Interval | None] = []
    for metric in JCT_METRICS:
        name = best_of(of_workload, baselines, metric)
        items.append(reduction(row, of_workload[name] if name else None, metric))
        worst = worst_rate(row, of_workload, baselines, metric)
        cells += [mean_of(row[metric], 1), name or "-", percent(items[-1])]
        cells.append("-" if worst is None else f"{worst:+.1f}")
        if with_saved:
            items.append(reduction(row, old, metric))
            cells.append(percent(items[-1]))
    return cells, items


def other_cells(row: Row) -> list[str]:
    thousands = [tokens / 1000 for tokens in row["recomputed_tokens"] or ()]
    return [
        mean_of(row["first_task_s"], 1),
        mean_of(row["requests_per_s"], 3),
        mean_of(row["preemptions"], 0),
        mean_of(thousands, 0),
    ]


def add_overall(table: Table, everywhere: Any, with_saved: bool) -> None:
    """The mean over all workloads."""
    for place, (label, of_workloads) in enumerate(everywhere.items()):
        cells: list[str] = []
        for index, items in enumerate(zip(*of_workloads, strict=True)):
            if not (with_saved and index % 2):
                cells += ["", ""]
            cells.append(percent(overall(items)))
            if not (with_saved and index % 2):
                cells.append("")
        table.add_row("all" if place == 0 else "", label, *cells)


def load(name: str, scale: Scale, first_seed: int) -> Rows:
    """A saved table.

    Raises
    ------
    SystemExit
        There is none, or it was made at another scale or with other seeds.
    """
    file = RESULTS / f"{name}.json"
    if not file.exists():
        known = ", ".join(sorted(path.stem for path in RESULTS.glob("*.json"))) or "none"
        raise SystemExit(f"--against {name}: no such table, there are: {known}")
    content = json.loads(file.read_text())
    if content["scale"] != dataclasses.asdict(scale) or content["first_seed"] != first_seed:
        made = {**content["scale"], "first_seed": content["first_seed"]}
        raise SystemExit(f"--against {name}: was made with {made}")
    rows: Rows = content["rows"]
    return rows


def save(name: str, scale: Scale, first_seed: int, rows: Rows) -> None:
    RESULTS.mkdir(exist_ok=True)
    content = {
        "commit": commit(),
        "scale": dataclasses.asdict(scale),
        "first_seed": first_seed,
        "rows": rows,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def seed_range(text: str) -> range:
    """Seeds from ``5`` (1 to 5) or ``11-15``.

    Raises
    ------
    ValueError
        It is neither.
    """
    first, dash, last = text.partition("-")
    seeds = range(int(first), int(last) + 1) if dash else range(1, int(text) + 1)
    if not seeds or seeds.start < 0:
        raise ValueError(f"no seeds: {text!r}")
    return seeds


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default=",".join(RATES), help="with commas")
    parser.add_argument("--policies", default="all+host", help="with commas")
    parser.add_argument(
        "--baselines",
        default="all",
        help="which count as baselines, with or without a host cache: names, all, or paper",
    )
    parser.add_argument("--brief", action="store_true", help="no rows for baselines")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE,...")
    parser.add_argument("--prototype", action="append", default=[], metavar="MODULE:CLASS,...")
    parser.add_argument("--of", default="topas", help="the policy that --set varies")
    parser.add_argument("--quick", action="store_true", help="two rates, two seeds, 60 tasks")
    parser.add_argument("--seeds", type=seed_range, help="how many (from 1 on), or FIRST-LAST")
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--pressure", type=float, help="scale prefixes, as topas reproduce does")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--resume", type=Path, help="file of finished runs")
    parser.add_argument("--save", metavar="NAME", help="keep the table as bench/results/NAME.json")
    parser.add_argument("--against", metavar="NAME", help="compare with a saved table")
    return parser.parse_args(words)


def scale_of(given: argparse.Namespace) -> Scale:
    scale = QUICK if given.quick else FULL
    if given.seeds is not None:
        scale = dataclasses.replace(scale, seeds=len(given.seeds))
    if given.tasks is not None:
        scale = dataclasses.replace(scale, tasks=given.tasks)
    return dataclasses.replace(scale, pressure=given.pressure)


def variants_of(given: argparse.Namespace) -> list[Variant]:
    """The policies, and a variant for each ``--set``.

    Raises
    ------
    SystemExit
        A name among ``--baselines`` is none of a baseline.
    """
    known = {"all": BASELINE_NAMES, "paper": PAPER_BASELINES}
    baselines = known.get(given.baselines) or given.baselines.split(",")
    for name in baselines:
        if name not in BASELINE_NAMES:
            raise SystemExit(f"--baselines: {name!r} is none of {', '.join(BASELINE_NAMES)}")
    variants = [
        Variant(label=name, policy=name, baseline=PolicyName.parse(name).base in baselines)
        for name in parse_policies(given.policies)
    ]
    variants += [variant_of(given.of, setting) for setting in given.set]
    return variants + [prototype_of(text) for text in given.prototype]


def all_cells(
    workloads: Sequence[str], variants: Sequence[Variant], scale: Scale, first_seed: int
) -> list[Cell]:
    """The runs of all workloads, with the seeds from ``first_seed`` on."""
    return [
        dataclasses.replace(cell, seed=cell.seed + first_seed - 1)
        for name in workloads
        for cell in cells_of(name, scale.rates_of(name), variants, scale)
    ]


def workloads_of(given: argparse.Namespace) -> list[str]:
    """The workloads by name.

    Raises
    ------
    SystemExit
        One is unknown.
    """
    workloads: list[str] = given.workloads.split(",")
    for name in workloads:
        if name not in RATES:
            raise SystemExit(f"--workloads: unknown {name!r}, known are {', '.join(RATES)}")
    return workloads


def title_of(scale: Scale, first_seed: int, workloads: Sequence[str]) -> str:
    rates = [
        f"{name} " + ", ".join(f"{rate:g}" for rate in scale.rates_of(name)) for name in workloads
    ]
    seeds = f"seeds {first_seed} to {first_seed + scale.seeds - 1}"
    return f"{scale.tasks} tasks, {seeds}, rates: " + "; ".join(rates)


def main(words: Sequence[str] | None = None) -> None:
    given = arguments(words)
    scale, variants, workloads = scale_of(given), variants_of(given), workloads_of(given)
    first_seed = given.seeds.start if given.seeds is not None else 1
    saved = load(given.against, scale, first_seed) if given.against else {}
    cells = all_cells(workloads, variants, scale, first_seed)
    with show_progress(len(cells), "runs") as on_cell:
        tried = [cell for cell in cells if prototypes.is_prototype(cell)]
        known = [cell for cell in cells if not prototypes.is_prototype(cell)]
        results = run_cells(known, processes=given.processes, resume=given.resume, on_cell=on_cell)
        results += prototypes.run_prototypes(tried, given.processes, on_cell)
    figures, labels = Figures(results), [variant.label for variant in variants]
    rows = {name: rows_of(figures, name, scale.rates_of(name), labels) for name in workloads}
    console = Console(width=None if sys.stdout.isatty() else 200)
    title = title_of(scale, first_seed, workloads)
    console.print(table_of(rows, variants, saved, title, brief=given.brief))
    errors = list(dict.fromkeys(result.describe_error() for result in results if result.error))
    for error in errors:
        console.print(error, markup=False, highlight=False)
    if given.save:
        save(given.save, scale, first_seed, rows)
    if errors:
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except TopasError as error:
        sys.exit(f"error: {error}")
