"""The GPU's time: what of prefills and decode steps shares a batch, and what waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from topas.sim.cost import EngineCosts
from topas.sim.counters import Counters
from topas.sim.memory.prefix import Prefix
from topas.sim.options import Batching, InBatchPrefixes
from topas.sim.request import Phase, Request

__all__ = ["Compute", "Growth"]


class Growth(Protocol):
    """Memory that requests take as they generate."""

    def steps_that_fit(self, batch: Sequence[Request], most: int) -> int:
        """Decode steps of the batch that have memory, at most ``most``."""

    def grow(self, batch: Sequence[Request], steps: int) -> None:
        """Take the memory of so many decode steps, which fit."""


class Compute:
    """Requests being prefilled or decoded.

    Work is never interrupted inside a batch, so everything else happens at the boundaries between
    batches, as in SGLang's loop. Prefills are computed in the order they were added; a prefix comes
    before the tokens of the request that computes it, and later requests of its agent use it.

    Parameters
    ----------
    costs : EngineCosts
        What prefills and steps take.
    prefixes : mapping
        Prefix by agent; the first prefill of an agent whose prefix is not computed computes it.
    counters : Counters
        Where batches and recomputed prefixes are counted.
    coalesce : bool
        Advance many steps at once. Exact: the step times of an unchanged batch are an arithmetic
        series.
    batching : {"prefill-first", "chunked", "mixed"}
        See :class:`topas.sim.EngineOptions`.
    chunked_prefill_tokens : int
        Most tokens of a batch with prefills, unless ``batching`` is ``prefill-first``.
    in_batch_prefixes : {"shared", "deferred", "repeated"}
        See :class:`topas.sim.EngineOptions`.

    Attributes
    ----------
    growth : Growth or None
        Where decode steps take memory; ``None``: they have it already. Whoever calls
        :meth:`advance` sees to it that one step fits.
    """

    def __init__(
        self,
        costs: EngineCosts,
        prefixes: Mapping[str, Prefix],
        counters: Counters,
        *,
        coalesce: bool = True,
        batching: Batching = "prefill-first",
        chunked_prefill_tokens: int = 8192,
        in_batch_prefixes: InBatchPrefixes = "shared",
    ) -> None:
        self.growth: Growth | None = None
        self.costs = costs
        self._prefixes = prefixes
        self._counters = counters
        self._coalesce = coalesce
        self._batching = batching
        self._chunk = chunked_prefill_tokens
        self._in_batch = in_batch_prefixes
        self._prefill: deque[Request] = deque()
        self._batch: list[Request] = []

    @property
    def busy(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self._prefill or self._batch)

    @property
    def decoding(self) -> Sequence[Request]:
        """The requests whose next decode step comes with the next batch, if it has one."""
        return () if self._prefill and self._batching != "mixed" else tuple(self._batch)

    def add(self, request: Request) -> None:
        """Queue a request whose memory is reserved; its prefill starts with the next batches."""
        request.phase = Phase.PREFILL
        self._prefill.append(request)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is (only at a boundary); a prefix it was at is lost."""
        if request.phase is not Phase.PREFILL:
            self._batch.remove(request)
            return
        self._prefill.remove(request)
        if request.attempt_s is not None:
            self._prefixes[request.agent].prefilled_tokens = 0

    def advance(self, now: float, until: float) -> tuple[float, list[Request]]:
        """Work to the first boundary at or after ``until``, but at most to the next completion.

        Returns
        -------
        tuple of float and list of Request
            The time reached and the requests that finished then, in the order they joined the
            batch.
        """
        if not self._prefill:
            return self._decode(now, until)
        if self._batching == "mixed" and self._batch:
            return self._mix(now)
        return now + self.costs.prefill_s(self._prefill_batch(now, self._chunk)), []

    def _decode(self, now: float, until: float) -> tuple[float, list[Request]]:
        context = sum(request.context for request in self._batch)
        batch = len(self._batch)
        left = min(request.output_tokens - request.generated_tokens for request in self._batch)
        steps = 1
        if self.growth is not None:
            left = self.growth.steps_that_fit(self._batch, left)
        if self._coalesce:
            steps = self.costs.steps_to_reach(until - now, batch, context, left)
        return now + self.costs.decode_s(steps, batch, context), self._generate(steps)

    def _mix(self, now: float) -> tuple[float, list[Request]]:
        """One decode step of the batch, and a chunk beside it.

        The decoded tokens count into the chunk, as in SGLang, but one token of prefill always goes.
        The step has no fixed cost of a prefill: the weights are read once for both.
        """
        context = sum(request.context for request in self._batch)
        batch = len(self._batch)
        done = self._generate(1)
        tokens = self._prefill_batch(now, max(self._chunk - batch, 1))
        step_s = self.costs.decode_s(1, batch, context) + self.costs.prefill_s_per_token * tokens
        return now + step_s, done

    def _generate(self, steps: int) -> list[Request]:
        """Let each request of the batch generate tokens; those that are done leave it."""
        if self.growth is not None:
            self.growth.grow(self._batch, steps)
        counters = self._counters
        counters.decode_steps += steps
        counters.decode_tokens += steps * len(self._batch)
        counters.peak_batch = max(counters.peak_batch, len(self._batch))
        for request in self._batch:
            request.generated_tokens += steps
        done = [r for r in self._batch if r.generated_tokens == r.output_tokens]
        if done:
            self._batch = [r for r in self._batch if r.generated_tokens < r.output_tokens]
            for request in done:
                request.phase = Phase.DONE
        return done

    def _prefill_batch(self, now: float, budget: int) -> int:
        """Prefill from the queue; requests that are through join the batch.

        ``prefill-first`` computes the first request whatever its length; else requests are taken
        until the budget is spent, and the last one may be cut.

        Returns
        -------
        int
            Tokens computed.
        """
        whole = self._batching == "prefill-first"
        taken = 0
        started: dict[str, int] = {}  # what was missing of the prefixes that this batch computes
        deferred: list[Request] = []
        while self._prefill:
            request = self._prefill[0]
            if self._in_batch == "deferred" and request.agent in started:
                deferred.append(self._prefill.popleft())
                continue
            missing = self._missing(request)
            repeated = self._repeated(request, started)
            left = missing + repeated + request.prefill_tokens - request.prefilled_tokens
            part = left if whole else min(left, budget - taken)
            if left > 0 and part == 0:
                break
            if missing > 0:
                started[request.agent] = missing
            if request.attempt_s is None:
                request.attempt_s = now
                request.repeated_tokens = repeated
                self._counters.repeated_prefix_tokens += repeated
            self._compute(request, part)
            taken += part
            if part < left:
                break
            self._prefill.popleft()
            request.phase = Phase.DECODE
            self._batch.append(request)
            if whole:
                break
        if deferred:
            cut = [self._prefill.popleft()] if self._prefill and self._is_cut() else []
            self._prefill.extendleft(reversed([*cut, *deferred]))
        self._counters.prefill_tokens += taken
        return taken

    def _is_cut(self) -> bool:
        """Whether a part of the first request in the queue is computed."""
        return self._prefill[0].attempt_s is not None

    def _missing(self, request: Request) -> int:
        """Tokens of the prefix that the request has still to compute, for all."""
        prefix = self._prefixes[request.agent]
        return 0 if prefix.computed else prefix.tokens - prefix.prefilled_tokens

    def _repeated(self, request: Request, started: Mapping[str, int]) -> int:
        """Tokens of the prefix that the request has still to compute for itself alone."""
        if self._in_batch == "repeated" and request.attempt_s is None:
            return started.get(request.agent, 0)
        return request.repeated_tokens

    def _compute(self, request: Request, tokens: int) -> None:
        """Compute the next tokens of a request, those of a missing prefix first."""
        prefix = self._prefixes[request.agent]
        if not prefix.computed:
            part = min(tokens, prefix.tokens - prefix.prefilled_tokens)
            prefix.prefilled_tokens += part
            tokens -= part
            if prefix.prefilled_tokens == prefix.tokens:
                self._count_prefix(prefix)
                prefix.computed = prefix.known = request.computed_prefix = True
                prefix.prefilled_tokens = 0
        repeated = min(tokens, request.repeated_tokens)
        request.repeated_tokens -= repeated
        request.prefilled_tokens += tokens - repeated

    def _count_prefix(self, prefix: Prefix) -> None:
        if prefix.known:
            self._counters.recomputed_prefixes += 1
            self._counters.recomputed_tokens += prefix.tokens
        else:
            self._counters.cold_prefixes += 1
