"""SPEC section 5: which prefix sets are tried, and which candidate is chosen."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from math import inf

from .pack import Allocation, greedy_pack
from .score import Scorer
from .state import Id, id_key, tie

Agents = frozenset[Id]


class Search:
    """Evaluates prefix sets and remembers each as a candidate."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.active = scorer.state.active
        self.start = scorer.state.resident & frozenset(self.active)
        self.evaluated: dict[Agents, Allocation | None] = {}

    def phi(self, resident: Agents) -> float:
        """Phi(R): the best score under a prefix set, minus infinity when it is infeasible."""
        if resident not in self.evaluated:
            self.evaluated[resident] = greedy_pack(self.scorer, resident)
        allocation = self.evaluated[resident]
        return -inf if allocation is None else allocation.terms.score

    def enumerate_all(self) -> None:
        """Evaluate every subset of the active agents."""
        for size in range(len(self.active) + 1):
            for agents in combinations(self.active, size):
                self.phi(frozenset(agents))

    def bounded(self) -> None:
        """Climb from the resident prefixes, then repair both ends of the climb."""
        reached = self.climb(self.start)
        if self.phi(reached) == -inf:
            state = self.scorer.state
            firm = frozenset(r.agent for r in state.running if self.scorer.is_firm(r))
            reached = self.climb(firm | state.required)
        for base in (self.start, reached):
            self.repair(base)

    def climb(self, resident: Agents) -> Agents:
        """Add agents while that improves: one at a time, and at the first stall one pair."""
        self.phi(resident)  # a candidate even where nothing can be added to it
        pair_tried = False
        while True:
            remaining = [agent for agent in self.active if agent not in resident]
            larger = self.improvement(resident, ({agent} for agent in remaining))
            if larger is None and not pair_tried:
                pair_tried = True
                pairs = combinations(remaining, 2)
                larger = self.improvement(resident, (set(pair) for pair in pairs))
            if larger is None:
                return resident
            resident = larger

    def improvement(self, resident: Agents, additions: Iterable[set[Id]]) -> Agents | None:
        """Find the best of the additions if it beats ``resident`` by more than a tie.

        Additions come in the order of their ids; the first of equal ones is taken.
        """
        grown = [resident | addition for addition in additions]
        feasible = [agents for agents in grown if self.phi(agents) > -inf]
        if not feasible:
            return None
        best = max(map(self.phi, feasible))
        chosen = next(agents for agents in feasible if tie(self.phi(agents), best))
        return chosen if self.beats(self.phi(chosen), self.phi(resident)) else None

    @staticmethod
    def beats(x: float, y: float) -> bool:
        """Say whether a feasible Phi is greater than another by more than a tie."""
        return y == -inf or (x > y and not tie(x, y))

    def repair(self, base: Agents) -> None:
        """Evaluate every drop of one agent, and every swap of one for another."""
        for leaving in base:
            self.phi(base - {leaving})
            for entering in self.active:
                if entering not in base:
                    self.phi(base - {leaving} | {entering})

    def run(self) -> Allocation | None:
        """Search and choose; None when no state at all is feasible."""
        if len(self.active) <= self.scorer.state.settings.enumerate_max_agents:
            self.enumerate_all()
        else:
            self.bounded()
        return choose([found for found in self.evaluated.values() if found is not None])


def choose(candidates: list[Allocation]) -> Allocation | None:
    """Choose the highest score; a state that serves nothing only where there is no other.

    Ties: fewer preemptions, then more admissions, then the smaller sorted agent ids.
    """
    candidates = [c for c in candidates if c.serves] or candidates
    if not candidates:
        return None
    best = max(candidate.terms.score for candidate in candidates)
    tied = [candidate for candidate in candidates if tie(candidate.terms.score, best)]
    return min(tied, key=lambda c: (len(c.preempt), -len(c.admit), [id_key(a) for a in c.agents]))
