"""Shortest path first: the stage that is deepest in its workflow."""

from __future__ import annotations

from topas.policies.base import Plan, Policy, QueueView

__all__ = ["Spf"]


class Spf(Policy):
    """Deeper stages first, first come first served within a depth.

    On a chain of equal stages this is shortest remaining processing time (SRPT).
    """

    name = "spf"

    def plan(self, now: float, view: QueueView) -> Plan:
        """The waiting requests by depth, deepest first."""
        order = sorted(view.waiting, key=lambda r: (-r.depth, r.ready_s, r.id))
        return Plan([r.id for r in order])
