"""The same run in the simulator, with an engine that behaves as SGLang and its plugin do.

What the plain simulator does not have and these runs need: a fixed number of tasks in flight; a
cache that keeps what finished requests computed, their own tokens too; several requests of one
agent, admitted together, that each compute a prefix which is not there (topas lets one go ahead,
lpm puts the others last); and topas on an engine that decides itself what stays in its cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import topas
from topas.enginebench.workload import BenchWorkload
from topas.policies import Policy, make_policy
from topas.policies.base import Id, Plan, QueueView, RequestView, Setup
from topas.policies.lpm import Lpm
from topas.policies.topas import TopasPolicy
from topas.sglang.costs import CostMeter
from topas.sglang.settings import Settings
from topas.sim.cost import EngineCosts
from topas.sim.engine import Engine
from topas.sim.memory.lru import LruMemory
from topas.sim.memory.prefix import Place, Prefix
from topas.sim.metrics import RunMetrics, summarise
from topas.sim.options import EngineOptions
from topas.sim.profiles import config_fields
from topas.sim.request import Request
from topas.sim.workload import Round, Task, Workload

__all__ = ["PluginPolicy", "SglangLpm", "SglangMemory", "simulate_run"]

_PREFILLS = (64, 448) * 3  # tokens, usual ones; enough for the meter to tell both parts


class SglangMemory(LruMemory):
    """SGLang's prefix tree: LRU over prefixes and over the tails that requests leave behind."""

    #: Whether a request admitted beside the one that computes its prefix computes it again.
    computes_again = True

    def _is_pending(self, request: Request) -> bool:
        """Whether the prefix is not in the tree yet, but will be computed by another request."""
        prefix = self.prefixes[request.agent]
        return self.computes_again and prefix.place is Place.RESIDENT and not prefix.computed

    def _make_room(self, request: Request) -> bool:
        if self._is_pending(request):  # this one needs room for a copy of its own
            tokens = request.input_tokens + self.prefixes[request.agent].tokens
            return super()._make_room(replace(request, input_tokens=tokens))
        return super()._make_room(request)

    def _admit(self, request: Request) -> None:
        again = self._is_pending(request)
        super()._admit(request)
        if again:
            request.prefill_tokens += self.prefixes[request.agent].tokens

    def finish(self, request: Request) -> None:
        """Free the request's memory, but keep its tail as long as nobody needs the room."""
        computed = request.generated_tokens > 0
        tail = Prefix(f"tail of {request.id}", request.input_tokens + request.generated_tokens)
        super().finish(request)
        if computed and tail.tokens <= self.pool.free:
            tail.place = Place.RESIDENT
            self.pool.charge(tail.agent, tail.tokens)
            newest = self._idle.pop(request.agent, None)  # a tail is older than its prefix
            self._idle[tail.agent] = tail
            if newest is not None:
                self._idle[request.agent] = newest


class _SglangEngine(Engine):
    """The engine of these runs; tasks beyond the first ones come as others end."""

    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        costs: EngineCosts,
        options: EngineOptions,
        later: Sequence[Task] = (),
    ) -> None:
        super().__init__(workload, policy, costs, options)
        self._later = list(reversed(later))
        self.memory = SglangMemory(
            self.pool, self.memory.prefixes, self._compute, self.result.counters, self.options
        )
        self.memory.computes_again = not isinstance(policy, PluginPolicy)

    def _task_ended(self) -> None:
        super()._task_ended()
        if self._later:
            task = replace(self._later.pop(), arrival_s=self._now)
            self._push(self._now, 0, task)


class SglangLpm(Lpm):
    """SGLang's lpm: of the requests that would compute the same prefix all but one go last."""

    def begin(self, setup: Setup) -> None:
        """Remember who has a prefix."""
        self._tokens = dict(setup.agents)

    def plan(self, now: float, view: QueueView) -> Plan:
        """The order of lpm, with those put last."""
        agents = {request.id: request.agent for request in view.waiting}
        first: list[int] = []
        last: list[int] = []
        missing: set[str] = set()
        for id_ in super().plan(now, view).admit:
            agent = agents[id_]
            (last if agent in missing else first).append(id_)
            if self._tokens[agent] > 0 and view.resident_tokens(agent) == 0:
                missing.add(agent)
        return Plan(first + last)


