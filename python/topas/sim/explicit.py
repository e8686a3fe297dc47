"""Residency by decision: prefixes enter and leave as the plan says, over one transfer channel."""

from __future__ import annotations

import math
from collections.abc import Mapping

from topas.errors import CapacityError, StateError
from topas.policies.base import Plan
from topas.sim.compute import Compute
from topas.sim.counters import Counters
from topas.sim.memory import Memory
from topas.sim.options import EngineOptions
from topas.sim.pool import KvPool
from topas.sim.prefix import Place, Prefix
from topas.sim.request import Phase, Request

__all__ = ["ExplicitMemory"]


class ExplicitMemory(Memory):
    """Each plan names the resident prefixes, and all its admissions take place.

    Transfers are serialised, leaving prefixes before entering ones, and overlap with compute. A
    leaving prefix holds its memory until it is copied; an admitted request waits until its prefix
    is there and its memory is free, others run meanwhile. A prefix that was never computed has no
    host copy: its memory is taken without a transfer and the agent's first prefill computes it. A
    plan that takes a leaving prefix back, or drops one that is still coming, cancels the transfer.
    """

    def __init__(
        self,
        pool: KvPool,
        prefixes: Mapping[str, Prefix],
        compute: Compute,
        counters: Counters,
        options: EngineOptions,
    ) -> None:
        super().__init__(pool, prefixes, compute, counters, options)
        self._target: frozenset[str] = frozenset()
        self._leaving: list[Prefix] = []
        self._entering: list[Prefix] = []
        self._current: Prefix | None = None
        self._ends_s = math.inf
        self._placing: list[Request] = []
        self._swap_s = compute.costs.swap_s

    def apply(self, now: float, plan: Plan, waiting: dict[int, Request]) -> None:
        """Preempt, move prefixes, admit everything the plan admits."""
        if plan.resident is None:
            raise StateError("the plan names no resident prefixes")
        if plan.advice is not None:
            raise StateError("the plan advises a cache, but names the resident prefixes itself")
        self.check_plan(plan, waiting)
        self.preempt(now, plan.preempt, waiting)
        admitted = [waiting.pop(id_) for id_ in plan.admit]
        for request in admitted:
            self.running[request.id] = request
        self._check_state(plan.resident)
        for agent in sorted(self._target - plan.resident):
            self._drop(self.prefixes[agent])
        entering = [r.agent for r in admitted if r.agent not in self._target]
        for agent in dict.fromkeys(entering):
            self._take(self.prefixes[agent])
        self._count(admitted)
        self._target = plan.resident
        for request in admitted:
            request.phase = Phase.PLACING
            self._placing.append(request)
        self._proceed(now)

    def _check_state(self, resident: frozenset[str]) -> None:
        """The state after the plan, as SPEC section 1 wants it."""
        for agent in resident:
            if agent not in self.prefixes:
                raise StateError(f"the plan names unknown agent {agent!r}")
        agents = {request.agent for request in self.running.values()}
        if agents != resident:
            raise StateError(
                f"the plan's resident prefixes {sorted(resident)} are not those of its requests "
                f"{sorted(agents)}"
            )
        limit = self.options.max_running
        if limit and len(self.running) > limit:
            raise StateError(f"the plan runs {len(self.running)} requests, {limit} are allowed")
        prefixes = sum(self.prefixes[agent].tokens for agent in resident)
        requests = sum(request.reservation for request in self.running.values())
        if prefixes + requests > self.pool.capacity:
            raise CapacityError(
                f"the plan needs {prefixes} tokens for prefixes and {requests} for requests, "
                f"the pool has {self.pool.capacity}"
            )

    def _count(self, admitted: list[Request]) -> None:
        missing = {request.agent for request in admitted} - self._target
        for request in admitted:
            tokens = self.prefixes[request.agent].tokens
            hit = request.agent not in missing
            missing.discard(request.agent)  # the next one finds it on its way
            self.counters.admitted(tokens, hit=hit)

    def _drop(self, prefix: Prefix) -> None:
        """Let a prefix leave the pool."""
        if prefix is self._current:  # still being copied in
            self._current, self._ends_s = None, math.inf
            self._vacate(prefix)
        elif prefix.place is Place.INCOMING:
            self._entering.remove(prefix)
            prefix.place = Place.ABSENT
        elif prefix.computed and self.options.offload_copies:
            prefix.place = Place.LEAVING
            self._leaving.append(prefix)
        else:
            self._vacate(prefix)

    def _take(self, prefix: Prefix) -> None:
        """Let a prefix enter the pool."""
        if prefix.place is Place.LEAVING:  # its KV is still there
            if prefix is self._current:
                self._current, self._ends_s = None, math.inf
            else:
                self._leaving.remove(prefix)
            prefix.place = Place.RESIDENT
        else:
            prefix.place = Place.INCOMING
            self._entering.append(prefix)

    def _vacate(self, prefix: Prefix) -> None:
        self.pool.release(prefix.agent)
        prefix.place, prefix.computed = Place.ABSENT, False

    def next_event(self) -> float:
        """When the transfer under way ends, seconds; infinite if there is none."""
        return self._ends_s

    def handle_event(self, now: float) -> None:
        """The transfer under way has ended; the next one starts."""
        prefix = self._current
        if prefix is None:
            raise StateError("no transfer is under way")
        self._current, self._ends_s = None, math.inf
        self._complete(prefix)
        self._proceed(now)

    def _complete(self, prefix: Prefix) -> None:
        if prefix.place is Place.LEAVING:
            self.counters.offloads += 1
            self._vacate(prefix)
            return
        prefix.place = Place.RESIDENT
        if prefix.known:
            prefix.computed = True
            self.counters.loads += 1
            self.counters.load_tokens += prefix.tokens

    def _proceed(self, now: float) -> None:
        """Start transfers while the channel is free, then place the requests that can be."""
        while self._current is None and (self._leaving or self._entering):
            if self._leaving:
                prefix = self._leaving.pop(0)
                takes = self._swap_s(prefix.tokens)
            else:
                prefix = self._entering.pop(0)
                self.pool.charge(prefix.agent, prefix.tokens)
                takes = self._swap_s(prefix.tokens) if prefix.known else 0.0
            if takes > 0.0:
                self._current, self._ends_s = prefix, now + takes
            else:
                self._complete(prefix)
        self._place()

    def _place(self) -> None:
        still: list[Request] = []
        for request in self._placing:
            there = self.prefixes[request.agent].place is Place.RESIDENT
            if there and request.reservation <= self.pool.free:
                self.pool.charge(request.id, request.reservation)
                self.compute.add(request)
            else:
                still.append(request)
        self._placing = still

    def abort(self, request: Request) -> None:
        """Take the request out of wherever it is."""
        if request.phase is Phase.PLACING:
            self._placing.remove(request)
        super().abort(request)
