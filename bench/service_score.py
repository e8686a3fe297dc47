"""A prototype of another score: requests are worth their expected service (docs/policy.md).

Candidate states are those of SPEC section 5: prefix sets, each with the waiting requests that fit.
What differs from the published score:

- The worth of a request, w = g · u · d, takes the place of the path marginal g · Δ: g is the age
  factor, d the expected service of the request (SPEC section 2), and u = (H_age / E[LP]) ** γ says
  how near its task is to its end (γ = ``urgency``; 0: u = 1).
- Requests of a set are admitted by arrival of their task, then by id, not by worth per token.
- A preempted request costs its worth now, not the credit of its admission, and κ · g · u · T_decode
  · y for the work that is lost (κ = ``redo_weight``).
- A request that has had more than ``progress_limit`` · d of service is never preempted.
- Nothing overtakes a request whose task is older than ``overtake_limit`` · H_age: where it does not
  fit, the set admits no more.

There is no movement charge and no lookahead: neither made a difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from topas.policies.base import Id, Plan, Policy, QueueView, RequestView, Setup, StageProfile

# Up to so many agents that may come or go every set is tried, above it a climb.
_ENUMERATE_AGENTS = 5
_KEPT_TOTALS = 256
_AGE_SCALE_WEIGHT = 0.1

Agents = frozenset[str]


@dataclass
class _Stage:
    """What is known of a stage of a workflow: its profile, and what its executions took."""

    profile: StageProfile
    totals_s: list[float] = field(default_factory=list)
    requests_s: float = 0.0
    requests: int = 0

    @property
    def request_s(self) -> float:
        """Expected service of one request."""
        return self.requests_s / self.requests if self.requests else self.profile.request_s

    def residual_s(self, spent_s: float | None) -> float:
        """Expected service left, given what the finished requests took (None: none finished)."""
        totals = self.totals_s or [self.profile.service_s]
        if spent_s is None:
            return math.fsum(totals) / len(totals)
        left = [total - spent_s for total in totals if total > spent_s]
        return math.fsum(left) / len(left) if left else self.request_s


@dataclass
class _Task:
    """A task that has not ended: its workflow, what its stages took, and which are completed."""

    workflow: str
    spent_s: dict[str, float] = field(default_factory=dict)
    completed: set[str] = field(default_factory=set)


class Estimates:
    """Expected services, remaining paths and the age scale, from events alone (point estimates)."""

    def __init__(self, setup: Setup) -> None:
        self._stages = {
            name: {profile.name: _Stage(profile) for profile in profiles}
            for name, profiles in setup.workflows.items()
        }
        self._tasks: dict[Id, _Task] = {}
        empty = [self._path_s(_Task(name)) for name in self._stages]
        self.age_scale_s = math.fsum(empty) / len(empty)
        self._finished = 0

    def arrived(self, task: Id, workflow: str) -> None:
        """A task arrived."""
        self._tasks[task] = _Task(workflow)

    def served(self, request: RequestView, service_s: float) -> None:
        """A request of a task finished."""
        task = self._tasks[request.task]
        task.spent_s[request.stage] = task.spent_s.get(request.stage, 0.0) + service_s
        stage = self._stages[task.workflow][request.stage]
        stage.requests_s += service_s
        stage.requests += 1

    def stage_completed(self, task_id: Id, name: str) -> None:
        """A stage finished; its service joins the stage's profile."""
        task = self._tasks[task_id]
        task.completed.add(name)
        totals = self._stages[task.workflow][name].totals_s
        totals.append(task.spent_s.get(name, 0.0))
        del totals[:-_KEPT_TOTALS]

    def finished(self, task_id: Id) -> None:
        """A task finished; its service moves the age scale."""
        total = math.fsum(self._tasks.pop(task_id).spent_s.values())
        weight = _AGE_SCALE_WEIGHT if self._finished else 1.0
        self.age_scale_s += weight * (total - self.age_scale_s)
        self._finished += 1

    def cancelled(self, task_id: Id) -> None:
        """A task was given up."""
        self._tasks.pop(task_id, None)

    def request_s(self, request: RequestView) -> float:
        """Expected service of a request, d."""
        return self._stages[self._tasks[request.task].workflow][request.stage].request_s

    def path_s(self, task_id: Id) -> float:
        """Longest path of the expected residuals of a task, at least a second."""
        return max(self._path_s(self._tasks[task_id]), 1.0)

    def _path_s(self, task: _Task) -> float:
        ends: dict[str, float] = {}
        for name, stage in self._stages[task.workflow].items():
            before = max((ends[other] for other in stage.profile.after), default=0.0)
            done = name in task.completed
            ends[name] = before + (0.0 if done else stage.residual_s(task.spent_s.get(name)))
        return max(ends.values())


