"""Residency by decision: prefixes enter and leave as the plan says, over one transfer channel."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

from topas.errors import CapacityError, StateError
from topas.policies.base import Plan
from topas.sim.compute import Compute
from topas.sim.counters import Counters
from topas.sim.memory.base import Memory
from topas.sim.memory.pool import KvPool
from topas.sim.memory.prefix import Place, Prefix
from topas.sim.options import EngineOptions
from topas.sim.request import Phase, Request

__all__ = ["ExplicitMemory"]


class ExplicitMemory(Memory):
    """Each plan names the resident prefixes, and all its admissions take place.

    The memory that prefixes and reservations leave free holds contexts
    (:attr:`EngineOptions.reuse_context`), which go when a plan needs the room. With
    ``reservation="estimated"`` plans are made with estimated reservations, and the engine's own
    rule comes on top: admitted requests start in the plan's order while they fit, the first that
    does not makes those behind it wait; so do prefixes on their way.

    Transfers are serialised, leaving prefixes before entering ones, and overlap with compute. A
    leaving prefix holds its memory until it is copied; an admitted request waits until its prefix
    is there and its memory is free, others run meanwhile. A prefix without a host copy gets its
    memory without a transfer, and the agent's next prefill computes it. A plan that takes a leaving
    prefix back, or drops one that is still coming, cancels the transfer. Contexts that have copies
    (:attr:`EngineOptions.host_cache_tokens`) come after the prefixes, each for the request that
    wants it and has its memory.
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
        self._loading: list[Request] = []  # whose contexts come
        self._current: Prefix | Request | None = None
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
        self._fresh.clear()
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
        rounded = self.pool.rounded
        prefixes = sum(rounded(self.prefixes[agent].tokens) for agent in resident)
        requests = sum(rounded(request.reservation) for request in self.running.values())
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
        self.contexts.drop_agent(prefix.agent)
        if prefix is self._current:  # still being copied in
            self._current, self._ends_s = None, math.inf
            self.vacate(prefix)
        elif prefix.place is Place.INCOMING:
            self._entering.remove(prefix)
            prefix.place = Place.ABSENT
        elif prefix.computed and self.options.offload_copies:
            prefix.place = Place.LEAVING
            self._leaving.append(prefix)
        elif prefix.place is Place.RESIDENT:
            prefix.copied = prefix.copied or prefix.computed
            self.vacate(prefix)

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

    def next_event(self) -> float:
        """When the transfer under way ends, seconds; infinite if there is none."""
        return self._ends_s

    def handle_event(self, now: float) -> None:
        """The transfer under way has ended; the next one starts."""
        item = self._current
        if item is None:
            raise StateError("no transfer is under way")
        self._current, self._ends_s = None, math.inf
        self._fresh.clear()
        self._complete(item)
        self._proceed(now)

    def _complete(self, item: Prefix | Request) -> None:
        if isinstance(item, Request):
            self.copy_loaded(item)
            self.compute.add(item)
        else:
            self._moved(item)

    def _moved(self, prefix: Prefix) -> None:
        if prefix.place is Place.LEAVING:
            self.counters.offloads += 1
            prefix.copied = True
            self.vacate(prefix)
            return
        prefix.place = Place.RESIDENT
        if prefix.copied:
            prefix.computed = True
            self.counters.loads += 1
            self.counters.load_tokens += prefix.tokens

    def _proceed(self, now: float) -> None:
        """Start transfers while the channel is free, then the requests that can be."""
        if self.estimated:
            self._place()
        self._transfer(now)
        self._place()
        if self._loading:
            self._transfer(now)
        stuck = self._placing and self._current is None and not self._in_pool()
        if stuck and self.estimated and self._target - {self._placing[0].agent}:
            # The prefixes leave no room for any request: all but one wait.
            self.give_up_prefixes(keep=self._placing[0].agent)
            self._proceed(now)

    def _transfer(self, now: float) -> None:
        """Start transfers while the channel is free; those that take no time are done at once."""
        while self._current is None and (self._leaving or self._entering or self._loading):
            item: Prefix | Request
            if self._leaving:
                item = self._leaving.pop(0)
                tokens = item.tokens
            elif self._entering and self._enters(self._entering[0]):
                item = self._entering.pop(0)
                self.pool.charge(item.agent, item.tokens)
                tokens = item.tokens if item.copied else 0
            elif self._loading:
                item = self._loading.pop(0)
                tokens = item.reused_tokens
            else:
                break
            takes = self._swap_s(tokens)
            if takes > 0.0:
                self._current, self._ends_s = item, now + takes
            else:
                self._complete(item)

    def being_read(self) -> Sequence[Hashable]:
        """Holders of the copies of contexts that come, or are to come."""
        coming = [*self._loading, *([self._current] if self._current is not None else [])]
        return [item.context_holder for item in coming if isinstance(item, Request)]

    def _in_pool(self, agent: str | None = None) -> bool:
        """Whether any request (of the agent) holds memory."""
        return any(
            request.id in self.pool
            for request in self.running.values()
            if agent is None or request.agent == agent
        )

    def _enters(self, prefix: Prefix) -> bool:
        """Whether there is room for an entering prefix, which contexts make if they can."""
        tokens = self.pool.rounded(prefix.tokens)
        beside = self.promised() if self._in_pool() else 0.0
        if tokens + beside > self.pool.free + self.contexts.tokens:
            return False
        return self.contexts.make_room(tokens)

    def _place(self) -> None:
        """Start the placed requests that fit; by the engine's own rule none goes past another."""
        still: list[Request] = []
        blocked = False
        for request in self._placing:
            there = self.prefixes[request.agent].place is Place.RESIDENT
            if there and not blocked and self._fits(request):
                self._start(request)
            else:
                still.append(request)
                blocked = blocked or (there and self.estimated)
        self._placing = still

    def _fits(self, request: Request) -> bool:
        room = self.pool.free + self.contexts.tokens
        if self.needed(request) + self.promised() <= room:
            return True
        if not self.estimated or self._in_pool():
            return False
        return self.pool.rounded(request.own_tokens + 1) <= room  # it is alone, and may retract

    def _start(self, request: Request) -> None:
        kept = self.contexts.of(request) is not None
        self.take_context(request)
        self.contexts.make_room(self.pool.rounded(self.held(request)))
        self.pool.charge(request.id, self.held(request))
        self._fresh.add(request.id)
        if not kept and self.reuse_copy(request):
            self._loading.append(request)
        else:
            self.compute.add(request)

    def evictable(self) -> int:
        """Tokens of all contexts."""
        return self.contexts.tokens

    def free_up(self, tokens: int) -> None:
        """Give up contexts until so many tokens are free."""
        self.contexts.make_room(tokens)

    def give_up_prefixes(self, keep: str | None = None) -> None:
        """Free the memory of prefixes that no request in the pool uses.

        One that an admitted request waits for comes again when there is room; from the host if it
        has a copy.

        Parameters
        ----------
        keep : str, optional
            An agent whose prefix stays.
        """
        wanted = {request.agent for request in self._placing}
        for prefix in self.prefixes.values():
            agent = prefix.agent
            if agent == keep or agent not in self.pool or self._in_pool(agent):
                continue
            if prefix is self._current:
                self._current, self._ends_s = None, math.inf
            elif prefix.place is Place.LEAVING:
                self._leaving.remove(prefix)
            self.contexts.drop_agent(agent)
            self.vacate(prefix)
            if agent in wanted:
                prefix.place = Place.INCOMING
                self._entering.append(prefix)
            else:
                self._target -= {agent}

    def abort(self, request: Request) -> None:
        """Take the request out of wherever it is."""
        if request is self._current:
            self._current, self._ends_s = None, math.inf
            request.forget_reuse()
        elif request in self._loading:
            self._loading.remove(request)
            request.forget_reuse()
        elif request.phase is Phase.PLACING:
            self._placing.remove(request)
        super().abort(request)
