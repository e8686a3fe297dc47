"""Autellix's least attained service."""

from __future__ import annotations

from topas.policies.base import Id, Plan, Policy, QueueView, RequestView, Setup

__all__ = ["AutellixLas"]


class AutellixLas(Policy):
    """The task that has accumulated the least LLM service first, then by arrival of the request.

    A task's service is the sum over its finished requests, whatever branch they were on.
    """

    name = "las"

    def __init__(self) -> None:
        self._attained: dict[Id, float] = {}

    def begin(self, setup: Setup) -> None:
        """Forget the tasks of an earlier run."""
        self._attained.clear()

    def task_arrived(self, now: float, task: Id, workflow: str) -> None:
        """A task starts with no service."""
        self._attained[task] = 0.0

    def request_completed(self, now: float, request: RequestView, service_s: float) -> None:
        """Add the request's service to its task's."""
        self._attained[request.task] += service_s

    def task_finished(self, now: float, task: Id) -> None:
        """Forget the task."""
        self._attained.pop(task, None)

    def task_cancelled(self, now: float, task: Id) -> None:
        """Forget the task."""
        self._attained.pop(task, None)

    def plan(self, now: float, view: QueueView) -> Plan:
        """The waiting requests by attained service of their task, least first."""
        attained = self._attained
        order = sorted(view.waiting, key=lambda r: (attained[r.task], r.ready_s, r.id))
        return Plan([r.id for r in order])
