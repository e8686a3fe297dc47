"""Random sequences of legal events, with bookkeeping of their own to compare a scheduler with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from topas import Config, Decision, Id, Scheduler, Stage, Workflow

__all__ = ["World", "random_workflow", "world_config"]

MOST_LIVE = 3  # requests of one stage


def world_config(rng: Random, capacity: int, **fields: Any) -> Config:
    """Draw settings under which a world keeps busy: limits, all presets, both searches."""
    drawn = {
        "kv_capacity_tokens": capacity,
        "kv_bytes_per_token": 262144.0,
        "swap_bytes_per_s": rng.choice((1e8, 2e10)),
        "decode_s_per_token": rng.choice((0.0, 0.02)),
        "prefill_s_per_token": rng.choice((0.0, 0.0004)),
        "enumerate_max_agents": rng.choice((0, 8)),
        "action_cap": rng.choice((0, 0, 1, 3)),
        "max_running_requests": rng.choice((0, 0, 4)),
        "reuse_weight": rng.choice((0.0, 1.0)),
        "age_weight": rng.choice((0.0, 1.0, 3.0)),
        "age_scale_s": rng.choice((None, None, 20.0)),
        "exact_limit": rng.choice((1, 16, 4096)),
        "samples": rng.choice((16, 128)),
        "seed": rng.getrandbits(32),
        "redo_model": rng.choice(("decode", "prefill", "kept")),
        "move_model": rng.choice(("tasks", "once")),
        "move_weight": rng.choice((1.0, 4.0)),
        "work_conserving": rng.choice((False, True)),
    }
    presets = ("paper", "guarded", "paper", "guarded", "default")
    return Config.preset(rng.choice(presets), **{**drawn, **fields})


def random_workflow(rng: Random, name: Id, agents: list[Id], most_stages: int = 6) -> Workflow:
    """Draw a DAG; stages are named by numbers and by strings."""
    stages: list[Stage] = []
    for index in range(rng.randint(1, most_stages)):
        names = [stage.name for stage in stages]
        after = rng.sample(names, min(len(names), rng.choice((0, 1, 1, 2))))
        stages.append(
            Stage(
                name=index if rng.random() < 0.5 else f"stage {index}",
                agent=rng.choice(agents),
                after=tuple(after),
                service_s=rng.choice((1.0, 2.0, 5.0, round(rng.uniform(0.1, 30.0), 3))),
                request_s=rng.choice((None, 1.0)),
            )
        )
    return Workflow(name, stages)


@dataclass
class Live:
    """A live task as the world remembers it."""

    workflow: Workflow
    closed: dict[Id, str] = field(default_factory=dict)  # stage: "completed" or "skipped"
    requests: dict[Id, Id] = field(default_factory=dict)  # request: its stage

    def open_stages(self) -> list[Stage]:
        return [stage for stage in self.workflow.stages if stage.name not in self.closed]

    def ready_stages(self) -> list[Stage]:
        return [s for s in self.open_stages() if all(name in self.closed for name in s.after)]

    def idle(self, stage: Stage) -> bool:
        return stage.name not in self.requests.values()


class World:
    """A scheduler under events. Each event takes ``pick``, any number, to choose among the legal.

    An event that is not possible does nothing and returns False.
    """

    def __init__(
        self, config: Config, prefixes: dict[Id, int], workflows: list[Workflow], most_tasks: int
    ) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.prefixes = dict(prefixes)
        self.workflows = workflows
        self.most_tasks = most_tasks
        for agent, tokens in prefixes.items():
            self.scheduler.register_agent(agent, tokens)
        for workflow in workflows:
            self.scheduler.register_workflow(workflow)
        self.now = 0.0
        self.names = 0
        self.tasks: dict[Id, Live] = {}
        self.waiting: dict[Id, tuple[Id, int]] = {}  # request: its task and reservation
        self.running: dict[Id, tuple[Id, int]] = {}
        self.inputs: dict[Id, int] = {}
        self.generated: dict[Id, int] = {}
        self.resident: set[Id] = set()
        self.arrived = 0
        self.ended = {"finished": 0, "cancelled": 0}

    # ---------------------------------------------------------------------------- the events

    def arrive(self, pick: int) -> bool:
        if len(self.tasks) >= self.most_tasks:
            return False
        workflow = self.workflows[pick % len(self.workflows)]
        task = self._new_name("task")
        since = None if pick % 3 else self.now - pick % 7
        self.scheduler.task_arrived(self.now, task, workflow.name, since)
        self.tasks[task] = Live(workflow)
        self.arrived += 1
        return True

    def ready(self, pick: int) -> bool:
        places = [
            (task, stage)
            for task, live in self.tasks.items()
            for stage in live.ready_stages()
            if list(live.requests.values()).count(stage.name) < MOST_LIVE
        ]
        if not places:
            return False
        task, stage = places[pick % len(places)]
        request = self._new_name("request")
        tokens = (pick * 7919 % 400, 1 + pick * 104729 % 300)
        self.scheduler.request_ready(self.now, request, task, stage.name, *tokens)
        self.tasks[task].requests[request] = stage.name
        self.waiting[request] = (task, sum(tokens))
        self.inputs[request] = tokens[0]
        return True

    def progress(self, pick: int) -> bool:
        request = self._choose(self.running, pick)
        if request is None:
            return False
        self.generated[request] = self.generated.get(request, 0) + pick % 50
        self.scheduler.request_progress(self.now, request, self.generated[request])
        return True

    def complete(self, pick: int) -> bool:
        request = self._choose(self.running, pick)
        if request is None:
            return False
        self.scheduler.request_completed(self.now, request, pick % 97 / 8)
        self._forget(request)
        return True

    def abort(self, pick: int) -> bool:
        request = self._choose(self.waiting | self.running, pick)
        if request is None:
            return False
        self.scheduler.request_aborted(self.now, request)
        self._forget(request)
        return True

    def fail_start(self, pick: int) -> bool:
        request = self._choose(self.running, pick)
        if request is None:
            return False
        self.scheduler.request_start_failed(self.now, request)
        self.waiting[request] = self.running.pop(request)
        return True

    def start(self, pick: int) -> bool:
        request = self._choose(self.waiting, pick)
        if request is None:
            return False
        self.scheduler.request_started(self.now, request)
        self.running[request] = self.waiting.pop(request)
        self.resident.add(self.agent_of(request))
        return True

    def complete_stage(self, pick: int) -> bool:
        places = [
            (task, stage)
            for task, live in self.tasks.items()
            for stage in live.ready_stages()
            if live.idle(stage)
        ]
        if not places:
            return False
        task, stage = places[pick % len(places)]
        self.scheduler.stage_completed(self.now, task, stage.name)
        self._close(task, stage.name, "completed")
        return True

    def skip_stage(self, pick: int) -> bool:
        places = [
            (task, stage)
            for task, live in self.tasks.items()
            for stage in live.open_stages()
            if live.idle(stage)
        ]
        if not places:
            return False
        task, stage = places[pick % len(places)]
        self.scheduler.stage_skipped(self.now, task, stage.name)
        self._close(task, stage.name, "skipped")
        return True

    def cancel(self, pick: int) -> bool:
        task = self._choose(self.tasks, pick)
        if task is None:
            return False
        self.scheduler.task_cancelled(self.now, task)
        self._end(task, "cancelled")
        return True

    def finish(self, pick: int) -> bool:
        task = self._choose(self.tasks, pick)
        if task is None:
            return False
        self.scheduler.task_finished(self.now, task)
        self._end(task, "finished")
        return True

    def evict(self, pick: int) -> bool:
        busy = {self.agent_of(request) for request in self.running}
        idle = [agent for agent in self.prefixes if agent in self.resident - busy]
        if not idle:
            return False
        agent = idle[pick % len(idle)]
        self.scheduler.prefix_evicted(self.now, agent)
        self.resident.remove(agent)
        return True

    def load(self, pick: int) -> bool:
        gone = [agent for agent in self.prefixes if agent not in self.resident]
        if not gone:
            return False
        agent = gone[pick % len(gone)]
        self.scheduler.prefix_loaded(self.now, agent)
        self.resident.add(agent)
        return True

    def change_prefix(self, pick: int) -> bool:
        """Make a prefix longer or shorter; what its requests hold in all stays the same."""
        agent = list(self.prefixes)[pick % len(self.prefixes)]
        tokens = pick % 307
        longer = tokens - self.prefixes[agent]
        live = [r for r in self.waiting | self.running if self.agent_of(r) == agent]
        if any(self.inputs[request] < longer for request in live):
            return False
        self.scheduler.prefix_changed(self.now, agent, tokens)
        self.prefixes[agent] = tokens
        for request in live:
            self.inputs[request] -= longer
            table = self.waiting if request in self.waiting else self.running
            task, reserved = table[request]
            table[request] = (task, reserved - longer)
        return True

    def wait(self, pick: int) -> bool:
        """Let time pass."""
        self.now += pick % 40 / 8
        return True

    def commit(self, pick: int = 0) -> bool:
        """Take a decision and apply it; ``pick`` is not used."""
        self.apply(self.scheduler.decide(self.now))
        return True

    def apply(self, decision: Decision) -> None:
        """Commit a decision and note what it changes."""
        self.scheduler.commit(decision)
        for request in decision.preempt:
            self.waiting[request] = self.running.pop(request)
            self.generated.pop(request, None)
        for request in decision.admit:
            self.running[request] = self.waiting.pop(request)
            self.generated.pop(request, None)
        self.resident = set(decision.resident)

    # ------------------------------------------------------------------------------- helpers

    def agent_of(self, request: Id) -> Id:
        """Name the agent that a live request belongs to."""
        task, _ = (self.waiting | self.running)[request]
        live = self.tasks[task]
        stage = live.requests[request]
        return next(s.agent for s in live.workflow.stages if s.name == stage)

    def usage(self) -> dict[str, int]:
        """Count what the scheduler should be storing."""
        return {
            "agents": len(self.prefixes),
            "workflows": len(self.workflows),
            "tasks": len(self.tasks),
            "waiting": len(self.waiting),
            "running": len(self.running),
            "resident": len(self.resident),
            "kv_tokens": sum(self.prefixes[agent] for agent in self.resident)
            + sum(tokens for _, tokens in self.running.values()),
            "credits": len(self.running),
        }

    def drain(self) -> None:
        """End every task, in the three ways there are, and decide once more."""
        for turn, task in enumerate(list(self.tasks)):
            if turn % 3 == 0:
                self.scheduler.task_cancelled(self.now, task)
            elif turn % 3 == 1:
                self.scheduler.task_finished(self.now, task)
            else:
                for request in list(self.tasks[task].requests):
                    self.scheduler.request_aborted(self.now, request)
                    self._forget(request)
                for stage in self.tasks[task].open_stages():
                    if task in self.tasks and stage.name not in self.tasks[task].closed:
                        self.scheduler.stage_skipped(self.now, task, stage.name)
                        self._close(task, stage.name, "skipped")
            if task in self.tasks:
                self._end(task, "cancelled" if turn % 3 == 0 else "finished")
        self.commit()

    def _new_name(self, kind: str) -> Id:
        """Name things by numbers and by strings, not in ascending order."""
        self.names += 1
        number = self.names * 7919 % 100003
        return number if self.names % 3 else f"{kind} {number}"

    def _choose(self, table: dict[Id, Any], pick: int) -> Id | None:
        return list(table)[pick % len(table)] if table else None

    def _forget(self, request: Id) -> None:
        task, _ = self.running.pop(request, None) or self.waiting.pop(request)
        del self.tasks[task].requests[request]
        del self.inputs[request]
        self.generated.pop(request, None)

    def _close(self, task: Id, stage: Id, how: str) -> None:
        """Close a stage, and with a skipped one those that only skipped ones lead to."""
        live = self.tasks[task]
        live.closed[stage] = how
        orphan: Stage | None = Stage(stage, 0)
        while how == "skipped" and orphan is not None:
            orphan = next(
                (
                    s
                    for s in live.open_stages()
                    if s.after and all(live.closed.get(name) == "skipped" for name in s.after)
                ),
                None,
            )
            if orphan is not None:
                live.closed[orphan.name] = "skipped"
        if not live.open_stages():
            self._end(task, "finished")

    def _end(self, task: Id, how: str) -> None:
        for request in list(self.tasks[task].requests):
            self._forget(request)
        del self.tasks[task]
        self.ended[how] += 1


def random_events(rng: Random, weights: dict[str, int]) -> Iterator[Callable[[World], bool]]:
    """Draw events without end, by the weights of their names."""
    names, shares = list(weights), list(weights.values())
    while True:
        name = rng.choices(names, shares)[0]
        pick = rng.getrandbits(16)
        yield lambda world, name=name, pick=pick: getattr(world, name)(pick)


EVENT_WEIGHTS = {
    "arrive": 10,
    "ready": 16,
    "progress": 10,
    "complete": 8,
    "abort": 2,
    "fail_start": 2,
    "start": 1,
    "complete_stage": 8,
    "skip_stage": 1,
    "cancel": 1,
    "finish": 1,
    "evict": 1,
    "load": 1,
    "change_prefix": 1,
    "wait": 12,
    "commit": 20,
}
