"""Print what ``Scheduler.decide`` costs on states of simulated runs (docs/performance.md).

    python bench/table.py

Each decision counts with the lowest of three replays of its run; microseconds, called from Python.
"""

from __future__ import annotations

import statistics

from recording import record
from replaying import lowest, replay

RUNS = (
    ("metagpt-sop", 0.15, 60),
    ("metagpt-tl", 0.1, 60),
    ("dag-10-wide", 0.05, 60),
    ("chain-3", 0.15, 100),
)


def main() -> None:
    """Record, replay three times, print a row for each run and preset."""
    print("| run | preset | decisions | mean | p50 | p99 | max |\n|---|---|---|---|---|---|---|")
    for workload, rate, tasks in RUNS:
        for preset in ("paper", "default"):
            log = record(workload, rate=rate, tasks=tasks, seed=1, preset=preset)
            cost = lowest([replay(log) for _ in range(3)], "decide")
            cuts = statistics.quantiles(cost, n=100)
            figures = (statistics.fmean(cost), cuts[49], cuts[98], max(cost))
            row = " | ".join(f"{figure:,.1f}" for figure in figures)
            print(f"| {workload}, {rate}/s, {tasks} tasks | {preset} | {log.decisions:,} | {row} |")


if __name__ == "__main__":
    main()