@dataclass(frozen=True)
class _State:
    """A candidate: its prefixes, admissions and score."""

    agents: Agents
    admit: Sequence[int]
    score: float


class _Packer:
    """Packs prefix sets; each at most once.

    Parameters
    ----------
    view : QueueView
        Waiting and running requests.
    prefix_tokens : mapping
        Static prefix of each agent.
    capacity : int
        KV pool, tokens.
    worth : mapping
        Of waiting requests by id, seconds.
    price : mapping
        What preempting all requests of an agent costs, seconds; agents that are not in it stay.
    overtaken_after_s : float
        Requests of tasks that arrived after it may be overtaken, seconds on the clock.
    """

    def __init__(
        self,
        view: QueueView,
        prefix_tokens: Mapping[str, int],
        capacity: int,
        worth: Mapping[int, float],
        price: Mapping[str, float],
        overtaken_after_s: float,
    ) -> None:
        self.running = frozenset(request.agent for request in view.running)
        self.price = price
        self._prefix_tokens = prefix_tokens
        self._capacity = capacity
        self._worth = worth
        self._overtaken_after_s = overtaken_after_s
        self._queue = sorted(view.waiting, key=lambda r: (r.task_arrival_s, r.id))
        self._used = dict.fromkeys(self.running, 0)
        for request in view.running:
            self._used[request.agent] += _tokens(request)
        self.smallest: dict[str, int] = {}
        for request in view.waiting:
            least = self.smallest.get(request.agent, _tokens(request))
            self.smallest[request.agent] = min(least, _tokens(request))
        self._known: dict[Agents, _State | None] = {}

    def state(self, agents: Agents) -> _State | None:
        """The state of a prefix set; None if it is infeasible."""
        if agents not in self._known:
            self._known[agents] = self._pack(agents)
        return self._known[agents]

    def _pack(self, agents: Agents) -> _State | None:
        room = self._capacity - sum(self._prefix_tokens[agent] for agent in agents)
        room -= sum(self._used[agent] for agent in agents & self.running)
        uncovered = {agent: self.smallest[agent] for agent in agents - self.running}
        reserved = sum(uncovered.values())
        if room < reserved:
            return None
        admit, gain = [], 0.0
        for request in self._queue:
            if request.agent not in agents:
                continue
            others = reserved - uncovered.get(request.agent, 0)
            if _tokens(request) <= room - others:
                room -= _tokens(request)
                reserved = others
                uncovered.pop(request.agent, None)
                admit.append(request.id)
                gain += self._worth[request.id]
            elif request.task_arrival_s < self._overtaken_after_s:
                break
        if uncovered:
            return None
        loss = math.fsum(self.price[agent] for agent in sorted(self.running - agents))
        return _State(agents, admit, gain - loss)


def _tokens(request: RequestView) -> int:
    return request.input_tokens + request.max_new_tokens


