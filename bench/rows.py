"""The rows of bench/decision.py: states, and what a decision on them may cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from recording import EventLog, record
from synthetic import Shape, record_synthetic

PRESETS = ("paper", "guarded", "default")


@dataclass(frozen=True, kw_only=True)
class Row:
    """States by name; the targets are upper limits in µs, of the ratio a lower one."""

    name: str
    run: tuple[str, float, int] | None = None  # workload, arrivals a second, tasks
    shape: Shape | None = None
    decisions: int = 200  # on states of a shape
    states: int = 50  # compared with the pure door, about
    referenced: int = 20  # and with the reference, about
    targets: dict[str, float] = field(default_factory=dict)

    def record(self, preset: str) -> EventLog:
        """The log of its states."""
        if self.run is not None:
            workload, rate, tasks = self.run
            return record(workload, rate=rate, tasks=tasks, seed=1, preset=preset)
        assert self.shape is not None
        return record_synthetic(self.shape, preset, decisions=self.decisions)


LARGE, HUGE = (
    Shape(agents=64, waiting=1000, running=64, room=0.3),
    Shape(agents=256, waiting=10_000, running=256, room=0.1, warm_tasks=8),
)
FAST = {"mean": 25.0, "p99": 100.0, "ratio": 100.0}

ROWS = (
    Row(name="metagpt-sop, 0.15/s, 60 tasks", run=("metagpt-sop", 0.15, 60), targets=FAST),
    Row(name="metagpt-tl, 0.1/s, 60 tasks", run=("metagpt-tl", 0.1, 60), targets=FAST),
    Row(
        name="dag-10-wide, 0.05/s, 60 tasks",
        run=("dag-10-wide", 0.05, 60),
        referenced=5,
        targets={"mean": 100.0, "p99": 400.0},
    ),
    Row(name="chain-3, 0.15/s, 100 tasks", run=("chain-3", 0.15, 100)),
    Row(
        name="8 agents, 100 waiting, 32 running",
        shape=Shape(agents=8, waiting=100, running=32),
        referenced=3,
    ),
    Row(
        name="64 agents, 1,000 waiting, 64 running",
        shape=LARGE,
        states=10,
        referenced=0,
        targets={"p99": 1900.0},
    ),
    Row(
        name="256 agents, 10,000 waiting, 256 running",
        shape=HUGE,
        decisions=100,
        states=3,
        referenced=0,
        targets={"p99": 25_000.0},
    ),
    Row(
        name="256 agents, 10,000 waiting, 128 evaluations at most",
        shape=Shape(**{**vars(HUGE), "max_evaluations": 128}),
        decisions=100,
        states=3,
        referenced=0,
        targets={"p99": 25_000.0},
    ),
)
QUICK = (
    Row(name="chain-3, 0.15/s, 10 tasks", run=("chain-3", 0.15, 10), states=5, referenced=5),
    Row(
        name="4 agents, 20 waiting, 4 running",
        shape=Shape(agents=4, waiting=20, running=4, warm_tasks=2),
        decisions=5,
        states=5,
        referenced=1,
    ),
)
# One evaluation: what Python adds is the same, and shows beside a short time in the core.
CROSSING = Shape(agents=8, waiting=100, running=32, max_evaluations=1)
EVENTS = {"request_ready": 3.0, "request_progress": 3.0, "request_completed": 3.0}  # µs, Python
EVENT_CORE_US, CROSSING_US = 1.0, 5.0
