"""Runs and states of the sampling study: built-in workloads, and two with heavy tails."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import topas
from recording import EventLog, record_run
from replaying import replay
from topas.reference.expectation import blocks, residual_support
from topas.reference.state import Request, State, Task, read_state
from topas.sim import make_workload
from topas.sim.builtin import poisson_arrivals
from topas.sim.workload import Round, StageShape, WorkflowShape, Workload
from topas.sim.workload import Task as SimTask

Block = tuple[int, ...]

_LONGEST_OUTPUT = 6000  # of a heavy tail, tokens: what a request reserves has to fit


# ------------------------------------------------------------------------------- workloads


def _heavy(
    name: str,
    agents: Mapping[str, int],
    stages: Sequence[StageShape],
    *,
    rate: float,
    tasks: int,
    seed: int,
    sigma: float,
) -> Workload:
    """One request a stage, its output lognormal with the given sigma."""
    draw = np.random.default_rng([seed, len(stages)])

    def length(mean: float) -> int:
        drawn = mean * math.exp(sigma * draw.standard_normal() - 0.5 * sigma * sigma)
        return min(max(round(drawn), 1), _LONGEST_OUTPUT)

    built = [
        SimTask(
            index,
            arrival,
            name,
            tuple((Round(round(s.input_tokens), length(s.output_tokens)),) for s in stages),
        )
        for index, arrival in enumerate(poisson_arrivals(tasks, rate, seed))
    ]
    return Workload(name, agents, {name: WorkflowShape(name, tuple(stages))}, tuple(built))


def fork16(*, rate: float, tasks: int, seed: int) -> Workload:
    """A fork of 16 branches, four for each of four agents; sigma 1.2."""
    agents = {"root": 3000, "A": 3000, "B": 4500, "C": 6000, "D": 7500, "join": 4000}
    workers = [StageShape(f"W{k}", "ABCD"[k % 4], (0,), 1.0, 1000.0, 500.0) for k in range(16)]
    root = StageShape("root", "root", (), 1.0, 1000.0, 300.0)
    join = StageShape("join", "join", tuple(range(1, 17)), 1.0, 1000.0, 300.0)
    stages = [root, *workers, join]
    return _heavy("fork-16", agents, stages, rate=rate, tasks=tasks, seed=seed, sigma=1.2)


def layers4(*, rate: float, tasks: int, seed: int) -> Workload:
    """Four writers, then four reviewers who each wait for two of them; sigma 1.0."""
    agents = {"root": 3000, "A": 4000, "B": 5500, "C": 4500, "D": 6500, "join": 4000}
    root = StageShape("root", "root", (), 1.0, 1000.0, 300.0)
    writers = [StageShape(f"W{k}", "AB"[k % 2], (0,), 1.0, 1400.0, 700.0) for k in range(4)]
    reviewers = [
        StageShape(f"R{k}", "CD"[k % 2], (1 + k, 1 + (k + 1) % 4), 1.0, 1400.0, 700.0)
        for k in range(4)
    ]
    join = StageShape("join", "join", (5, 6, 7, 8), 1.0, 1000.0, 300.0)
    stages = [root, *writers, *reviewers, join]
    return _heavy("layers-4x4", agents, stages, rate=rate, tasks=tasks, seed=seed, sigma=1.0)


HEAVY: Mapping[str, Callable[..., Workload]] = {"fork-16": fork16, "layers-4x4": layers4}


@dataclass(frozen=True)
class Run:
    """A workload at a rate (tasks per second), with so many tasks."""

    workload: str
    rate: float
    tasks: int

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.workload}, {self.rate}/s"

    def build(self, seed: int) -> Workload:
        """The workload with the given seed."""
        if self.workload in HEAVY:
            return HEAVY[self.workload](rate=self.rate, tasks=self.tasks, seed=seed)
        return make_workload(self.workload, tasks=self.tasks, rate=self.rate, seed=seed)


# ------------------------------------------------------------------------------- recording


def simulate(run: Run, *, seed: int, samples: int) -> tuple[EventLog, float]:
    """The log of a simulated run under topas (default) with so many draws, and its mean JCT, s."""
    log, result = record_run(run.build(seed), "guarded", samples=samples)
    times = [end - result.arrival_s[task] for task, end in result.finish_s.items()]
    return log, sum(times) / len(times)


# ---------------------------------------------------------------------------------- states


def joint_outcomes(task: Task, block: Sequence[int]) -> int:
    """How many joint outcomes the residuals of a block have."""
    return prod(len(set(residual_support(task.stages[v]))) for v in block)


@dataclass(frozen=True)
class StudyState:
    """A recorded state with its configuration, and what of it is sampled."""

    snapshot: topas.Snapshot
    config: topas.Config

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Its plain form."""
        return self.snapshot.to_dict()

    @cached_property
    def state(self) -> State:
        """As the reference reads it."""
        return read_state(self.fields, self.config.to_dict())

    def requests_of(self, task: Task, block: Sequence[int]) -> list[Request]:
        """Waiting and running requests in a block, by id."""
        live = self.state.waiting + self.state.running
        found = [r for r in live if r.task == task.id and r.stage in block]
        return sorted(found, key=lambda r: r.id)

    @cached_property
    def sampled(self) -> list[tuple[Task, Block]]:
        """Blocks with requests that have too many joint outcomes to be enumerated."""
        return [
            (task, tuple(block))
            for task in self.state.tasks.values()
            for block in blocks(task)
            if joint_outcomes(task, block) > self.config.exact_limit
            and self.requests_of(task, block)
        ]

    def of_task(self, task: Task) -> topas.Snapshot:
        """The same state with one task only."""
        mine = [r for r in self.fields["requests"] if r["task"] == task.id]
        tasks = [t for t in self.fields["tasks"] if t["id"] == task.id]
        only = {"tasks": tasks, "requests": mine, "resident": []}
        return topas.Snapshot.from_dict({**self.fields, **only})


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """So many of the items, evenly."""
    if len(items) <= count:
        return list(items)
    return [items[round(k * (len(items) - 1) / max(count - 1, 1))] for k in range(count)]


