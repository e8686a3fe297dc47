"""From requests with hints to events of the core: tasks, stages, agents, and how all of them end.

Nothing here knows SGLang: it is told what a request carries and what became of it, and keeps a
:class:`topas.Scheduler` true. Whatever hints say, every request gets a place: a request that fits
into no known workflow is a task of one stage.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import topas
from topas.errors import TopasError
from topas.sglang.agents import Agents, Holds, Namespace, composite_id
from topas.sglang.heads import HeadTable
from topas.sglang.hints import Hints

__all__ = ["Arrival", "Ledger"]

Id: TypeAlias = int | str

_MOST_WORKFLOWS = 1024  # that are known to the core; the least recently used idle ones give way


@dataclass(frozen=True)
class Arrival:
    """A request as it comes in.

    Parameters
    ----------
    rid : int or str
        Its id, unique among live requests.
    prompt : sequence of int
        Token ids, the static prefix included.
    max_new_tokens : int
        Tokens reserved for its generation.
    namespace : tuple of str or None
        Extra key, cache salt, LoRA id: KV is shared within it only.
    hints : Hints
        Who it says it belongs to.
    """

    rid: Id
    prompt: Sequence[int] = field(repr=False)
    max_new_tokens: int
    namespace: Namespace = ()
    hints: Hints = field(default_factory=Hints)


@dataclass
class _Live:
    """A live request: where it stands in the core."""

    task: str
    stage: Id
    agent: str
    since_s: float  # arrival of its task
    arrival: Arrival
    single: bool = False  # its task is its own
    head: Hashable | None = None  # what it may share with others that name no agent
    running: bool = False


@dataclass
class _Known:
    """A workflow as the core knows it: a user's for one namespace, or that of an agent's calls."""

    agents: tuple[str, ...]  # of its stages
    tasks: int = 0


@dataclass
class _Task:
    """A task of a known workflow."""

    name: str
    workflow: topas.Workflow
    known: _Known
    arrived_s: float
    last_s: float
    live: Counter[Id] = field(default_factory=Counter)  # live requests by stage
    ended: set[Id] = field(default_factory=set)  # stages


class Ledger:
    """Who is live, and what the core has been told of it.

    Parameters
    ----------
    scheduler : topas.Scheduler
        The core; registrations and events go there.
    heads : HeadTable
        Finds static prefixes.
    profile_s : callable
        Expected service of a request with so many input and output tokens, seconds; the profile of
        requests that are tasks of their own.
    idle_expiry_s : float
        A task without live requests ends so long after its last event.
    on_task_end : callable or None
        Called with workflow name (``None`` for single requests) and completion time in seconds.
    """

    def __init__(
        self,
        scheduler: topas.Scheduler,
        heads: HeadTable,
        *,
        profile_s: Callable[[int, int], float],
        idle_expiry_s: float = 300.0,
        on_task_end: Callable[[str | None, float], None] | None = None,
    ) -> None:
        self._core = scheduler
        self.agents = Agents(scheduler, heads)
        self._profile_s = profile_s
        self._idle_expiry_s = idle_expiry_s
        self._on_task_end = on_task_end
        self._graphs: dict[str, topas.Workflow] = {}  # as registered by users
        self._workflows: OrderedDict[str, _Known] = OrderedDict()  # by core id
        self._tasks: dict[str, _Task] = {}
        self._since: dict[str, tuple[float, float]] = {}  # unknown workflows: first, last seen
        self._live: dict[Id, _Live] = {}
        self._first: dict[Hashable, Id] = {}  # live requests whose head nobody shares so far
        self.hint_errors: Counter[str] = Counter()
        self.decision_s = 0.0  # that the core took for the last decision

    # -- registration

    def register(self, graph: topas.Workflow) -> None:
        """Make a workflow known under its name; the same one again is a no-op.

        Raises
        ------
        StateError
            Another workflow has the name.
        """
        name = composite_id(graph.name)
        known = self._graphs.setdefault(name, graph)
        if known != graph:
            raise topas.StateError(f"workflow {graph.name!r} is already registered differently")

    def register_graph(self, fields: Mapping[str, Any]) -> topas.Workflow:
        """Make a workflow known from plain values, ``name`` and ``stages``, and return it.

        Each stage has ``name``, ``agent`` and optionally ``after``, ``service_s``, ``request_s``.

        Raises
        ------
        WorkflowError, IdError, StateError
            The workflow is malformed, or another one has its name.
        """
        graph = topas.Workflow.from_dict(fields)
        self.register(graph)
        return graph

    # -- events

    def arrived(self, now: float, arrival: Arrival) -> None:
        """A request waits from now on."""
        hints = arrival.hints
        self.hint_errors.update(hints.errors)
        if arrival.rid in self._live:
            self.hint_errors["duplicate_rid"] += 1
            self.aborted(now, arrival.rid)
        place = self._place_in_workflow(now, arrival)
        if place is None:
            place = self._place_alone(now, arrival)
        self._place(now, place)

    def _place(self, now: float, place: _Live) -> None:
        """The request waits at its place."""
        arrival = place.arrival
        own = len(arrival.prompt) - self.agents.tokens(place.agent)
        self._core.request_ready(
            now, arrival.rid, place.task, place.stage, own, max(arrival.max_new_tokens, 1)
        )
        self._live[arrival.rid] = place
        self.agents.came(place.agent)
        if not place.single:
            self._tasks[place.task].live[place.stage] += 1

    def decide(self, now: float, holds: Holds) -> topas.Decision:
        """Take a decision at ``now`` and apply it to the core.

        Parameters
        ----------
        now : float
            Seconds.
        holds : callable
            How many of these tokens the engine has cached for a namespace.
        """
        self.agents.look(now, holds)
        begin = time.perf_counter()
        decision = self._core.decide(now)
        self._core.commit(decision)
        self.decision_s = time.perf_counter() - begin
        for rid in decision.preempt:
            self._runs(rid, False)
        for rid in decision.admit:
            self._runs(rid, True)
        self.agents.resident(decision.resident)
        return decision

    def started(self, now: float, rid: Id) -> None:
        """The engine runs a request that the core holds waiting; no decision of ours."""
        live = self._live.get(rid)
        if live is not None and not live.running:
            self._core.request_started(now, rid)
            self._runs(rid, True)

    def stopped(self, now: float, rid: Id) -> None:
        """A request that the core holds running waits: it could not start, or was thrown out."""
        live = self._live.get(rid)
        if live is not None and live.running:
            self._core.request_start_failed(now, rid)
            self._runs(rid, False)

    def progress(self, now: float, rid: Id, generated_tokens: int) -> None:
        """A running request has generated so many tokens in all."""
        self._core.request_progress(now, rid, generated_tokens)

    def _runs(self, rid: Id, running: bool) -> None:
        live = self._live[rid]
        live.running = running
        (self.agents.started if running else self.agents.stopped)(live.agent)

    def completed(self, now: float, rid: Id, service_s: float) -> None:
        """A request is done after ``service_s`` seconds of service; unknown ids are ignored."""
        self.started(now, rid)
        live = self._drop(rid)
        if live is None:
            return
        self._core.request_completed(now, rid, service_s)
        if live.single:
            self._core.stage_completed(now, live.task, live.stage)
            self._report(None, now - live.since_s)
            return
        task = self._leave(now, live)
        hints = live.arrival.hints
        if hints.finishes_stage and live.stage not in task.live:
            self._end_stage(now, task, live.stage)
        if live.task in self._tasks and hints.finishes_task and not task.live:
            self._finish(now, task)

    def aborted(self, now: float, rid: Id) -> None:
        """A request is gone, from wherever it was; unknown ids are ignored."""
        live = self._drop(rid)
        if live is None:
            return
        self._core.request_aborted(now, rid)
        if live.single:
            self._core.task_cancelled(now, live.task)
            return
        self._leave(now, live)

    def _drop(self, rid: Id) -> _Live | None:
        """Take a request out of the books."""
        live = self._live.pop(rid, None)
        if live is None:
            return None
        if live.running:
            self.agents.stopped(live.agent)
        self.agents.left(live.agent)
        if live.single:
            self._workflows[composite_id("single", live.agent)].tasks -= 1
            if live.head is not None and self._first.get(live.head) == rid:
                del self._first[live.head]
        return live

    def _leave(self, now: float, live: _Live) -> _Task:
        """Take a request out of the books of its task."""
        task = self._tasks[live.task]
        task.last_s = now
        task.live[live.stage] -= 1
        if task.live[live.stage] == 0:
            del task.live[live.stage]
        return task

    @property
    def live_requests(self) -> Mapping[Id, object]:
        """Live requests by id."""
        return self._live

    def gauges(self) -> dict[str, int]:
        """``held`` and ``running`` requests, ``tasks_live``, ``resident_prefixes``, ``_tokens``."""
        usage = self._core.usage()
        prefixes, tokens = self.agents.resident_tokens
        return {
            "held": usage.waiting,
            "running": usage.running,
            "tasks_live": self.tasks,
            "resident_prefixes": prefixes,
            "resident_tokens": tokens,
        }

    def agent_of(self, rid: Id) -> str:
        """The core's id of the agent of a live request."""
        return self._live[rid].agent

    def expire(self, now: float) -> bool:
        """End the tasks that have been idle for too long; whether there was one."""
        idle = [task for task in self._tasks.values() if self._is_idle(now, task)]
        for task in idle:
            self._finish(now, task)
        for name in [n for n, (_, last) in self._since.items() if now - last > self._idle_expiry_s]:
            del self._since[name]
        return bool(idle)

    @property
    def tasks(self) -> int:
        """Live tasks of known workflows."""
        return len(self._tasks)

    # -- tasks

    def _place_in_workflow(self, now: float, arrival: Arrival) -> _Live | None:
        """The request's stage in a registered workflow, made ready; ``None`` if it has none."""
        hints = arrival.hints
        if hints.task is None or hints.stage is None:
            return None
        try:
            if hints.graph is not None:
                graph = self.register_graph(hints.graph)
            elif hints.workflow is None:
                return None
            elif (known := self._graphs.get(composite_id(hints.workflow))) is not None:
                graph = known
            else:
                self.hint_errors["unknown_workflow"] += 1
                return None
            if all(stage.name != hints.stage for stage in graph.stages):
                raise topas.UnknownId(f"workflow {graph.name!r} has no stage {hints.stage!r}")
            task = self._task_of(now, arrival.namespace, hints.task, graph)
            agent = self._open_stage(now, task, hints.stage)
        except TopasError as error:
            self.hint_errors[f"bad_workflow_{type(error).__name__}"] += 1
            return None
        if hints.agent is not None and hints.agent != agent:
            self.hint_errors["other_agent_than_in_workflow"] += 1
        agent = self.agents.named(now, arrival.namespace, agent, arrival.prompt)
        return _Live(task.name, hints.stage, agent, task.arrived_s, arrival)

    def _task_of(self, now: float, namespace: Namespace, task: Id, graph: topas.Workflow) -> _Task:
        name = composite_id("task", *namespace, task)
        if name not in self._tasks:
            workflow = self._register_graph_in(namespace, graph)
            self._core.task_arrived(now, name, workflow)
            entry = self._workflows[workflow]
            entry.tasks += 1
            self._tasks[name] = _Task(name, graph, entry, now, now)
        known = self._tasks[name]
        if known.workflow != graph:
            raise topas.StateError(f"task {task!r} belongs to workflow {known.workflow.name!r}")
        known.last_s = now
        return known

    def _register_graph_in(self, namespace: Namespace, graph: topas.Workflow) -> str:
        """The core's copy of a workflow for a namespace: its agents are the namespace's."""
        name = composite_id("workflow", *namespace, graph.name)
        if name not in self._workflows:
            stages = [
                topas.Stage(
                    stage.name,
                    self.agents.declare(namespace, stage.agent),
                    stage.after,
                    stage.service_s,
                    stage.request_s,
                )
                for stage in graph.stages
            ]
            self._know_workflow(topas.Workflow(name, tuple(stages)))
        self._workflows.move_to_end(name)
        return name

    def _know_workflow(self, workflow: topas.Workflow) -> None:
        self._core.register_workflow(workflow)
        known = _Known(tuple(str(stage.agent) for stage in workflow.stages))
        for agent in known.agents:
            self.agents.used_by_workflow(agent, 1)
        self._workflows[str(workflow.name)] = known
        if len(self._workflows) > _MOST_WORKFLOWS:
            idle = next((n for n, entry in self._workflows.items() if entry.tasks == 0), None)
            if idle is not None and idle != workflow.name:
                self._core.unregister_workflow(idle)
                for agent in self._workflows.pop(idle).agents:
                    self.agents.used_by_workflow(agent, -1)

    def _open_stage(self, now: float, task: _Task, stage: Id) -> Id:
        """End what the stage waits for: a request of a stage says that its predecessors are done.

        Returns the name of the stage's agent.

        One that never had a request (a branch not taken) ends without a total for its profile.
        """
        before = {entry.name: entry.after for entry in task.workflow.stages}
        if stage in task.ended:
            raise topas.StateError(f"stage {stage!r} has ended")
        open_ancestors = _open_ancestors(task, before, stage)
        for name in open_ancestors:
            if name in task.live:
                raise topas.StateError(f"stage {name!r} before {stage!r} still has live requests")
        for name in open_ancestors:
            self._end_stage(now, task, name)
        return next(entry.agent for entry in task.workflow.stages if entry.name == stage)

    def _end_stage(self, now: float, task: _Task, stage: Id) -> None:
        self._core.stage_completed(now, task.name, stage)
        task.ended.add(stage)
        if len(task.ended) == len(task.workflow.stages):
            self._forget(task)  # the core has ended it with its last stage

    def _finish(self, now: float, task: _Task) -> None:
        self._core.task_finished(now, task.name)
        self._forget(task)

    def _forget(self, task: _Task) -> None:
        del self._tasks[task.name]
        task.known.tasks -= 1
        self._report(str(task.workflow.name), task.last_s - task.arrived_s)

    def _report(self, workflow: str | None, took_s: float) -> None:
        if self._on_task_end is not None:
            self._on_task_end(workflow, took_s)

    def _is_idle(self, now: float, task: _Task) -> bool:
        return not task.live and now - task.last_s > self._idle_expiry_s

    # -- requests that are tasks of their own

    def _place_alone(self, now: float, arrival: Arrival) -> _Live:
        hints, space = arrival.hints, arrival.namespace
        if hints.agent is not None:
            agent = self.agents.named(now, space, hints.agent, arrival.prompt)
            return self._place_call(now, arrival, agent, now)
        head = self.agents.head_of(space, arrival.prompt)
        agent = self.agents.of_head(now, space, head, arrival.prompt)
        if head is not None:
            self._gather(now, head, agent, arrival.rid)
        return self._place_call(now, arrival, agent, now, head)

    def _gather(self, now: float, head: Hashable, agent: str, rid: Id) -> None:
        """The first request with a head, if it still waits, moves to the agent of that head."""
        first = self._first.setdefault(head, rid)
        live = self._live.get(first)
        if live is not None and live.agent != agent and not live.running:
            self.aborted(now, first)
            self._place(now, self._place_call(now, live.arrival, agent, live.since_s, head))

    def _place_call(
        self, now: float, arrival: Arrival, agent: str, since: float, head: Hashable | None = None
    ) -> _Live:
        hints = arrival.hints
        workflow = composite_id("single", agent)
        if workflow not in self._workflows:
            service_s = self._profile_s(len(arrival.prompt), arrival.max_new_tokens)
            stage = topas.Stage("call", agent, service_s=service_s)
            self._know_workflow(topas.Workflow(workflow, (stage,)))
        self._workflows.move_to_end(workflow)
        started = since
        if hints.task is not None:  # its age counts from the first request of its workflow
            owner = composite_id("since", *arrival.namespace, hints.task)
            since = self._since.get(owner, (since, now))[0]
            self._since[owner] = (since, now)
        task = composite_id("single", arrival.rid)
        self._core.task_arrived(now, task, workflow, since)
        self._workflows[workflow].tasks += 1
        return _Live(task, "call", agent, started, arrival, single=True, head=head)


def _open_ancestors(task: _Task, before: Mapping[Id, Sequence[Id]], stage: Id) -> list[Id]:
    """Open stages that the stage comes after, each behind those that it comes after itself."""
    found: list[Id] = []
    ahead = [(name, False) for name in before[stage]]
    while ahead:  # depth first: a stage is written down once its predecessors are
        name, seen = ahead.pop()
        if seen:
            found.append(name)
        elif name not in task.ended:
            ahead.append((name, True))
            ahead.extend((other, False) for other in before[name])
    return list(dict.fromkeys(found))
