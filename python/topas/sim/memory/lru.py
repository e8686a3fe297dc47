"""Residency by a cache of prefixes, as in SGLang: for the policies that only order requests."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from topas.errors import StateError
from topas.policies.base import Plan, PrefixAdvice
from topas.sim.compute import Compute
from topas.sim.counters import Counters
from topas.sim.memory.base import Memory
from topas.sim.memory.pool import KvPool
from topas.sim.memory.prefix import Context, Place, Prefix
from topas.sim.options import EngineOptions
from topas.sim.request import Phase, Request

__all__ = ["LruMemory"]

_NO_ADVICE = PrefixAdvice()


@dataclass(eq=False)
class _ContextLoad:
    """What a request uses of its stage's context on its way; ``request``: none, it is gone."""

    request: Request | None
    holder: Hashable
    tokens: int


class LruMemory(Memory):
    """Admission walks the plan's order and stops at the first request that does not fit.

    A prefix stays in the pool after its last request and is evicted whole when room is needed; one
    in use never is. Least recently used ones go first, unless the plan's
    :class:`~topas.policies.PrefixAdvice` says otherwise. Requests of one agent share its prefix,
    which counts once. Contexts (:attr:`EngineOptions.reuse_context`) are evicted among the
    prefixes; one was always used before the prefix that it is behind, so it goes before it.

    A prefix that is missing is computed again or, with a host cache
    (:attr:`EngineOptions.host_cache_tokens`), loaded: a copy is made when the prefix is computed
    (write-through, it costs the GPU no time), and a missing prefix whose copy is still there comes
    over one link, loads one after the other, while the requests that wait for it hold their memory
    and others compute. The host's budget is charged when the first request that has the prefix
    ends; until then the prefix cannot leave the pool, so nobody could tell. Contexts of finished
    requests are copied and loaded likewise, each load for the request that wants it.
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
        # Resident without users, in the order they became idle.
        self._idle: dict[Hashable, Prefix | Context] = {}
        self._uncopied: set[str] = set()  # to be computed, not copied to the host yet
        self._advice = _NO_ADVICE
        self._now = 0.0
        self._link: deque[Prefix | _ContextLoad] = deque()  # loads; the first one is under way
        self._load_ends_s = math.inf
        self._placing: list[Request] = []

    def apply(self, now: float, plan: Plan, waiting: dict[int, Request]) -> None:
        """Preempt, then admit in order while requests fit, then prefetch."""
        if plan.resident is not None:
            raise StateError(
                "the plan names resident prefixes, but the engine's cache decides them"
            )
        self.check_plan(plan, waiting)
        self._take_advice(now, plan.advice or _NO_ADVICE)
        self.preempt(now, plan.preempt, waiting)
        self._fresh.clear()
        limit = self.options.max_running or len(self.running) + len(plan.admit)
        for id_ in plan.admit:
            request = waiting[id_]
            if len(self.running) >= limit or not self._make_room(request):
                break
            del waiting[id_]
            self._admit(request)
        self._prefetch()

    def _take_advice(self, now: float, advice: PrefixAdvice) -> None:
        for agent in (*advice.distance, *advice.pinned_until_s, *advice.prefetch):
            if agent not in self.prefixes:
                raise StateError(f"the plan advises on unknown agent {agent!r}")
        self._now, self._advice = max(self._now, now), advice

    def _pinned(self, item: Prefix | Context) -> bool:
        if isinstance(item, Prefix):
            until_s = self._advice.pinned_until_s.get(item.agent, -math.inf)
        else:
            contexts = self._advice.contexts_pinned_until_s
            until_s = contexts.get((item.task, item.stage), -math.inf)
        return until_s > self._now

    def _distance(self, item: Prefix | Context) -> float:
        return self._advice.distance.get(item.agent, math.inf)

    def _victims(self, *, pinned: bool) -> list[Prefix | Context]:
        """What is idle and may go, first ones first; what is pinned last, if at all."""
        victims = [item for item in self._idle.values() if not self._pinned(item)]
        victims.sort(key=self._distance, reverse=True)
        if pinned:
            victims += [item for item in self._idle.values() if self._pinned(item)]
        return victims

    def _make_room(self, request: Request) -> bool:
        """Evict what is idle until the request fits; nothing is evicted when it cannot fit."""
        prefix, context = self.prefixes[request.agent], self.contexts.of(request)
        missing = self.pool.rounded(prefix.tokens) if prefix.place is Place.ABSENT else 0
        own = self.pool.held(context.holder) if context is not None else 0
        victims = [
            item
            for item in self._victims(pinned=not self.running)
            if item is not prefix and item is not context
        ]
        room = self.pool.free + own + self._tokens(victims)
        if self.needed(request) + missing + self.promised() > room:
            return False
        return self._evict(self.pool.rounded(self.held(request)) + missing - own, victims)

    def _tokens(self, items: Iterable[Prefix | Context]) -> int:
        return sum(self.pool.held(item.holder) for item in items)

    def _evict(self, need: int, victims: list[Prefix | Context]) -> bool:
        if need > self.pool.free + self._tokens(victims):
            return False
        for victim in victims:
            if need <= self.pool.free:
                break
            del self._idle[victim.holder]
            if isinstance(victim, Context):
                self.contexts.drop(victim)
            else:
                self.vacate(victim)
        return True

    def evictable(self) -> int:
        """Tokens of all that is idle, pinned or not."""
        return self._tokens(self._idle.values())

    def free_up(self, tokens: int) -> None:
        """Evict what is idle until so many tokens are free, what is pinned last."""
        if tokens > self.pool.free:
            self._evict(tokens, self._victims(pinned=True))

    def _admit(self, request: Request) -> None:
        prefix = self.prefixes[request.agent]
        self.counters.admitted(prefix.tokens, hit=prefix.place is not Place.ABSENT)
        self.host.touch(prefix.agent)
        context = self.contexts.of(request)
        if context is not None:
            del self._idle[context.holder]
            self.take_context(request)
        if prefix.place is Place.ABSENT:
            self._fetch(prefix)
        self._idle.pop(prefix.agent, None)
        prefix.users += 1
        self.pool.charge(request.id, self.held(request))
        self._fresh.add(request.id)
        self.running[request.id] = request
        if context is None and self.reuse_copy(request):
            self._link.append(_ContextLoad(request, request.context_holder, request.reused_tokens))
            self._start_load(self._now)
        self._placing.append(request)
        request.phase = Phase.PLACING
        self._place()

    def _place(self) -> None:
        """Hand over the requests whose prefix and context are there."""
        still: list[Request] = []
        for request in self._placing:
            there = self.prefixes[request.agent].place is Place.RESIDENT
            if there and self._load_of(request) is None:
                self.compute.add(request)
            else:
                still.append(request)
        self._placing = still

    def _load_of(self, request: Request) -> _ContextLoad | None:
        for item in self._link:
            if isinstance(item, _ContextLoad) and item.request is request:
                return item
        return None

    def _fetch(self, prefix: Prefix) -> None:
        """Give a missing prefix its memory; its KV is loaded, or the next prefill computes it."""
        self.pool.charge(prefix.agent, prefix.tokens)
        if prefix.agent in self.host:
            prefix.place = Place.INCOMING
            self._link.append(prefix)
            self._start_load(self._now)
        else:
            prefix.place = Place.RESIDENT
            self._uncopied.add(prefix.agent)

    def _start_load(self, now: float) -> None:
        """Start the first load of the link if none is under way; free ones are done at once."""
        while self._link and self._load_ends_s == math.inf:
            takes = self.compute.costs.swap_s(self._link[0].tokens)
            if takes > 0.0:
                self._load_ends_s = now + takes
            else:
                self._loaded(self._link.popleft())

    def _loaded(self, item: Prefix | _ContextLoad) -> None:
        if isinstance(item, _ContextLoad):
            if item.request is not None:
                self.copy_loaded(item.request)
            return
        item.place, item.computed = Place.RESIDENT, True
        self.counters.loads += 1
        self.counters.load_tokens += item.tokens
        if item.users == 0:  # prefetched, or those who wanted it are gone
            self._idle[item.agent] = item

    def _prefetch(self) -> None:
        """Load advised prefixes while the link has nothing to do.

        One takes free memory and that of idle prefixes which are needed later than it.
        """
        for agent in self._advice.prefetch:
            prefix = self.prefixes[agent]
            if self._link or prefix.place is not Place.ABSENT or agent not in self.host:
                continue
            own = self._distance(prefix)
            later = [idle for idle in self._victims(pinned=False) if self._distance(idle) > own]
            if self._evict(self.pool.rounded(prefix.tokens), later):
                self.counters.prefetches += 1
                self._fetch(prefix)

    def next_event(self) -> float:
        """When the load under way ends or the next pin runs out, seconds; infinite without."""
        advice = self._advice
        pins = (*advice.pinned_until_s.values(), *advice.contexts_pinned_until_s.values())
        ahead = (until for until in pins if until > self._now)
        return min(self._load_ends_s, min(ahead, default=math.inf))

    def handle_event(self, now: float) -> None:
        """A load has ended, or a pin has run out."""
        self._now = max(self._now, now)
        if self._load_ends_s > now:
            return
        self._load_ends_s = math.inf
        self._loaded(self._link.popleft())
        self._start_load(now)
        self._place()

    def resident_tokens(self, agent: str) -> int:
        """Tokens of the agent's prefix in the pool or on the way into it: all of them or 0."""
        prefix = self.prefixes[agent]
        return 0 if prefix.place is Place.ABSENT else prefix.tokens

    def finish(self, request: Request) -> None:
        """Free the request's memory; its prefix stays, and may be idle now."""
        if request.phase is Phase.PLACING:
            self._placing.remove(request)
            self._give_up_load(request)
        super().finish(request)
        prefix = self.prefixes[request.agent]
        if prefix.computed and prefix.agent in self._uncopied:
            self._uncopied.remove(prefix.agent)
            self.host.store(prefix, self.being_read())
        prefix.users -= 1
        if prefix.users == 0:
            self._last_user_left(prefix)

    def _leave_context(self, request: Request) -> Context | None:
        context = super()._leave_context(request)
        if context is not None:
            self._idle[context.holder] = context
        return context

    def being_read(self) -> Sequence[Hashable]:
        """Holders of the copies that are on the link."""
        return [item.holder for item in self._link]

    def _give_up_load(self, request: Request) -> None:
        """The request's context, if it has not come yet, is not needed any more."""
        load = self._load_of(request)
        if load is None:
            return
        request.forget_reuse()
        if load is self._link[0]:  # it is under way and goes on
            load.request = None
        else:
            self._link.remove(load)

    def _last_user_left(self, prefix: Prefix) -> None:
        if prefix.place is Place.INCOMING:
            if prefix is not self._link[0]:  # a load under way goes on
                self._link.remove(prefix)
                self.vacate(prefix)
        elif prefix.computed:
            self._idle[prefix.agent] = prefix
        else:  # given up before its first prefill: there is nothing to keep
            self.vacate(prefix)
