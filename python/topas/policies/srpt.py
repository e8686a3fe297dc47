"""Shortest remaining processing time of the task."""

from __future__ import annotations

from topas.policies.base import Id, Plan, Policy, QueueView, RequestView, Setup

__all__ = ["Srpt"]


class Srpt(Policy):
    """The task with the least LLM service left first, then by arrival of the request.

    A task's remaining service is the sum of the profiled services of its uncompleted stages, less
    what the finished rounds of each have taken (never below 0). It never preempts. On a chain of
    equal stages this is ``spf`` (TOPAS, Section V).
    """

    name = "srpt"

    def __init__(self) -> None:
        self._profiles: dict[str, dict[str, float]] = {}
        self._left: dict[Id, dict[str, float]] = {}

    def begin(self, setup: Setup) -> None:
        """Take the profiled services, and forget the tasks of an earlier run."""
        self._profiles = {
            name: {stage.name: stage.service_s for stage in stages}
            for name, stages in setup.workflows.items()
        }
        self._left.clear()

    def task_arrived(self, now: float, task: Id, workflow: str) -> None:
        """All stages of the task are left."""
        self._left[task] = dict(self._profiles[workflow])

    def request_completed(self, now: float, request: RequestView, service_s: float) -> None:
        """Take a round's service off its stage."""
        left = self._left[request.task]
        left[request.stage] = max(left[request.stage] - service_s, 0.0)

    def stage_completed(self, now: float, task: Id, stage: str) -> None:
        """Nothing is left of the stage."""
        del self._left[task][stage]

    def task_finished(self, now: float, task: Id) -> None:
        """Forget the task."""
        self._left.pop(task, None)

    def task_cancelled(self, now: float, task: Id) -> None:
        """Forget the task."""
        self._left.pop(task, None)

    def plan(self, now: float, view: QueueView) -> Plan:
        """The waiting requests by remaining service of their task, least first."""
        remaining = {
            task: sum(self._left[task].values()) for task in {r.task for r in view.waiting}
        }
        order = sorted(view.waiting, key=lambda r: (remaining[r.task], r.ready_s, r.id))
        return Plan([r.id for r in order])
