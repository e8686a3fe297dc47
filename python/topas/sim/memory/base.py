"""What decides where prefixes are: the interface of the two kinds of residency."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence

from topas.errors import StateError
from topas.policies.base import Plan
from topas.sim.compute import Compute
from topas.sim.counters import Counters
from topas.sim.memory.admission import NewTokenRatio
from topas.sim.memory.contexts import Contexts
from topas.sim.memory.host import HostCache
from topas.sim.memory.pool import KvPool
from topas.sim.memory.prefix import Context, Place, Prefix
from topas.sim.options import EngineOptions
from topas.sim.request import Phase, Request

__all__ = ["Memory"]


class Memory(ABC):
    """Applies plans: admits and preempts requests under the KV budget, and moves prefixes.

    With ``reservation="estimated"`` it is also where decode steps take their memory
    (:class:`topas.sim.compute.Growth`), and says which requests are retracted when there is none.

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
        self.contexts = Contexts(pool, enabled=options.reuse_context)
        self.host = HostCache(options.host_cache_tokens)
        self.ratio = NewTokenRatio(options)
        self._fresh: set[int] = set()  # requests admitted in the present pass
        self.estimated = options.reservation == "estimated"
        if self.estimated:
            compute.growth = self

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

    @abstractmethod
    def evictable(self) -> int:
        """Tokens that decoding requests can take from what nobody uses."""

    @abstractmethod
    def free_up(self, tokens: int) -> None:
        """Evict what nobody uses until so many tokens are free; they are at most evictable."""

    def give_up_prefixes(self) -> None:  # noqa: B027
        """Free the memory of prefixes that no request in the pool uses, whatever is lost."""

    # -- what requests hold, and whether one more fits

    def reserved(self, input_tokens: int, max_new: int) -> int:
        """Tokens reserved for the generation of a request that comes now, as policies see it.

        Input and reservation make whole pages; at least one token is reserved.
        """
        if self.estimated:
            most = min(max_new, self.options.clip_max_new_tokens)
            max_new = min(int(most * self.ratio.value) + 1, max_new)
        return self.pool.rounded(input_tokens + max_new) - input_tokens

    def held(self, request: Request) -> int:
        """Tokens that the request takes when it is admitted, apart from its prefix."""
        return request.own_tokens if self.estimated else request.reservation

    def needed(self, request: Request) -> int:
        """Tokens that must be there to admit the request, apart from its prefix; whole pages."""
        if not self.estimated:
            return self.pool.rounded(request.reservation)
        return self.pool.rounded(request.own_tokens + self._most(request))

    def promised(self) -> float:
        """Tokens that the requests in the pool are expected to generate yet.

        Those of the present pass count in full.
        """
        if not self.estimated:
            return 0.0
        there = [r for r in self.running.values() if r.id in self.pool]
        fresh = sum(self._most(r) for r in there if r.id in self._fresh)
        return fresh + self.ratio.value * sum(
            self._most(r) for r in there if r.id not in self._fresh
        )

    def _most(self, request: Request) -> int:
        return min(request.remaining_tokens, self.options.clip_max_new_tokens)

    # -- growth and retraction

    def steps_that_fit(self, batch: Sequence[Request], most: int) -> int:
        """Decode steps of the batch that have memory, at most ``most``."""
        room = self.pool.free + self.evictable()
        if self._growth(batch, most) <= room:
            return most
        return bisect_right(range(most + 1), room, key=lambda steps: self._growth(batch, steps)) - 1

    def _growth(self, batch: Sequence[Request], steps: int) -> int:
        return sum(
            self.pool.rounded(request.own_tokens + steps) - self.pool.held(request.id)
            for request in batch
        )

    def grow(self, batch: Sequence[Request], steps: int) -> None:
        """Take the memory of so many decode steps, which fit."""
        self.free_up(self._growth(batch, steps))
        for request in batch:
            self.pool.resize(request.id, request.own_tokens + steps)
        self.ratio.decoded(steps)

    def next_retraction(self, *, begun: bool) -> Request | None:
        """The request to retract so that the next decode step has memory, if it has none.

        As SGLang: the one with the fewest generated tokens, then the longest prompt, then the last
        one; once begun, until the others have room for several steps. One stays; if that has no
        memory for a step, prefixes and then requests that do not decode yet go, the last one first.

        Parameters
        ----------
        begun : bool
            Whether a request has been retracted just now.

        Raises
        ------
        StateError
            The last request has no memory although nothing else holds any.
        """
        batch = self.compute.decoding
        if not self.estimated or not batch:
            return None
        steps = self.options.retract_decode_steps if begun else 1
        if self.steps_that_fit(batch, steps) == steps:
            return None
        if len(batch) > 1:
            return min(reversed(batch), key=_retraction_order)
        self.give_up_prefixes()
        if self.steps_that_fit(batch, 1) == 1:
            return None
        others = [
            request
            for request in self.running.values()
            if request is not batch[0] and request.id in self.pool
        ]
        if not others:
            last = batch[0]
            raise StateError(
                f"request {last.id} (task {last.task!r}, stage {last.stage!r}) cannot go on: it "
                f"has {last.own_tokens} tokens behind a prefix of {last.prefix_tokens}, "
                f"{self.pool.used} of {self.pool.capacity} KV tokens are in use"
            )
        return others[-1]

    def retract(self, now: float, request: Request, waiting: dict[int, Request]) -> None:
        """Stop a running request for want of memory; it waits again.

        Its generated tokens are kept and prefilled with its input, as in SGLang.
        """
        self.counters.retractions += 1
        self.counters.retracted_tokens += request.generated_tokens
        self.abort(request)
        request.suspend(now, "prefill")
        request.prefill_tokens = request.own_tokens
        rest = self.reserved(request.own_tokens, request.remaining_tokens)
        request.max_new_tokens = request.generated_tokens + rest
        waiting[request.id] = request

    # -- contexts

    def take_context(self, request: Request) -> None:
        """What the request can use of its stage's context becomes its own, the rest is freed."""
        context = self.contexts.of(request)
        if context is None:
            return
        usable = self.contexts.usable(request, context)
        self.contexts.drop(context)
        request.reuse(usable)
        self.counters.reused_tokens += usable

    def reuse_copy(self, request: Request) -> bool:
        """Have the request wait for what the host has of its stage's context.

        Returns
        -------
        bool
            Whether there is anything to load: ``request.reused_tokens``.
        """
        copy = Context(request.task, request.stage_index, request.stage, request.agent, 0, 0)
        copy.tokens = self.host.tokens_of(copy.holder)
        usable = self.contexts.usable(request, copy)
        if usable <= 0:
            return False
        self.host.touch(copy.holder)
        request.reuse(usable)
        return True

    def copy_loaded(self, request: Request) -> None:
        """The request's context has come from the host."""
        self.counters.context_loads += 1
        self.counters.load_tokens += request.reused_tokens
        self.counters.reused_tokens += request.reused_tokens

    @abstractmethod
    def being_read(self) -> Sequence[Hashable]:
        """Holders of the copies that are being loaded, or are to be."""

    def _leave_context(self, request: Request) -> Context | None:
        """Keep what a request leaves behind: all of one that is done, else the computed prompt."""
        if request.phase is Phase.DONE:
            context = self.contexts.keep(request, request.own_tokens)
            if context is not None:
                self.host.store(context, self.being_read())
            return context
        if self.options.redo_model == "kept" or not self.prefixes[request.agent].computed:
            return None
        return self.contexts.keep(request, request.reused_tokens + request.prefilled_tokens)

    # -- how requests end

    def finish(self, request: Request) -> None:
        """A running request is done and out of compute; its memory is free."""
        del self.running[request.id]
        if request.id in self.pool:
            self.pool.release(request.id)
            self._leave_context(request)

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

    def vacate(self, prefix: Prefix) -> None:
        """Take a prefix out of the pool; its memory is free."""
        self.pool.release(prefix.agent)
        prefix.place, prefix.computed = Place.ABSENT, False

    def resident_tokens(self, agent: str) -> int:
        """Tokens of the agent's prefix in the pool: all of them or 0."""
        prefix = self.prefixes[agent]
        return prefix.tokens if prefix.place is Place.RESIDENT else 0

    def cached_tokens(self, request: Request) -> int:
        """Tokens of the request's prompt in the pool: its prefix and of its stage's context."""
        return self.resident_tokens(request.agent) + self.contexts.match(request)

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


def _retraction_order(request: Request) -> tuple[int, int]:
    return request.generated_tokens, -(request.prefix_tokens + request.input_tokens)