def recorded(log: EventLog) -> list[StudyState]:
    """The state at each decision of a run that has something waiting."""
    snapshots = replay(log, snapshot_every=1).snapshots.values()
    states = (StudyState(snapshot, log.config) for snapshot in snapshots)
    return [state for state in states if any(not r["running"] for r in state.fields["requests"])]


def shares(states: Sequence[StudyState]) -> dict[str, float]:
    """Share of the states, their tasks and their waiting requests that sampling has a part in."""
    tasks, touched, waiting, concerned = set(), set(), 0, 0
    for state in states:
        tasks |= set(state.state.tasks)
        touched |= {task.id for task, _ in state.sampled}
        waiting += len(state.state.waiting)
        places = {(task.id, v) for task, block in state.sampled for v in block}
        concerned += sum((r.task, r.stage) in places for r in state.state.waiting)
    return {
        "states": sum(bool(state.sampled) for state in states) / len(states),
        "tasks": len(touched) / len(tasks),
        "waiting": concerned / max(waiting, 1),
    }


# --------------------------------------------------------------------- plain draws in the core


def with_plain_draws(
    study: StudyState, draws: int, rng: np.random.Generator
) -> tuple[topas.Snapshot, topas.Config]:
    """The state and settings under which the core samples by plain Monte Carlo.

    Each stage of a sampled block gets a profile of ``draws`` independent draws from its own
    distribution. One stratum then holds one of them, so the core's stratified draws are these, in
    a random order. They are spread by 1e-12 s, lest the core find few enough to enumerate.
    """
    fields, config = study.fields, study.config
    tasks = {task["id"]: {**task, "stages": list(task["stages"])} for task in fields["tasks"]}
    request_s = {profile["id"]: profile["request_s"] for profile in fields["profiles"]}
    profiles = list(fields["profiles"])
    for task, block in study.sampled:
        for v in block:
            stage = tasks[task.id]["stages"][v]
            if stage["completed"]:
                continue
            drawn = np.sort(rng.choice(residual_support(task.stages[v]), draws))
            totals = stage["service_s"] + drawn + 1e-12 * np.arange(draws)
            name = f"plain/{task.id}/{v}"
            profiles.append(
                {
                    "id": name,
                    "totals_s": totals.tolist(),
                    "request_s": request_s[stage["profile"]],
                }
            )
            tasks[task.id]["stages"][v] = {**stage, "profile": name}
    snapshot = topas.Snapshot.from_dict(
        {**fields, "profiles": profiles, "tasks": list(tasks.values())}
    )
    # 32 draws of two stages are 1,024 outcomes: also then the block has to be sampled.
    fewest = min((_open_stages(task, block) for task, block in study.sampled), default=8)
    limit = min(config.exact_limit, draws**fewest - 1)
    return snapshot, config.replace(samples=draws, exact_limit=limit)


def _open_stages(task: Task, block: Block) -> int:
    return sum(not task.stages[v].completed for v in block)


def case_tasks(study: StudyState, count: int) -> Iterator[tuple[Task, list[Request]]]:
    """Tasks with a waiting request and a sibling in a sampled block; the block's requests."""
    found = []
    for task, block in study.sampled:
        requests = study.requests_of(task, block)
        if len(requests) > 1 and any(not r.running for r in requests):
            found.append((task, requests))
    yield from spread(found, count)
