"""Who was in the engine, from when to when."""

from __future__ import annotations

from topas.sim.memory.base import Memory
from topas.sim.request import Request
from topas.sim.result import Span

__all__ = ["Timeline"]


class Timeline:
    """Writes a span for each stay of a request in the engine.

    Parameters
    ----------
    spans : list of Span
        Where they go, in the order in which the stays end.
    """

    def __init__(self, spans: list[Span]) -> None:
        self._spans = spans
        self._admitted_s: dict[int, float] = {}

    def before_plan(self, now: float, memory: Memory, preempted: list[int]) -> None:
        """A plan is about to be carried out: the running requests that it preempts leave."""
        for id_ in preempted:
            if id_ in memory.running:
                self.left(now, memory.running[id_])

    def after_plan(self, now: float, memory: Memory) -> None:
        """A plan was carried out: running requests without an open stay have come in."""
        for id_ in memory.running:
            self._admitted_s.setdefault(id_, now)

    def left(self, now: float, request: Request, *, finished: bool = False) -> None:
        """An admitted request leaves the engine."""
        self._spans.append(
            Span(
                request.id,
                request.task,
                request.stage,
                request.agent,
                request.round,
                request.ready_s,
                self._admitted_s.pop(request.id),
                request.attempt_s,
                now,
                request.computed_prefix,
                finished,
            )
        )
