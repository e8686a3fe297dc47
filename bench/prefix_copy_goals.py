"""What copies of prefixes on a GPU are to reach, and whether measured rows do.

The rows are those of ``bench/prefix_copy_gpu.py``; here neither torch nor a GPU is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

DIRECTIONS = ("save", "load")
WANTED_SHARE = 0.9  # of the bandwidth of a plain pinned copy
WANTED_OVERLAP = 1.15  # time of copy and compute together, of the longer alone
WANTED = {
    "exact": "the same bits after a save and a load",
    "bandwidth": f"at least {WANTED_SHARE:.0%} of a plain pinned copy",
    "overlap": f"with compute less than {WANTED_OVERLAP} times the longer alone",
}


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    copies = "  ".join(
        f"{name} {row[name]['gb_per_s']:5.1f} GB/s ({row[name]['share_of_plain']:.0%} of plain, "
        f"{row[name]['share_of_plain_wall']:.0%} by the clock, "
        f"with compute x{row['overlap'][name]['ratio']:.2f})"
        for name in DIRECTIONS
    )
    layers = row["layers_s"]
    return (
        f"{row['tokens']:5} tokens  {copies}  layer 0 after {layers['first'] * 1e3:.2f} of "
        f"{layers['last'] * 1e3:.2f} ms  {'exact' if row['exact'] else 'WRONG BITS'}"
    )


def goals(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each goal: what is wanted, whether every row meets it, and where it is missed.

    Without a row no goal is met.
    """
    copies = [
        (f"{name} of {row['tokens']} tokens", row[name], row["overlap"][name])
        for row in rows
        for name in DIRECTIONS
    ]
    missed = {
        "exact": [f"{row['tokens']} tokens" for row in rows if not row["exact"]],
        "bandwidth": [
            f"{what} {copy['share_of_plain']:.2%}"
            for what, copy, _ in copies
            if copy["share_of_plain"] < WANTED_SHARE
        ],
        "overlap": [
            f"{what} {beside['ratio']:.3f}"
            for what, _, beside in copies
            if beside["ratio"] >= WANTED_OVERLAP
        ],
    }
    return {
        name: {"wanted": wanted, "is_met": bool(rows) and not missed[name], "missed": missed[name]}
        for name, wanted in WANTED.items()
    }


def summary(report: dict[str, Any]) -> str:
    """The goals for people, a line each, and which sizes were left out."""
    lines = []
    for name, goal in report["goals"].items():
        what = f"{name} ({goal['wanted']})"
        missed = ", ".join(goal["missed"]) or "nothing was measured"
        lines.append(f"goal met: {what}" if goal["is_met"] else f"GOAL MISSED: {what}: {missed}")
    if report["not_measured"]:
        sizes = ", ".join(map(str, report["not_measured"]))
        lines.append(f"NOT MEASURED: {sizes} tokens: {report['budget_s']:g} s would not be enough")
    return "\n".join(lines)


def is_time_left(
    tokens: int, rows: Sequence[dict[str, Any]], spent_s: float, budget_s: float
) -> bool:
    """Whether a size is likely to be measured within the budget; the first one always counts so.

    Parameters
    ----------
    tokens : int
        The size; it takes as much longer than a measured one as it is larger, and never less.
    rows : sequence of dict
        What was measured, with ``tokens`` and ``took_s``.
    spent_s, budget_s : float
        Seconds since the start, and how many there may be.
    """
    likely_s = [row["took_s"] * max(1.0, tokens / row["tokens"]) for row in rows[-1:]]
    return spent_s + sum(likely_s) <= budget_s or not rows
