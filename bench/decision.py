"""What decisions and events cost (docs/performance.md).

    python bench/decision.py [--json OUT]     every table, some minutes
    python bench/decision.py --rows sop       rows whose name matches; no growth, no SGLang
    python bench/decision.py --quick          a few small states, to see that it works

Runs of the simulator and states made to measure are recorded, always the same; answers are
compared with the pure door, the readable reference and the core without Python before anything is
timed. Microseconds; each call counts with the lowest of three replays.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import growth
import rows as states
import sglang_policies
from machine import BENCH, description
from measuring import measure, measure_crossing
from rows import PRESETS, Row

FIGURES = ("mean", "p50", "p99", "max")


def cell(value: float | None, target: float | None = None, *, at_least: bool = False) -> str:
    """A figure, with its target where that is missed."""
    if value is None:
        return ""
    text = f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
    met = target is None or (value >= target if at_least else value <= target)
    return text if met else f"{text} (**{'≥' if at_least else '≤'} {target:,.0f}**)"


def line(*cells: str) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def head(*names: str) -> str:
    """The two lines that a table begins with."""
    return line(*names) + "\n" + line(*["---"] * len(names))


def decision_line(row: dict[str, Any]) -> str:
    """A measured row."""
    targets = row["targets"]
    core = row["core"]["decide"] if row["core"] else {}
    return line(
        row["row"],
        row["preset"],
        " / ".join(f"{size:,.0f}" for size in row["sizes"].values()),
        f"{row['count']:,}",
        *(cell(row[name], targets.get(name)) for name in FIGURES),
        cell(core.get("mean")),
        cell(core.get("p99")),
        cell(row["ratio"], targets.get("ratio"), at_least=True),
        cell(row["evaluated_sets"]),
        cell(row["pruned_sets"]),
    )


def event_lines(row: dict[str, Any]) -> list[str]:
    """What events cost in a measured row."""
    out = []
    for name, cost in row["events"].items():
        core = row["core"][name] if row["core"] else {}
        python = (cell(cost["mean"], states.EVENTS[name]), *(cell(cost[n]) for n in FIGURES[1:]))
        cpp = (cell(core.get("mean"), states.EVENT_CORE_US), cell(core.get("p99")))
        out.append(line(name, row["row"], row["preset"], *python, *cpp))
    return out


def report_rows(chosen: list[Row]) -> list[dict[str, Any]]:
    """Measure and print rows, then what their events cost."""
    sizes = "agents / waiting / running"
    names = ("states", "preset", sizes, "decisions", *FIGURES, "C++ mean", "C++ p99")
    print(head(*names, "× reference", "evaluated", "pruned"))
    measured = []
    for row in chosen:
        for preset in PRESETS:
            measured.append(measure(row, preset))
            print(decision_line(measured[-1]), flush=True)
    print("\n" + head("event", "states", "preset", *FIGURES, "C++ mean", "C++ p99"))
    for done in measured:
        print("\n".join(event_lines(done)))
    return measured


def report_crossing(decisions: int) -> list[dict[str, Any]]:
    """Print what Python adds to a decision, or why that is not known."""
    out: list[dict[str, Any]] = []
    print()
    for preset in PRESETS:
        crossing = measure_crossing(preset, decisions)
        if isinstance(crossing, str):
            print(crossing)
            break
        out.append(crossing)
        extra, both = cell(crossing["decide"]), crossing["decide_and_arrays"]
        print(
            f"crossing the binding, 100 waiting, {preset}: {extra} µs, read as arrays "
            f"{cell(both, states.CROSSING_US)} µs on top of {cell(crossing['core'])}",
            flush=True,
        )
    return out


def report_growth(axes: dict[str, growth.Axis], decisions: int) -> list[dict[str, Any]]:
    """Measure and print how the median grows."""
    print("\n" + head("median grows with", "preset", "size: µs", "exponent"))
    rows = growth.measure_growth(axes, decisions)
    for row in rows:
        pairs = zip(row["sizes"], row["median"], strict=True)
        points = ", ".join(f"{size:,}: {cell(cost)}" for size, cost in pairs)
        print(line(row["axis"], row["preset"], points, f"{row['exponent']:.2f}"), flush=True)
    return rows


def report_sglang() -> list[dict[str, Any]]:
    """Print SGLang's own policies beside topas, where it is installed."""
    print()
    if not sglang_policies.installed():
        print("SGLang is not installed here: its policies are left out")
        return []
    rows = sglang_policies.compare()
    print(sglang_policies.report(rows))
    return rows


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Print the tables; returns all of it, which ``--json`` writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="OUT", help="write everything to a file")
    parser.add_argument("--rows", metavar="REGEX", help="only rows whose name matches")
    parser.add_argument("--quick", action="store_true", help="a few small states")
    given = parser.parse_args(arguments)
    out: dict[str, Any] = {"machine": description()}
    print("; ".join(f"{name}: {value}" for name, value in out["machine"].items()), end="\n\n")
    if not BENCH.exists():
        print("topas_bench is not built (cmake --build --preset default): no C++ columns\n")
    chosen = states.QUICK if given.quick else states.ROWS
    pattern = given.rows or ""
    out["rows"] = report_rows([row for row in chosen if re.search(pattern, row.name)])
    if given.quick:
        out["crossing"] = report_crossing(3)
        out["growth"] = report_growth(growth.QUICK, 3)
    elif not given.rows:
        out["crossing"] = report_crossing(200)
        out["growth"] = report_growth(growth.AXES, 20)
        out["sglang"] = report_sglang()
    if given.json:
        given.json.write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return out


if __name__ == "__main__":
    main()
