"""What decides where prefixes are: the interface of the two kinds of residency."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from topas.errors import StateError
from topas.policies.base import Plan
from topas.sim.compute import Compute
from topas.sim.counters import Counters
from topas.sim.options import EngineOptions
from topas.sim.pool import KvPool
from topas.sim.prefix import Place, Prefix
from topas.sim.request import Phase, Request

__all__ = ["Memory"]


class Memory(ABC):
    """Applies plans: admits and preempts requests under the KV budget, and moves prefixes.

    Parameters
    ----------
    pool : KvPool
        The KV pool.
    prefixes : mapping
        Prefix by agent.
    compute : Compute
        Gets the requests whose prefix and memory are there.
    counters, options
        Of the run.
    """

    def __init__(
        self,
        pool: KvPool,
        prefixes: Mapping[str, Prefix],
        compute: Compute,
        counters: Counters,
        options: EngineOptions,
    ) -> None:
        self.pool = pool
        self.prefixes = prefixes
        self.compute = compute
        self.counters = counters
        self.options = options
        self.running: dict[int, Request] = {}

    @abstractmethod
    def apply(self, now: float, plan: Plan, waiting: dict[int, Request]) -> None:
        """Carry out a plan; admitted requests leave ``waiting``, preempted ones enter it.

        Raises
        ------
        StateError
            The plan names a request twice or one that is not waiting (running), or breaks a rule
            of its kind of residency.
        CapacityError
            The plan does not fit into the pool.
        """

    def finish(self, request: Request) -> None:
        """A running request is done and out of compute; its memory is free."""
        del self.running[request.id]
        if request.phase is not Phase.PLACING:
            self.pool.release(request.id)

    def abort(self, request: Request) -> None:
        """A running request is given up or preempted, wherever it is; its memory is free."""
        if request.phase in (Phase.PREFILL, Phase.DECODE):
            self.compute.remove(request)
        self.finish(request)

    def next_event(self) -> float:
        """When something changes here by itself, e.g. a transfer ends; seconds, or infinite."""
        return math.inf

    def handle_event(self, now: float) -> None:
        """What :meth:`next_event` foretold happens."""
        raise StateError("no transfer is under way")

    def resident_tokens(self, agent: str) -> int:
        """Tokens of the agent's prefix in the pool: all of them or 0."""
        prefix = self.prefixes[agent]
        return prefix.tokens if prefix.place is Place.RESIDENT else 0

    def check_plan(self, plan: Plan, waiting: Mapping[int, Request]) -> None:
        """Refuse a plan with unknown or repeated requests."""
        for what, ids, table in (
            ("admits", plan.admit, waiting),
            ("preempts", plan.preempt, self.running),
        ):
            if len(set(ids)) != len(ids):
                raise StateError(f"the plan {what} a request twice: {list(ids)}")
            for id_ in ids:
                if id_ not in table:
                    raise StateError(f"the plan {what} request {id_}, which is not there to be")

    def preempt(self, now: float, ids: Sequence[int], waiting: dict[int, Request]) -> None:
        """Stop running requests; their memory is free at once, and they wait again."""
        for id_ in ids:
            request = self.running[id_]
            self.counters.preemptions += 1
            if self.options.redo_model != "kept":
                self.counters.redone_tokens += request.generated_tokens
            self.abort(request)
            request.suspend(now, self.options.redo_model)
            waiting[id_] = request
