"""Event logs of simulated runs, to be replayed on a scheduler of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import topas
from topas.policies.topas import TopasPolicy
from topas.sim import EngineCosts, EngineOptions, make_workload
from topas.sim.engine import Engine
from topas.sim.profiles import config_fields

Call = tuple[str, tuple[Any, ...]]


@dataclass
class EventLog:
    """What a run told its scheduler: registrations and events in order, and when it asked."""

    config: topas.Config
    calls: list[Call] = field(default_factory=list)

    @property
    def decisions(self) -> int:
        """How often the run asked for a decision."""
        return sum(name == "decide" for name, _ in self.calls)


class _Recorder:
    """Passes every call on to a real scheduler and writes it down."""

    def __init__(self, log: EventLog) -> None:
        self._scheduler = topas.Scheduler(log.config)
        self._log = log

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._scheduler, name)

        def call(*args: Any) -> Any:
            self._log.calls.append((name, args))
            return method(*args)

        return call


class _RecordingPolicy(TopasPolicy):
    def __init__(self, log: EventLog) -> None:
        self._log = log
        super().__init__(log.config)

    def _new_scheduler(self) -> topas.Scheduler:
        return _Recorder(self._log)  # type: ignore[return-value]


def record(workload: str, *, rate: float, tasks: int, seed: int, preset: str) -> EventLog:
    """The log of a simulated run of a built-in workload under topas."""
    built = make_workload(workload, tasks=tasks, rate=rate, seed=seed)
    costs, options = EngineCosts(), EngineOptions()
    log = EventLog(topas.Config.preset(preset, **config_fields(built, costs, options)))
    Engine(built, _RecordingPolicy(log), costs, options).run()
    return log


@dataclass
class Replay:
    """A replayed log: seconds of each decide(), all decisions, and snapshots where asked for."""

    decide_s: list[float]
    decisions: list[topas.Decision]
    snapshots: list[topas.Snapshot]


def replay(log: EventLog, *, snapshot_every: int = 0) -> Replay:
    """Feed the log to a fresh scheduler, timing each ``decide``.

    With ``snapshot_every`` the state at every so-manyth decision is kept, with its decision.
    """
    scheduler = topas.Scheduler(log.config)
    out = Replay([], [], [])
    for name, args in log.calls:
        if name == "decide":
            keep = snapshot_every > 0 and len(out.decide_s) % snapshot_every == 0
            if keep:
                out.snapshots.append(scheduler.snapshot(*args))
            begin = time.perf_counter()
            decision = scheduler.decide(*args)
            out.decide_s.append(time.perf_counter() - begin)
            if keep:
                out.decisions.append(decision)
        elif name == "commit":
            scheduler.commit(decision)
        else:
            getattr(scheduler, name)(*args)
    return out
