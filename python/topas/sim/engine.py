"""An event-driven model of one LLM engine under a scheduling policy."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from topas.errors import StateError
from topas.policies.base import Id, Plan, Policy, RequestView
from topas.sim.compute import Compute
from topas.sim.cost import TIME_EPSILON_S, EngineCosts
from topas.sim.memory.base import Memory
from topas.sim.memory.explicit import ExplicitMemory
from topas.sim.memory.lru import LruMemory
from topas.sim.memory.pool import KvPool
from topas.sim.memory.prefix import Prefix
from topas.sim.options import EngineOptions
from topas.sim.profiles import setup_of
from topas.sim.progress import Release, TaskRun
from topas.sim.request import Request
from topas.sim.result import RunResult
from topas.sim.timeline import Timeline
from topas.sim.workload import Task, Workload

__all__ = ["Engine"]

# Kinds of timed events; at one instant arrivals come before rounds that get ready.
_ARRIVAL, _READY = 0, 1


@dataclass(frozen=True, slots=True)
class _View:
    """:class:`topas.policies.QueueView` of this engine."""

    waiting: Sequence[Request]
    running: Sequence[Request]
    memory: Memory

    def resident_tokens(self, agent: str) -> int:
        return self.memory.resident_tokens(agent)

    def cached_tokens(self, request: RequestView) -> int:
        return self.memory.cached_tokens(cast(Request, request))


class Engine:
    """One run: a workload, a policy, an engine.

    Continuous batching, composed as the options say; one KV pool; the policy is asked once after
    all events of an instant, at boundaries of the engine's work. The simulated clock knows nothing
    of real time.

    Parameters
    ----------
    workload : Workload
        What arrives.
    policy : Policy
        Who decides.
    costs : EngineCosts, optional
        What work costs.
    options : EngineOptions, optional
        How the engine behaves.
    on_task_end : callable, optional
        Called after each task that ended, for progress bars.
    timeline : bool
        Record when each request was in the engine (:attr:`RunResult.timeline`).
    """

    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        costs: EngineCosts | None = None,
        options: EngineOptions | None = None,
        on_task_end: Callable[[], None] | None = None,
        *,
        timeline: bool = False,
    ) -> None:
        self.workload = workload
        self.policy = policy
        self.costs = costs or EngineCosts()
        self.options = options or EngineOptions()
        if policy.needs_host_cache and self.options.host_cache_tokens == 0:
            self.options = replace(self.options, host_cache_tokens=None)
        self.result = RunResult(policy.name)
        self._on_task_end = on_task_end
        self._timeline = Timeline(self.result.timeline) if timeline else None
        self.pool = KvPool(self.costs.kv_capacity, self.options.page_size)
        prefixes = {agent: Prefix(agent, tokens) for agent, tokens in workload.agents.items()}
        counters = self.result.counters
        self._compute = Compute(
            self.costs,
            prefixes,
            counters,
            coalesce=self.options.coalesce,
            batching=self.options.batching,
            chunked_prefill_tokens=self.options.chunked_prefill_tokens,
            in_batch_prefixes=self.options.in_batch_prefixes,
        )
        kind = ExplicitMemory if policy.explicit_residency else LruMemory
        self.memory: Memory = kind(self.pool, prefixes, self._compute, counters, self.options)
        self._now = 0.0
        self._waiting: dict[int, Request] = {}
        self._tasks: dict[Id, TaskRun] = {}
        self._next_request = 0
        self._since_progress = 0
        self._sequence = 0
        self._events: list[tuple[float, int, int, Task | tuple[Id, Release]]] = []

    def run(self) -> RunResult:
        """Run to the end (or to the time limit) and return what happened.

        Raises
        ------
        StateError
            The policy's plan is not legal, or nothing can go on although requests wait; it names
            one.
        CapacityError
            The plan needs more KV than there is.
        """
        for task in self.workload.tasks:
            self._push(task.arrival_s, _ARRIVAL, task)
        self.policy.begin(setup_of(self.workload, self.costs, self.options))
        limit = math.inf if self.options.max_time_s is None else self.options.max_time_s
        done: list[Request] = []
        retracted = False
        while self._now <= limit:
            changed = self._deliver(min(self._now, limit))
            for request in done:
                self._complete(request)
            if changed or done or retracted:
                self._schedule()
            if self.result.stopped:
                break
            retracted = self._retract()
            upcoming = self._now if retracted else min(self._next_event(), limit)
            if self._compute.busy:
                self._now, done = self._compute.advance(self._now, upcoming)
            elif self._next_event() < math.inf:
                self.memory.ratio.reset()
                self._now, done = max(self._now, self._next_event()), []
            else:
                self._check_idle()
                break
        else:
            self._deliver(limit)
            self.result.stopped = f"time limit of {limit:g} s"
            self._now = limit
        return self._finish()

    def _push(self, at_s: float, kind: int, what: Task | tuple[Id, Release]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at_s, kind, self._sequence, what))

    def _next_event(self) -> float:
        timed = self._events[0][0] if self._events else math.inf
        return min(timed, self.memory.next_event())

    def _deliver(self, until: float) -> bool:
        """Handle what happens up to ``until`` in order of time; whether there was anything."""
        changed = False
        while self._next_event() <= until + TIME_EPSILON_S:
            changed = True
            # A boundary may be reached a rounding error before what it was to reach.
            self._now = max(self._now, self._next_event())
            own = self.memory.next_event()
            if own <= (self._events[0][0] if self._events else math.inf):
                self.memory.handle_event(own)
                continue
            at_s, _, _, what = heapq.heappop(self._events)
            if isinstance(what, Task):
                self._arrive(what)
            elif what[0] in self._tasks:
                self._make_ready(self._tasks[what[0]], what[1], at_s)
        return changed

    def _arrive(self, task: Task) -> None:
        now = task.arrival_s
        run = TaskRun.start(task, self.workload)
        self._tasks[task.id] = run
        self.result.arrival_s[task.id] = now
        self._since_progress = 0
        self.policy.task_arrived(now, task.id, task.workflow)
        self._release(run, run.roots(now), now)

    def _release(self, run: TaskRun, releases: list[Release], now: float) -> None:
        for release in releases:
            if run.task.id not in self._tasks:
                return  # given up because of an earlier one
            if release.ready_s <= now:
                self._make_ready(run, release, now)
            else:
                self._push(release.ready_s, _READY, (run.task.id, release))

    def _make_ready(self, run: TaskRun, release: Release, now: float) -> None:
        request = self._request(run, release, now)
        rounded = self.pool.rounded
        reservation = rounded(request.input_tokens + request.max_output_tokens)
        needs = rounded(request.prefix_tokens) + reservation
        if needs > self.pool.capacity:
            self._cancel(
                run,
                now,
                f"request {release.round} of stage {request.stage} can never fit: prefix "
                f"{request.prefix_tokens} + reservation {reservation} = {needs} tokens, "
                f"capacity {self.pool.capacity}",
            )
            return
        self._waiting[request.id] = request
        self.policy.request_ready(now, request)

    def _request(self, run: TaskRun, release: Release, now: float) -> Request:
        stage = run.shape.stages[release.stage]
        work = run.round(release.stage, release.round)
        max_output = math.ceil(work.output_tokens * self.options.over_reserve)
        self._next_request += 1
        return Request(
            id=self._next_request,
            task=run.task.id,
            stage_index=release.stage,
            stage=stage.name,
            agent=stage.agent,
            round=release.round,
            depth=run.shape.depths[release.stage],
            ready_s=now,
            task_arrival_s=run.task.arrival_s,
            prefix_tokens=self.workload.agents[stage.agent],
            input_tokens=work.input_tokens,
            output_tokens=work.output_tokens,
            max_new_tokens=self.memory.reserved(work.input_tokens, max_output),
            max_output_tokens=max_output,
            shared_tokens=work.shared_tokens,
        )

    def _cancel(self, run: TaskRun, now: float, reason: str) -> None:
        id_ = run.task.id
        for request in [r for r in self._waiting.values() if r.task == id_]:
            del self._waiting[request.id]
        for request in [r for r in self.memory.running.values() if r.task == id_]:
            if self._timeline is not None:
                self._timeline.left(now, request)
            self.memory.abort(request)
        del self._tasks[id_]
        self.result.cancelled[id_] = reason
        self.policy.task_cancelled(now, id_)
        self._task_ended()

    def _complete(self, request: Request) -> None:
        if request.task not in self._tasks:
            return  # given up at this very boundary
        now, run = self._now, self._tasks[request.task]
        self.memory.finish(request)
        if self._timeline is not None:
            self._timeline.left(now, request, finished=True)
        self._since_progress = 0
        self.result.counters.completed_requests += 1
        self.policy.request_completed(now, request, request.finish(now))
        ended, releases = run.finish_round(request.stage_index, request.round, now)
        if ended:
            self.policy.stage_completed(now, request.task, request.stage)
        if run.open_stages == 0:
            del self._tasks[request.task]
            self.result.finish_s[request.task] = now
            self.policy.task_finished(now, request.task)
            self._task_ended()
        self._release(run, releases, now)

    def _task_ended(self) -> None:
        if self._on_task_end is not None:
            self._on_task_end()

    def _schedule(self) -> None:
        """Ask the policy once and carry out its plan."""
        if not (self._waiting or self.policy.explicit_residency or self.policy.gives_advice):
            return
        view = _View(list(self._waiting.values()), list(self.memory.running.values()), self.memory)
        started = time.perf_counter_ns()
        plan = self.policy.plan(self._now, view)
        self.result.decision_ns += time.perf_counter_ns() - started
        self.result.counters.decisions += 1
        self._since_progress += 1
        self._charge_decision()
        self._carry_out(plan)
        if self._since_progress > self.options.stall_limit:
            oldest = min((*self._waiting.values(), *self.memory.running.values()), key=_age)
            self.result.stopped = (
                f"{self._since_progress} decisions without an arrival or a finished request "
                f"at {self._now:g} s: the policy goes in circles; request {oldest.id} (task "
                f"{oldest.task!r}, stage {oldest.stage!r}) is unserved since {oldest.ready_s:g} s"
            )

    def _retract(self) -> bool:
        """Retract requests if the next decode step has no memory; whether there were any.

        The others take that step before anything is admitted, so that retractions cannot go in
        circles.
        """
        retracted = False
        while (request := self.memory.next_retraction(begun=retracted)) is not None:
            retracted = True
            if self._timeline is not None:
                self._timeline.left(self._now, request)
            self.memory.retract(self._now, request, self._waiting)
            self.policy.request_retracted(self._now, request)
        if retracted:
            self.memory.ratio.retracted(self._compute.decoding)
        return retracted

    def _carry_out(self, plan: Plan) -> None:
        if self._timeline is None:
            self.memory.apply(self._now, plan, self._waiting)
            return
        self._timeline.before_plan(self._now, self.memory, list(plan.preempt))
        self.memory.apply(self._now, plan, self._waiting)
        self._timeline.after_plan(self._now, self.memory)

    def _charge_decision(self) -> None:
        """Let the clock run on while the policy decides; transfers under way end meanwhile."""
        self._now += self.options.charge_decisions_s
        while self.memory.next_event() <= self._now:
            self.memory.handle_event(self.memory.next_event())

    def _check_idle(self) -> None:
        """Nothing will ever happen again: that is right only if no request is left."""
        for request in (*self._waiting.values(), *self.memory.running.values()):
            raise StateError(
                f"policy {self.policy.name!r} leaves request {request.id} (task {request.task!r}, "
                f"stage {request.stage!r}, {request.prefix_tokens} + {request.reservation} tokens) "
                f"waiting for ever at {self._now:g} s: {len(self._waiting)} wait, "
                f"{self.pool.used} of {self.pool.capacity} KV tokens in use, nothing runs"
            )

    def _finish(self) -> RunResult:
        result = self.result
        result.unfinished = list(self._tasks)
        result.end_s = self._now
        result.peak_kv_tokens = self.pool.peak
        return result


def _age(request: Request) -> tuple[float, int]:
    """The older request is the less."""
    return request.ready_s, request.id
