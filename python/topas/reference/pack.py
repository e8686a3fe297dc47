"""SPEC section 4: GreedyPack, which finds the requests to serve under a given prefix set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf

from .score import Scorer, Terms
from .state import Id, Request, id_key, tie


@dataclass(frozen=True)
class Allocation:
    """A feasible state: resident prefixes, admissions in order with their gains, preemptions."""

    resident: frozenset[Id]
    admit: tuple[Request, ...]
    gains: tuple[float, ...]
    preempt: tuple[Request, ...]
    serves: bool
    terms: Terms

    @cached_property
    def agents(self) -> list[Id]:
        """Sorted ids of the resident prefixes."""
        return sorted(self.resident, key=id_key)


class Packing:
    """One run of GreedyPack: what is admitted so far and the room that is left."""

    def __init__(self, scorer: Scorer, resident: frozenset[Id]) -> None:
        state, settings = scorer.state, scorer.state.settings
        self.scorer = scorer
        self.resident = resident
        self.kept = [r for r in state.running if r.agent in resident]
        self.preempt = [r for r in state.running if r.agent not in resident]
        self.waiting = [r for r in state.waiting if r.agent in resident]
        self.admit: list[Request] = []
        self.ended = False  # nothing may overtake what is next and does not fit
        self.gains: list[float] = []
        self.room = settings.kv_capacity_tokens - sum(state.prefix[a] for a in resident)
        self.room -= sum(r.kv_tokens for r in self.kept)
        self.slots = settings.action_cap or len(state.waiting)
        if settings.max_running_requests:
            self.slots = min(self.slots, settings.max_running_requests - len(self.kept))
        self.reserved = self._reserve()

    def _reserve(self) -> dict[Id, int]:
        """Smallest reservation among the waiting requests of each uncovered agent."""
        covered = {r.agent for r in self.kept}
        smallest: dict[Id, int] = {}
        for r in self.waiting:
            if r.agent not in covered:
                smallest[r.agent] = min(smallest.get(r.agent, r.kv_tokens), r.kv_tokens)
        return smallest

    def feasible(self) -> bool:
        """Say whether the prefix set can be served at all, within capacity, slots and cap."""
        cap = self.scorer.state.settings.action_cap
        served = {r.agent for r in self.kept} | self.reserved.keys()
        return (
            served == self.resident
            and self.scorer.state.required <= self.resident
            and not any(self.scorer.is_firm(r) for r in self.preempt)
            and (cap == 0 or len(self.preempt) <= cap)
            and len(self.reserved) <= self.slots
            and sum(self.reserved.values()) <= self.room
        )

    def fits(self, request: Request) -> bool:
        """Say whether the other uncovered agents can still be served after ``request``."""
        others = [c for agent, c in self.reserved.items() if agent != request.agent]
        return self.slots > len(others) and request.kv_tokens + sum(others) <= self.room

    @property
    def completions(self) -> list[Request]:
        """H: what counts as completed."""
        kept = self.kept if self.scorer.state.settings.count_running else []
        return [*self.admit, *kept]

    def best_request(self) -> tuple[Request, float] | None:
        """Choose the fitting request of the largest gain per reserved token; also give its gain."""
        done = self.completions
        if self.scorer.state.settings.admit_order == "arrival":
            request = self.next_in_turn()
            return None if request is None else (request, self.scorer.gain(request, done))
        fitting = [(r, self.scorer.gain(r, done)) for r in self.waiting if self.fits(r)]
        if not fitting:
            return None
        densest = max(gain / r.kv_tokens for r, gain in fitting)
        tied = [(r, gain) for r, gain in fitting if tie(gain / r.kv_tokens, densest)]
        return min(tied, key=lambda choice: self._preference(choice[0]))

    def next_in_turn(self) -> Request | None:
        """Find the earliest request that fits, past those that may be overtaken."""
        arrival = {r.id: self.scorer.state.tasks[r.task].arrival for r in self.waiting}
        for request in sorted(self.waiting, key=lambda r: (arrival[r.id], id_key(r.id))):
            if self.fits(request):
                return request
            if self.scorer.is_overdue(request.task):
                self.ended = True
                break
        return None

    def _preference(self, request: Request) -> tuple[bool, float, tuple[int, int, bytes]]:
        """Tie rule: a represented task first, then the earlier task, then the smaller id."""
        represented = any(other.task == request.task for other in self.admit)
        arrival = self.scorer.state.tasks[request.task].arrival
        return (not represented, arrival, id_key(request.id))

    def take(self, request: Request, gain: float) -> None:
        """Admit a request."""
        self.waiting.remove(request)
        self.admit.append(request)
        self.gains.append(gain)
        self.room -= request.kv_tokens
        self.slots -= 1
        self.reserved.pop(request.agent, None)

    def demand(self, agent: Id) -> tuple[float, int]:
        """Sum what the fitting requests of an agent outside would gain; also count its requests."""
        waiting = [r for r in self.scorer.state.waiting if r.agent == agent]
        room = self.room - self.scorer.state.prefix[agent]
        gains = [self.scorer.gain(r, self.completions) for r in waiting if r.kv_tokens <= room]
        return (sum(gains, 0.0) if gains else -inf, len(waiting))

    def most_wanted(self) -> Id | None:
        """Choose the agent outside, none of its requests preempted, that is in most demand."""
        preempted = {r.agent for r in self.preempt}
        agents = {r.agent for r in self.scorer.state.waiting} - self.resident - preempted
        demands = {agent: self.demand(agent) for agent in agents}
        fitting = {agent: demand for agent, demand in demands.items() if demand[0] > -inf}
        if not fitting or self.slots < 1 or self.ended:
            return None
        greatest = max(gain for gain, _ in fitting.values())
        tied = [agent for agent, (gain, _) in fitting.items() if tie(gain, greatest)]
        return min(tied, key=lambda agent: (-fitting[agent][1], id_key(agent)))

    def join(self, agent: Id) -> None:
        """Take an agent into the set."""
        self.resident |= {agent}
        self.room -= self.scorer.state.prefix[agent]
        self.waiting += [r for r in self.scorer.state.waiting if r.agent == agent]

    def allocation(self) -> Allocation:
        """Score the present allocation."""
        terms = self.scorer.terms(self.resident, self.admit, self.gains, self.preempt)
        return Allocation(
            resident=self.resident,
            admit=tuple(self.admit),
            gains=tuple(self.gains),
            preempt=tuple(self.preempt),
            serves=bool(self.kept or self.admit),
            terms=terms,
        )


def emissions(scorer: Scorer, resident: frozenset[Id]) -> Iterator[Allocation]:
    """Yield every allocation GreedyPack passes through that covers the whole prefix set."""
    packing = Packing(scorer, resident)
    if not packing.feasible():
        return
    if not packing.reserved:
        yield packing.allocation()
    while (choice := packing.best_request()) is not None:
        packing.take(*choice)
        if not packing.reserved:
            yield packing.allocation()


def fill(scorer: Scorer, chosen: Allocation) -> Allocation:
    """Use the room that the chosen state leaves, in its set and outside (`work_conserving`)."""
    packing = Packing(scorer, chosen.resident)
    while True:
        while (choice := packing.best_request()) is not None:
            packing.take(*choice)
        if (agent := packing.most_wanted()) is None:
            return packing.allocation()
        packing.join(agent)


def greedy_pack(scorer: Scorer, resident: frozenset[Id]) -> Allocation | None:
    """Phi(R): the best allocation emitted, the fullest among equals; None when infeasible."""
    found = list(emissions(scorer, resident))
    if not found:
        return None
    best = max(allocation.terms.score for allocation in found)
    return [allocation for allocation in found if tie(allocation.terms.score, best)][-1]