class ServiceScore(Policy):
    """The policy of this module.

    Parameters
    ----------
    config : mapping
        ``kv_capacity_tokens`` and ``decode_s_per_token`` of :class:`topas.Config`; others are
        ignored.
    age_weight, urgency, redo_weight, progress_limit : float
        ρ, γ, κ and the progress above which nothing is preempted, as a part of the expected
        service; all at least 0.
    overtake_limit : float
        The age above which nothing overtakes, in units of H_age, at least 0.
    """

    name = "service-score"
    explicit_residency = True

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        age_weight: float = 1.0,
        urgency: float = 0.25,
        redo_weight: float = 6.0,
        progress_limit: float = 1.0,
        overtake_limit: float = 2.0,
    ) -> None:
        self._capacity = int(config["kv_capacity_tokens"])
        self._decode_s = float(config["decode_s_per_token"])
        self._age_weight = age_weight
        self._urgency = urgency
        self._redo_weight = redo_weight
        self._progress_limit = progress_limit
        self._overtake_limit = overtake_limit

    def begin(self, setup: Setup) -> None:
        """Forget earlier runs."""
        self._setup = setup
        self._known = Estimates(setup)

    def task_arrived(self, now: float, task: Id, workflow: str) -> None:
        """Pass the event on."""
        self._known.arrived(task, workflow)

    def request_completed(self, now: float, request: RequestView, service_s: float) -> None:
        """Pass the event on."""
        self._known.served(request, service_s)

    def stage_completed(self, now: float, task: Id, stage: str) -> None:
        """Pass the event on."""
        self._known.stage_completed(task, stage)

    def task_finished(self, now: float, task: Id) -> None:
        """Pass the event on."""
        self._known.finished(task)

    def task_cancelled(self, now: float, task: Id) -> None:
        """Pass the event on."""
        self._known.cancelled(task)

    def plan(self, now: float, view: QueueView) -> Plan:
        """The best of the candidate states."""
        if not view.waiting:
            return Plan([], [], frozenset(request.agent for request in view.running))
        scales = self._scales(now, (*view.waiting, *view.running))
        worth = {
            request.id: scales[request.task] * self._known.request_s(request)
            for request in view.waiting
        }
        price = self._prices(view.running, scales)
        since = now - self._overtake_limit * self._known.age_scale_s
        packer = _Packer(view, self._setup.agents, self._capacity, worth, price, since)
        chosen = max(_candidates(packer), key=lambda state: _preference(packer, state))
        preempt = [r.id for r in view.running if r.agent not in chosen.agents]
        return Plan(chosen.admit, preempt, chosen.agents)

    def _scales(self, now: float, requests: Iterable[RequestView]) -> dict[Id, float]:
        """Age factor times nearness, g · u, of each task."""
        scale_s = self._known.age_scale_s
        scales: dict[Id, float] = {}
        for request in requests:
            if request.task not in scales:
                age = max(now - request.task_arrival_s, 0.0) / scale_s
                near = 1.0
                if self._urgency > 0.0:
                    near = (scale_s / self._known.path_s(request.task)) ** self._urgency
                scales[request.task] = (1.0 + self._age_weight * age) * near
        return scales

    def _prices(
        self, running: Sequence[RequestView], scales: Mapping[Id, float]
    ) -> dict[str, float]:
        """What giving up each agent costs, of those whose requests may all be preempted."""
        price: dict[str, float] = {}
        for request in running:
            spent_s = request.generated_tokens * self._decode_s
            service_s = self._known.request_s(request)
            cost = scales[request.task] * (service_s + self._redo_weight * spent_s)
            firm = spent_s > self._progress_limit * service_s
            price[request.agent] = price.get(request.agent, 0.0) + (math.inf if firm else cost)
        return {agent: cost for agent, cost in price.items() if cost < math.inf}


def _preference(packer: _Packer, state: _State) -> tuple[float, int, int, int]:
    """Highest score; then fewer agents given up, more admissions, fewer prefixes."""
    gone = len(packer.running - state.agents)
    return state.score, -gone, len(state.admit), -len(state.agents)


def _candidates(packer: _Packer) -> list[_State]:
    """States of all sets, or those of a climb from the present one."""
    firm = packer.running - frozenset(packer.price)
    movable = sorted(set(packer.smallest) - packer.running) + sorted(packer.price)
    if len(movable) <= _ENUMERATE_AGENTS:
        sets = [
            firm | frozenset(chosen)
            for size in range(len(movable) + 1)
            for chosen in combinations(movable, size)
        ]
        return [state for agents in sets if (state := packer.state(agents)) is not None]
    present = packer.state(packer.running)
    found = [] if present is None else [present]
    while found:
        agents = found[-1].agents
        neighbours = [packer.state(agents ^ {agent}) for agent in movable]
        feasible = [state for state in neighbours if state is not None]
        best = max(feasible, key=lambda state: state.score, default=None)
        if best is None or best.score <= found[-1].score:
            break
        found.append(best)
    return found
