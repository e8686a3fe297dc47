"""Section 8 of docs/specification.md: the decision whose continuation is simulated best."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf, sqrt

from .expectation import expected_path, stage_draws
from .pack import Allocation
from .score import Scorer
from .state import Id, Request, Stage, State, id_key, tie

_MOST_REQUESTS = 16.0
_LEAST_LEFT = 0.1

POLICIES = ("strict", "arrival", "resident")
"""Base policies, which continue a decision."""

LEAST_PAIRS = 6
"""So many pairs of a candidate and a base policy stay in the race at least."""

Place = tuple[int, int]
"""A stage: its task in order of arrival, its index."""


@dataclass(frozen=True)
class Move:
    """What a decision does."""

    admit: tuple[Request, ...]
    preempt: tuple[Request, ...] = ()


@dataclass(frozen=True)
class Work:
    """What is left of a stage in one scenario: requests, and the service of each in seconds."""

    requests: int
    request_s: float


class World:
    """What all rollouts of a state have in common."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.tasks = sorted(state.tasks.values(), key=lambda t: (t.arrival, id_key(t.id)))
        number = {task.id: index for index, task in enumerate(self.tasks)}
        live = sorted(state.waiting + state.running, key=lambda r: id_key(r.id))
        self.live = {request.id: (number[request.task], request.stage) for request in live}
        self.requests = live
        self.reserved = self._reservations()
        self.scenarios = self._scenarios()

    def stage(self, place: Place) -> Stage:
        """Find a stage."""
        return self.tasks[place[0]].stages[place[1]]

    @property
    def places(self) -> list[Place]:
        """List all stages."""
        return [(t, v) for t, task in enumerate(self.tasks) for v in range(len(task.stages))]

    def spent_s(self, request: Request) -> float:
        """Give the service that a running request has had."""
        decode_s = self.state.settings.decode_s_per_token
        return decode_s * request.generated_tokens if request.running else 0.0

    def load_s(self, agent: Id) -> float:
        """Give how long the prefix of an agent takes to come in."""
        settings = self.state.settings
        return settings.kv_bytes_per_token / settings.swap_bytes_per_s * self.state.prefix[agent]

    def _reservations(self) -> dict[Id, int]:
        """What a request to come reserves: the mean of the agent's live ones, else of all."""
        capacity = self.state.settings.kv_capacity_tokens
        reserved = {}
        for agent, prefix in self.state.prefix.items():
            sizes = [r.kv_tokens for r in self.requests if r.agent == agent]
            sizes = sizes or [r.kv_tokens for r in self.requests]
            reserved[agent] = min(sum(sizes) // len(sizes), max(capacity - prefix, 0))
        return reserved

    def _scenarios(self) -> list[dict[Place, Work]]:
        """Draw what is left of each open stage."""
        count = self.state.settings.rollout_scenarios
        scenarios: list[dict[Place, Work]] = [{} for _ in range(count)]
        for place in self.places:
            stage = self.stage(place)
            if stage.completed:
                continue
            live = [r for r in self.requests if self.live[r.id] == place]
            spent_s = 0.0
            for request in live:
                spent_s += self.spent_s(request)
            task = self.tasks[place[0]].id
            support = _support(stage, spent_s)
            draws = stage_draws(support, count, self.state.settings.seed, task, place[1])
            for scenario, left_s in zip(scenarios, draws, strict=True):
                scenario[place] = _divided(left_s, stage.request_s, len(live))
        return scenarios


def _support(stage: Stage, spent_s: float) -> list[float]:
    """Equally likely values of what is left of a stage, given what its requests have had."""
    had_s = stage.service_s + spent_s
    left = [x - stage.service_s for x in stage.totals_s if had_s == 0.0 or x > had_s]
    return sorted(left) or [max(stage.request_s, spent_s + _LEAST_LEFT * stage.request_s)]


def _divided(left_s: float, request_s: float, live: int) -> Work:
    """Divide what is left among requests of about the mean service."""
    nearest = min(left_s / request_s + 0.5, _MOST_REQUESTS) if request_s > 0.0 else 1.0
    requests = max(live, 1, int(nearest))
    return Work(requests, left_s / requests)


class Run:
    """One rollout."""

    def __init__(self, world: World, scenario: int) -> None:
        self.world = world
        self.work = world.scenarios[scenario]
        self.now_s = 0.0
        self.cost = 0.0
        self.room = world.state.settings.kv_capacity_tokens
        self.visits: list[tuple[Place, int]] = []  # stage and reservation
        self.waiting: list[int] = []
        self.ends: list[tuple[float, int]] = []
        self.running: dict[Id, int] = dict.fromkeys(world.state.prefix, 0)
        self.live = dict.fromkeys(world.places, 0)
        self.to_come = {place: work.requests for place, work in self.work.items()}
        self.open = [{v for t, v in self.work if t == task} for task in range(len(world.tasks))]

    def finish(self, move: Move, base: str) -> float:
        """Give the summed powers of the ages at which tasks end."""
        self._take_up(move)
        while self.ends:
            self.now_s = self.ends[0][0]
            while self.ends and self.ends[0][0] == self.now_s:
                self._complete(heappop(self.ends)[1])
            self._admit(base)
        return self.cost

    def _take_up(self, move: Move) -> None:
        """Start from the state after the decision."""
        for request in self.world.requests:
            place = self.world.live[request.id]
            visit = self._visit(place, request.kv_tokens)
            if request.running and request not in move.preempt:
                self._occupy(visit)
                left_s = self.work[place].request_s - self.world.spent_s(request)
                heappush(self.ends, (max(left_s, 0.0), visit))
            else:
                self.waiting.append(visit)
        for request in move.admit:
            self._start(self.world.requests.index(request))
        for place in self.work:
            if self._is_ready(place) and self.live[place] == 0:
                self._release(place)

    def _is_ready(self, place: Place) -> bool:
        return not set(self.world.stage(place).after) & self.open[place[0]]

    def _visit(self, place: Place, kv_tokens: int) -> int:
        self.visits.append((place, kv_tokens))
        self.live[place] += 1
        self.to_come[place] -= 1
        return len(self.visits) - 1

    def _release(self, place: Place) -> None:
        """Have the next request of a stage wait."""
        kv_tokens = self.world.reserved[self.world.stage(place).agent]
        self.waiting.append(self._visit(place, kv_tokens))

    def _agent(self, visit: int) -> Id:
        return self.world.stage(self.visits[visit][0]).agent

    def _needs(self, visit: int) -> int:
        agent = self._agent(visit)
        prefix = 0 if self.running[agent] else self.world.state.prefix[agent]
        return self.visits[visit][1] + prefix

    def _occupy(self, visit: int) -> None:
        self.room -= self._needs(visit)
        self.running[self._agent(visit)] += 1

    def _start(self, visit: int) -> None:
        agent = self._agent(visit)
        load_s = 0.0 if self.running[agent] else self.world.load_s(agent)
        self.waiting.remove(visit)
        self._occupy(visit)
        service_s = self.work[self.visits[visit][0]].request_s
        heappush(self.ends, (self.now_s + (load_s + service_s), visit))

    def _fits(self, visit: int) -> bool:
        limit = self.world.state.settings.max_running_requests
        return self._needs(visit) <= self.room and (limit == 0 or len(self.ends) < limit)

    def _admit(self, base: str) -> None:
        """Admit what waits, in order of arrival, as the base policy says."""
        for only_resident in (True, False) if base == "resident" else (False,):
            for visit in sorted(self.waiting, key=lambda v: (self.visits[v][0], v)):
                there = self.running[self._agent(visit)] > 0
                if (there or not only_resident) and self._fits(visit):
                    self._start(visit)
                elif base == "strict":
                    break

    def _complete(self, visit: int) -> None:
        place = self.visits[visit][0]
        self.running[self._agent(visit)] -= 1
        self.room += self._needs(visit)
        self.live[place] -= 1
        if self.to_come[place] > 0:
            self._release(place)
        elif self.live[place] == 0:
            self._end_stage(place)

    def _end_stage(self, place: Place) -> None:
        task = self.world.tasks[place[0]]
        waited = [v for v in sorted(self.open[place[0]]) if not self._is_ready((place[0], v))]
        self.open[place[0]].remove(place[1])
        if not self.open[place[0]]:
            age_s = max(self.world.state.now - task.arrival, 0.0) + self.now_s
            self.cost += _raised(age_s, self.world.state.settings.rollout_power)
        for v in waited:
            if self._is_ready((place[0], v)) and self.live[place[0], v] == 0:
                self._release((place[0], v))


def _raised(age_s: float, power: float) -> float:
    """Raise an age; by the square root, which is exact to the last bit, where that does."""
    if power == 1.0:
        return age_s
    return age_s * sqrt(age_s) if power == 1.5 else age_s**power


def candidates(scorer: Scorer, base: Allocation) -> list[Move]:
    """List the decisions that are tried, each once, the base first."""
    state = scorer.state
    arrival = {task.id: task.arrival for task in state.tasks.values()}
    able = [r for r in state.waiting if not state.never_fits(r)]
    queue = sorted(able, key=lambda r: (arrival[r.task], id_key(r.id)))
    overdue = [r for r in queue if scorer.is_overdue(r.task)]
    others = queue[len(overdue) :]
    there = {r.agent for r in state.running}
    path_s = {r.task: expected_path(state.tasks[r.task]) for r in queue}
    tried = [
        walk(scorer, queue, strict=True),
        walk(scorer, queue),
        walk(scorer, overdue + sorted(others, key=lambda r: r.agent not in there)),
        walk(scorer, overdue + sorted(others, key=lambda r: path_s[r.task])),
        Move(()),
    ]
    agents = {r.agent for r in state.waiting}
    for agent in sorted(agents, key=id_key):
        tried.append(walk(scorer, queue, {agent}))
        tried.append(walk(scorer, queue, agents - {agent}))
    found = [Move(base.admit, base.preempt)]
    for move in tried:
        serves = move.admit or state.running
        if serves and not any(_same(move, other) for other in found):
            found.append(move)
    return found


def _same(move: Move, other: Move) -> bool:
    return set(move.admit) == set(other.admit) and set(move.preempt) == set(other.preempt)


def walk(
    scorer: Scorer,
    order: Iterable[Request],
    wanted: Collection[Id] | None = None,
    *,
    strict: bool = False,
) -> Move:
    """Admit what fits beside what runs, of these agents; strictly: while it does."""
    state = scorer.state
    there = {r.agent for r in state.running}
    room = state.settings.kv_capacity_tokens - sum(state.prefix[a] for a in there)
    room -= sum(r.kv_tokens for r in state.running)
    slots = state.settings.action_cap or len(state.waiting)
    if state.settings.max_running_requests:
        slots = min(slots, state.settings.max_running_requests - len(state.running))
    admit: list[Request] = []
    for request in order:
        needs = request.kv_tokens + (0 if request.agent in there else state.prefix[request.agent])
        is_wanted = wanted is None or request.agent in wanted
        if is_wanted and needs <= room and slots > 0:
            room -= needs
            slots -= 1
            there.add(request.agent)
            admit.append(request)
        elif strict or scorer.is_overdue(request.task):
            break
    return Move(tuple(admit))


def roll_out(scorer: Scorer, base: Allocation) -> Allocation:
    """Choose among the candidates; the base where none is better by the margin."""
    settings = scorer.state.settings
    moves = candidates(scorer, base)
    if len(moves) == 1:
        return base
    pairs = race(World(scorer.state), moves, settings.rollout_steps or inf)
    if len(pairs) <= len(POLICIES):
        return base
    least = min(_mean(pair.costs) for pair in pairs)
    chosen = next(pair for pair in pairs if tie(_mean(pair.costs), least))
    best_of_base = min((p for p in pairs if p.move is moves[0]), key=lambda p: _sum(p.costs))
    if not _is_better(chosen.costs, best_of_base.costs, settings.rollout_margin):
        return base
    admit = chosen.move.admit
    resident = frozenset(r.agent for r in scorer.state.running + admit)
    gains = tuple(scorer.gain(request, ()) for request in admit)
    terms = scorer.terms(resident, admit, gains, ())
    return Allocation(resident, admit, gains, (), serves=True, terms=terms)


@dataclass
class Pair:
    """A candidate, the base policy that continues it, and its costs by scenario."""

    move: Move
    policy: str
    costs: list[float] = field(default_factory=list)


def race(world: World, moves: Sequence[Move], steps: float) -> list[Pair]:
    """Simulate all candidates under all base policies; those that are behind drop out.

    Returns
    -------
    list of Pair
        Those that are left, in order of candidates, then policies; only the base decision's, and
        without costs, where there are too few steps for a comparison.
    """
    sizes = [sum(work.requests for work in works.values()) for works in world.scenarios]
    most = max(int(steps / 2 // sizes[0] // len(POLICIES)), 1) if steps < inf else len(moves)
    pairs = [Pair(move, policy) for move in moves[:most] for policy in POLICIES]
    staying = len(pairs)
    if most == 1:
        return pairs
    for scenario, size in enumerate(sizes):
        steps -= size * len(pairs)
        if steps < 0:
            break
        for pair in pairs:
            pair.costs.append(Run(world, scenario).finish(pair.move, pair.policy))
        staying //= 2
        if scenario + 1 < len(sizes):
            pairs = _drop(pairs, moves[0], max(LEAST_PAIRS, staying))
    return pairs


def _drop(pairs: list[Pair], base: Move, staying: int) -> list[Pair]:
    """Keep so many pairs with the least costs, and the best of the base decision."""
    order = sorted(range(len(pairs)), key=lambda at: (_sum(pairs[at].costs), at))
    kept = order[:staying]
    if not any(pairs[at].move is base for at in kept):
        kept.append(next(at for at in order if pairs[at].move is base))
    return [pairs[at] for at in sorted(kept)]


def _sum(values: Sequence[float]) -> float:
    """Add from left to right: sum() does not in all versions of Python."""
    total = 0.0
    for value in values:
        total += value
    return total


def _mean(values: Sequence[float]) -> float:
    return _sum(values) / len(values)


def _is_better(costs: Sequence[float], base: Sequence[float], margin: float) -> bool:
    """Say whether costs are less by more than ``margin`` standard errors of the differences."""
    if not (_mean(base) > _mean(costs)) or tie(_mean(base), _mean(costs)):
        return False
    gains = [b - c for b, c in zip(base, costs, strict=True)]
    gain, count = _mean(gains), float(len(gains))
    squares = _sum([(each - gain) * (each - gain) for each in gains])
    error = sqrt(squares / (count - 1.0) / count) if count > 1.0 else 0.0
    return gain > margin * error
