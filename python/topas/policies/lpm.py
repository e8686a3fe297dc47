"""Longest prefix match, SGLang's locality-first order."""

from __future__ import annotations

from topas.policies.base import Plan, Policy, QueueView

__all__ = ["Lpm"]


class Lpm(Policy):
    """The longest reusable prefix first, then by arrival; a cold one may starve under load."""

    name = "lpm"

    def plan(self, now: float, view: QueueView) -> Plan:
        """The waiting requests by tokens found in the pool, longest first."""
        order = sorted(view.waiting, key=lambda r: (-view.cached_tokens(r), r.ready_s, r.id))
        return Plan([r.id for r in order])
