"""Measure a row: check its answers, then time it through Python and in C++."""

from __future__ import annotations

import re
import statistics
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import topas
from figures import Figures, figures
from machine import BENCH
from recording import EventLog
from replaying import check, lowest, lowest_read, replay, replays
from rows import CROSSING, EVENTS, Row
from synthetic import record_synthetic

REPLAYS, CROSSING_REPLAYS, IDLE_DECISIONS = 3, 9, 500


def sizes(snapshots: Iterable[topas.Snapshot]) -> dict[str, float]:
    """Medians of what the states hold."""
    states = [state.to_dict()["requests"] for state in snapshots]
    running = [sum(request["running"] for request in requests) for requests in states]
    return {
        "agents": statistics.median(len({r["agent"] for r in requests}) for requests in states),
        "waiting": statistics.median(len(r) - n for r, n in zip(states, running, strict=True)),
        "running": statistics.median(running),
    }


def measure(row: Row, preset: str) -> dict[str, Any]:
    """Everything that a table says of a row under a preset."""
    log = row.record(preset)
    first = replay(log, snapshot_every=max(1, log.decisions // row.states))
    checked = check(log, first, referenced=row.referenced)
    again = replays(log, first, REPLAYS)
    cost = lowest(again, "decide")
    out: dict[str, Any] = {
        "row": row.name,
        "preset": preset,
        "targets": row.targets,
        "sizes": sizes(first.snapshots.values()),
        **figures(cost),
        "evaluated_sets": statistics.fmean(d.evaluated_sets for d in first.decisions),
        "pruned_sets": statistics.fmean(d.pruned_sets for d in first.decisions),
        "checked_states": checked.states,
        "referenced_states": len(checked.reference_us),
        "ratio": None,
        "events": {name: figures(lowest(again, name)) for name in EVENTS if first.call_ns[name]},
        "core": core_figures(log, first.checksum, len(again)),
    }
    if checked.reference_us:
        same = sum(cost[number] for number in checked.reference_us)
        out["reference_mean"] = statistics.fmean(checked.reference_us.values())
        out["ratio"] = sum(checked.reference_us.values()) / same
    return out


def core_figures(log: EventLog, checksum: str, count: int) -> dict[str, Figures] | None:
    """Costs of each call in C++ on the same log, or None where topas_bench is not built.

    It must decide the same: its checksum is compared.
    """
    if not BENCH.exists():
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "states.log"
        path.write_text(log.to_text(), encoding="ascii")
        command = [str(BENCH), "--replays", str(count), str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"checksum {checksum}" in text, f"C++ decides otherwise than {checksum}:\n{text}"
    out: dict[str, Figures] = {}
    for name, count, costs in re.findall(r"^  (\w+) +(\d+)  (mean .*)$", text, re.MULTILINE):
        words = costs.split()
        out[name] = {"count": int(count)}
        out[name] |= {key: float(cost) for key, cost in zip(words[::2], words[1::2], strict=True)}
    return out


def measure_crossing(preset: str, decisions: int = 200) -> dict[str, Any] | str:
    """What Python adds to a decision with 100 waiting, read as NumPy arrays or not, median µs.

    What the call adds is measured where the core does nothing, on an empty scheduler; reading the
    arrays is timed on its own. The difference of two long times would be lost in their noise.
    """
    log = record_synthetic(CROSSING, preset, decisions=decisions)
    first = replay(log)
    core = core_figures(log, first.checksum, CROSSING_REPLAYS)
    idle = EventLog(log.config, [("decide", (float(time),)) for time in range(IDLE_DECISIONS)])
    idle_first = replay(idle)
    idle_core = core_figures(idle, idle_first.checksum, CROSSING_REPLAYS)
    if core is None or idle_core is None:
        return "topas_bench is not built: crossing the binding is left out"
    calls = replays(idle, idle_first, CROSSING_REPLAYS)
    call_us = statistics.median(lowest(calls, "decide")) - idle_core["decide"]["p50"]
    arrays_us = statistics.median(lowest_read(first.decisions, CROSSING_REPLAYS))
    return {
        "preset": preset,
        "core": core["decide"]["p50"],
        "decide": call_us,
        "decide_and_arrays": call_us + arrays_us,
    }
