"""Record the logs under bench/states, whose instructions are counted (bench/instructions.py).

    python bench/states.py

They are kept, so that a change of the simulator does not shift the count; they need to be recorded
anew only where a change of what is decided makes their events illegal.
"""

from __future__ import annotations

from pathlib import Path

from recording import EventLog, record
from rows import PRESETS
from synthetic import Shape, record_synthetic

STATES = Path(__file__).parent / "states"
RUNS = {  # workload, arrivals a second, tasks, decisions kept
    "sop": ("metagpt-sop", 0.15, 20, 75),
    "tl": ("metagpt-tl", 0.1, 20, 75),
    "wide": ("dag-10-wide", 0.05, 20, 100),
    "chain": ("chain-3", 0.15, 40, 60),
}
LARGE = Shape(agents=32, waiting=200, running=32, room=0.6, warm_tasks=2)


def logs(preset: str) -> dict[str, EventLog]:
    """The log of each state set."""
    out = {
        name: record(workload, rate=rate, tasks=tasks, seed=1, preset=preset).first(decisions)
        for name, (workload, rate, tasks, decisions) in RUNS.items()
    }
    return {**out, "large": record_synthetic(LARGE, preset, decisions=10, settle=4)}


def main() -> None:
    """Write every log of each preset."""
    STATES.mkdir(exist_ok=True)
    for preset in PRESETS:
        for name, log in logs(preset).items():
            path = STATES / f"{name}-{preset}.log"
            path.write_text(log.to_text(), encoding="ascii")
            print(f"{path.name}: {log.decisions} decisions, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
