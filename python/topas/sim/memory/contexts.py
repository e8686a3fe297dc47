"""What finished or stopped requests leave in the KV pool for the next request of their stage."""

from __future__ import annotations

from collections.abc import Hashable

from topas.sim.memory.pool import KvPool
from topas.sim.memory.prefix import Context
from topas.sim.request import Request

__all__ = ["Contexts"]


class Contexts:
    """The contexts in the pool, one a stage of a task at most.

    Parameters
    ----------
    pool : KvPool
        Where they are held.
    enabled : bool
        Off: nothing is kept.
    """

    def __init__(self, pool: KvPool, *, enabled: bool) -> None:
        self._pool = pool
        self._enabled = enabled
        self._held: dict[Hashable, Context] = {}  # least recently used first
        self.tokens = 0

    def of(self, request: Request) -> Context | None:
        """The context of the request's stage."""
        return self._held.get(request.context_holder)

    def match(self, request: Request) -> int:
        """Tokens of the request's prompt, behind the prefix, that are in the pool; whole pages."""
        context = self.of(request)
        return 0 if context is None else self.usable(request, context)

    def usable(self, request: Request, context: Context) -> int:
        """Tokens of ``context`` that the request need not prefill: whole pages, never all of it."""
        own = context.request == request.id
        same = request.own_tokens if own else request.shared_tokens
        most = min(context.tokens, same, max(request.prefill_tokens - 1, 0))
        return most // self._pool.page_size * self._pool.page_size

    def keep(self, request: Request, tokens: int) -> Context | None:
        """Keep what a request leaves, whose memory has just been freed.

        Returns
        -------
        Context or None
            What is kept; ``None``: nothing.
        """
        if not self._enabled or tokens <= 0:
            return None
        context = Context(
            request.task,
            request.stage_index,
            request.stage,
            request.agent,
            request.id,
            tokens,
        )
        self._pool.charge(context.holder, tokens)
        self._held[context.holder] = context
        self.tokens += self._pool.held(context.holder)
        return context

    def drop(self, context: Context) -> None:
        """Free a context's memory."""
        self.tokens -= self._pool.held(context.holder)
        self._pool.release(context.holder)
        del self._held[context.holder]

    def drop_agent(self, agent: str) -> None:
        """Free the memory of all contexts behind an agent's prefix."""
        for context in [held for held in self._held.values() if held.agent == agent]:
            self.drop(context)

    def make_room(self, tokens: int) -> bool:
        """Give up contexts, least recently used first, until so many tokens are free.

        Returns
        -------
        bool
            Whether they are; if giving up all of them would not do, none is.
        """
        if tokens > self._pool.free + self.tokens:
            return False
        for context in list(self._held.values()):
            if tokens <= self._pool.free:
                break
            self.drop(context)
        return True