class PluginPolicy(TopasPolicy):
    """topas as the plugin drives it: with its own meter of costs, looking at the engine's cache.

    Parameters
    ----------
    costs : EngineCosts
        Of the engine; the meter is given them.
    fields : mapping
        What :func:`topas.sim.profiles.config_fields` says of the workload.
    hints : bool
        Whether workflows are known; without, each request is a task of one stage.
    settings : Settings or None
        Of the plugin.
    """

    explicit_residency = False

    def __init__(
        self,
        costs: EngineCosts,
        fields: Mapping[str, Any],
        *,
        hints: bool = True,
        settings: Settings | None = None,
    ) -> None:
        self._limits = (fields["kv_capacity_tokens"], fields["max_running_requests"])
        self._settings = settings or Settings()
        self._meter = CostMeter(stalls=self._settings.moves_once)
        for tokens in _PREFILLS:
            self._meter.passed(costs.prefill_s(tokens), tokens)
            self._meter.passed(fields["decode_s_per_token"], 0)
        super().__init__(self._present())
        self._hints = hints
        self._tokens: dict[str, int] = {}
        self._arrived_s: dict[Id, float] = {}
        self._resident: set[str] = set()
        self._core_runs: set[int] = set()  # requests that run as the core knows it

    def _present(self) -> topas.Config:
        """The configuration with what the meter knows now."""
        capacity, max_running = self._limits
        return self._settings.config(
            capacity=capacity,
            max_running_requests=max_running,
            costs=self._meter.config_fields(),
        )

    def begin(self, setup: Setup) -> None:
        """A fresh scheduler; without hints it knows a workflow for each agent."""
        super().begin(setup)
        self._tokens = dict(setup.agents)
        if not self._hints:
            for agent in setup.agents:
                stage = topas.Stage("call", agent)
                self._scheduler.register_workflow(topas.Workflow(f"single {agent}", (stage,)))

    def task_arrived(self, now: float, task: Id, workflow: str) -> None:
        """Pass the event on, if there are hints."""
        if self._hints:
            self._arrived_s[task] = now
            super().task_arrived(now, task, workflow)

    def task_finished(self, now: float, task: Id) -> None:
        """Tell the meter; the core knows."""
        if self._hints:
            self._meter.task_took(now - self._arrived_s.pop(task))

    def stage_completed(self, now: float, task: Id, stage: str) -> None:
        """Pass the event on, if there are hints."""
        if self._hints:
            super().stage_completed(now, task, stage)

    def request_ready(self, now: float, request: RequestView) -> None:
        """A request of its task, or a task of its own."""
        if self._hints:
            super().request_ready(now, request)
            return
        task = f"request {request.id}"
        self._scheduler.task_arrived(now, task, f"single {request.agent}")
        lengths = request.input_tokens, request.max_new_tokens
        self._scheduler.request_ready(now, request.id, task, "call", *lengths)

    def request_completed(self, now: float, request: RequestView, service_s: float) -> None:
        """Pass the event on; a task of its own ends."""
        super().request_completed(now, request, service_s)
        self._core_runs.discard(request.id)
        if not self._hints:
            self._scheduler.stage_completed(now, f"request {request.id}", "call")
            self._meter.task_took(now - request.ready_s)

    def request_retracted(self, now: float, request: RequestView) -> None:
        """Nothing: :meth:`plan` sees that the request does not run."""

    def plan(self, now: float, view: QueueView) -> Plan:
        """Tell the core what the engine made of the last plan, then ask it."""
        running = {request.id for request in view.running}
        for id_ in sorted(self._core_runs - running):
            self._scheduler.request_start_failed(now, id_)
        self._look(now, view)
        if running:
            self._meter.ran(len(running))
        if self._meter.has_changed:
            self._scheduler.reconfigure(self._present())
        plan = super().plan(now, view)
        assert plan.resident is not None
        self._resident = set(plan.resident)
        self._core_runs = (running - set(plan.preempt)) | set(plan.admit)
        return Plan(plan.admit, plan.preempt)

    def _look(self, now: float, view: QueueView) -> None:
        """Prefixes of agents without running requests: what the cache has now."""
        live = {request.agent for request in view.waiting}
        used = {request.agent for request in view.running}
        for agent, tokens in self._tokens.items():
            if agent in used or (agent in live and tokens == 0):
                continue
            there = agent in live and view.resident_tokens(agent) > 0
            if there and agent not in self._resident:
                self._scheduler.prefix_loaded(now, agent)
                self._resident.add(agent)
            elif not there and agent in self._resident:
                self._scheduler.prefix_evicted(now, agent)
                self._resident.discard(agent)


def _as_simulated(task: Task) -> Task:
    """SGLang's prefill makes the first token: one step less, and one token of context more."""
    stages = tuple(
        tuple(Round(r.input_tokens + 1, r.output_tokens - 1, r.wait_s) for r in rounds)
        for rounds in task.stages
    )
    return replace(task, stages=stages)


def simulate_run(
    bench: BenchWorkload,
    policy: str,
    costs: EngineCosts,
    max_running: int | None,
    settings: Settings | None = None,
) -> RunMetrics:
    """Run a workload of the benchmark in the simulator.

    Parameters
    ----------
    bench : BenchWorkload
        What arrives.
    policy : str
        ``fcfs``, ``lpm`` or ``topas``.
    costs : EngineCosts
        Of the engine, as fitted.
    max_running : int or None
        Limit on running requests.
    settings : Settings or None
        Of the plugin.

    Raises
    ------
    ConfigError, StateError, CapacityError
        The policy is unknown or the run cannot go on.
    """
    options = EngineOptions(max_running=max_running or 0, redo_model="prefill")
    tasks = [_as_simulated(task) for task in bench.shape.tasks]
    closed = bench.settings.rate is None
    first = bench.settings.concurrency if closed else len(tasks)
    workload = replace(bench.shape, tasks=tuple(tasks[:first]))
    chosen: Policy
    if policy == "topas":
        fields = config_fields(workload, costs, options)
        chosen = PluginPolicy(costs, fields, hints=bench.has_hints, settings=settings)
    else:
        chosen = SglangLpm() if policy == "lpm" else make_policy(policy, {})
    return summarise(_SglangEngine(workload, chosen, costs, options, tasks[first:]).run())
