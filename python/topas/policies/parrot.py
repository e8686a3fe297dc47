"""Parrot's order: the task that came first."""

from __future__ import annotations

from topas.policies.base import Plan, Policy, QueueView

__all__ = ["ParrotFcfs"]


class ParrotFcfs(Policy):
    """Requests by the arrival of their task, then by their own arrival."""

    name = "parrot"

    def plan(self, now: float, view: QueueView) -> Plan:
        """The waiting requests by task arrival."""
        order = sorted(view.waiting, key=lambda r: (r.task_arrival_s, r.ready_s, r.id))
        return Plan([r.id for r in order])
