"""Event logs of simulated runs, to be replayed on a scheduler of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import topas
from topas.policies.topas import TopasPolicy
from topas.sim import EngineCosts, EngineOptions, make_workload
from topas.sim.engine import Engine
from topas.sim.profiles import config_fields
from topas.sim.result import RunResult
from topas.sim.workload import Workload

Call = tuple[str, tuple[Any, ...]]

#: Calls whose first argument is not a time.
TIMELESS = {"register_agent", "register_workflow", "commit"}


@dataclass
class EventLog:
    """What a run told its scheduler: registrations and events in order, and when it asked."""

    config: topas.Config
    calls: list[Call] = field(default_factory=list)
    measured_from: int = 0  # the call that measuring begins with

    @property
    def decisions(self) -> int:
        """How many of the measured calls ask for a decision."""
        return sum(name == "decide" for name, _ in self.calls[self.measured_from :])

    def first(self, decisions: int) -> EventLog:
        """The log up to its so-manyth measured decision."""
        asked = (at for at, (name, _) in enumerate(self.calls) if name == "decide")
        places = [at for at in asked if at >= self.measured_from]
        end = places[decisions - 1] + 1 if decisions <= len(places) else len(self.calls)
        return EventLog(self.config, self.calls[:end], self.measured_from)

    def to_text(self) -> str:
        """The log as bench/cpp reads it: a line for each setting, registration, event, decision.

        ``at TIME`` gives the time of what follows, ``measure`` says that measuring begins; strings
        are ``'`` and percent-encoded; a workflow is followed by its stages: name, agent, service,
        request service, predecessors. ``request_`` is left out of names.
        """
        lines = ["topas-log 1"]
        for name, value in self.config.to_dict().items():
            lines += [] if value is None else [f"config {name} {_plain(value)}"]
        now: float | None = None
        for place, (name, args) in enumerate(self.calls):
            if place == self.measured_from:
                lines.append("measure")
            rest = args
            if name not in TIMELESS:
                if args[0] != now:
                    now = args[0]
                    lines.append(f"at {_plain(now)}")
                rest = args[1:]
            if name == "register_workflow":
                lines += _workflow_lines(*args)
            elif name == "commit":
                lines.append(name)  # of the decision before it
            else:
                lines.append(" ".join([name.removeprefix("request_"), *map(_plain, rest)]))
        return "\n".join(lines) + "\n"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, str):
        return "'" + quote(value, safe="")
    return repr(value)


def _workflow_lines(workflow: topas.Workflow) -> list[str]:
    lines = [f"register_workflow {_plain(workflow.name)} {len(workflow.stages)}"]
    for stage in workflow.stages:
        request_s = stage.service_s if stage.request_s is None else stage.request_s
        words = (stage.name, stage.agent, float(stage.service_s), float(request_s), *stage.after)
        lines.append(" ".join(["stage", *map(_plain, words)]))
    return lines


class RecordingScheduler:
    """Passes every call on to a real scheduler and writes it down."""

    def __init__(self, log: EventLog) -> None:
        self._scheduler = topas.Scheduler(log.config)
        self._log = log

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._scheduler, name)

        def call(*args: Any) -> Any:
            self._log.calls.append((name, () if name == "commit" else args))
            return method(*args)

        return call


class _RecordingPolicy(TopasPolicy):
    def __init__(self, log: EventLog) -> None:
        self._log = log
        super().__init__(log.config)

    def _new_scheduler(self) -> topas.Scheduler:
        return RecordingScheduler(self._log)  # type: ignore[return-value]


def record_run(built: Workload, preset: str, **fields: Any) -> tuple[EventLog, RunResult]:
    """The log of a simulated run of a workload under topas, and the run's result."""
    costs, options = EngineCosts(), EngineOptions()
    log = EventLog(topas.Config.preset(preset, **config_fields(built, costs, options), **fields))
    return log, Engine(built, _RecordingPolicy(log), costs, options).run()


def record(workload: str, *, rate: float, tasks: int, seed: int, preset: str) -> EventLog:
    """The log of a simulated run of a built-in workload under topas."""
    return record_run(make_workload(workload, tasks=tasks, rate=rate, seed=seed), preset)[0]
