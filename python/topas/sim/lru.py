"""Residency by LRU cache, as in SGLang: for the policies that only order requests."""

from __future__ import annotations

from collections.abc import Mapping

from topas.errors import StateError
from topas.policies.base import Plan
from topas.sim.compute import Compute
from topas.sim.counters import Counters
from topas.sim.memory import Memory
from topas.sim.options import EngineOptions
from topas.sim.pool import KvPool
from topas.sim.prefix import Place, Prefix
from topas.sim.request import Request

__all__ = ["LruMemory"]


class LruMemory(Memory):
    """Admission walks the plan's order and stops at the first request that does not fit.

    A prefix stays in the pool after its last request and is evicted, least recently used first and
    whole, when room is needed; one in use never is. A prefix that is missing is computed again.
    Requests of one agent share its prefix, which counts once.
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
        self._idle: dict[str, Prefix] = {}  # resident without users, in the order they became idle

    def apply(self, now: float, plan: Plan, waiting: dict[int, Request]) -> None:
        """Preempt, then admit in order while requests fit."""
        if plan.resident is not None:
            raise StateError(
                "the plan names resident prefixes, but the engine's cache decides them"
            )
        self.check_plan(plan, waiting)
        self.preempt(now, plan.preempt, waiting)
        limit = self.options.max_running or len(self.running) + len(plan.admit)
        for id_ in plan.admit:
            request = waiting[id_]
            if len(self.running) >= limit or not self._make_room(request):
                break
            del waiting[id_]
            self._admit(request)

    def _make_room(self, request: Request) -> bool:
        """Evict idle prefixes until the request fits; nothing is evicted when it cannot fit."""
        prefix = self.prefixes[request.agent]
        need = request.reservation
        need += prefix.tokens if prefix.place is Place.ABSENT else 0
        victims = [idle for idle in self._idle.values() if idle is not prefix]
        if need > self.pool.free + sum(victim.tokens for victim in victims):
            return False
        for victim in victims:
            if need <= self.pool.free:
                break
            del self._idle[victim.agent]
            self.pool.release(victim.agent)
            victim.place, victim.computed = Place.ABSENT, False
        return True

    def _admit(self, request: Request) -> None:
        prefix = self.prefixes[request.agent]
        self.counters.admitted(prefix.tokens, hit=prefix.place is Place.RESIDENT)
        if prefix.place is Place.ABSENT:
            self.pool.charge(prefix.agent, prefix.tokens)
            prefix.place = Place.RESIDENT
        self._idle.pop(prefix.agent, None)
        prefix.users += 1
        self.pool.charge(request.id, request.reservation)
        self.running[request.id] = request
        self.compute.add(request)

    def finish(self, request: Request) -> None:
        """Free the request's memory; its prefix stays, and may be idle now."""
        super().finish(request)
        prefix = self.prefixes[request.agent]
        prefix.users -= 1
        if prefix.users > 0:
            return
        if prefix.computed:
            self._idle[prefix.agent] = prefix
        else:  # given up before its first prefill: there is nothing to keep
            self.pool.release(prefix.agent)
            prefix.place = Place.ABSENT
