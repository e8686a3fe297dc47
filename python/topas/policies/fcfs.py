"""First come, first served."""

from __future__ import annotations

from topas.policies.base import Plan, Policy, QueueView

__all__ = ["Fcfs"]


class Fcfs(Policy):
    """Requests in the order of their own arrival."""

    name = "fcfs"

    def plan(self, now: float, view: QueueView) -> Plan:
        """The waiting requests by arrival."""
        return Plan([r.id for r in sorted(view.waiting, key=lambda r: (r.ready_s, r.id))])
