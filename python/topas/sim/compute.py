"""The GPU's time: prefills first, one after the other, then decode steps of the whole batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from topas.sim.cost import EngineCosts
from topas.sim.counters import Counters
from topas.sim.prefix import Prefix
from topas.sim.request import Phase, Request

__all__ = ["Compute"]


class Compute:
    """Requests being prefilled or decoded.

    Work is never interrupted inside a prefill or a decode step, so everything else happens at their
    boundaries, as in SGLang's loop.

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
    """

    def __init__(
        self,
        costs: EngineCosts,
        prefixes: Mapping[str, Prefix],
        counters: Counters,
        *,
        coalesce: bool = True,
    ) -> None:
        self.costs = costs
        self._prefixes = prefixes
        self._counters = counters
        self._coalesce = coalesce
        self._prefill: deque[Request] = deque()
        self._batch: list[Request] = []

    @property
    def busy(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self._prefill or self._batch)

    def add(self, request: Request) -> None:
        """Queue a request whose memory is reserved; it is prefilled before the next decode step."""
        request.phase = Phase.PREFILL
        self._prefill.append(request)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is (only at a boundary)."""
        (self._prefill if request.phase is Phase.PREFILL else self._batch).remove(request)

    def advance(self, now: float, until: float) -> tuple[float, list[Request]]:
        """Work to the first boundary at or after ``until``, but at most to the next completion.

        Returns
        -------
        tuple of float and list of Request
            The time reached and the requests that finished then, in the order they joined the
            batch.
        """
        if self._prefill:
            return self._run_prefill(now), []
        context = sum(request.context for request in self._batch)
        batch = len(self._batch)
        left = min(request.output_tokens - request.generated_tokens for request in self._batch)
        steps = 1
        if self._coalesce:
            steps = self.costs.steps_to_reach(until - now, batch, context, left)
        counters = self._counters
        counters.decode_steps += steps
        counters.decode_tokens += steps * batch
        counters.peak_batch = max(counters.peak_batch, batch)
        for request in self._batch:
            request.generated_tokens += steps
        done: list[Request] = []
        if steps == left:
            done = [r for r in self._batch if r.generated_tokens == r.output_tokens]
            self._batch = [r for r in self._batch if r.generated_tokens < r.output_tokens]
            for request in done:
                request.phase = Phase.DONE
        return now + self.costs.decode_s(steps, batch, context), done

    def _run_prefill(self, now: float) -> float:
        request = self._prefill.popleft()
        prefix = self._prefixes[request.agent]
        tokens = request.prefill_tokens
        if not prefix.computed:
            tokens += prefix.tokens
            self._count_prefix(prefix)
            prefix.computed = prefix.known = request.computed_prefix = True
        request.attempt_s = now
        request.phase = Phase.DECODE
        self._batch.append(request)
        return now + self.costs.prefill_s(tokens)

    def _count_prefix(self, prefix: Prefix) -> None:
        if prefix.known:
            self._counters.recomputed_prefixes += 1
            self._counters.recomputed_tokens += prefix.tokens
        else:
            self._counters.cold_prefixes += 1
