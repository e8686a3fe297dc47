"""The topas policy: the C++ core behind the interface of the baselines."""

from __future__ import annotations

from typing import cast

import topas
from topas.errors import StateError
from topas.policies.base import Id, Plan, Policy, QueueView, RequestView, Setup

__all__ = ["TopasPolicy"]


class TopasPolicy(Policy):
    """Drives a :class:`topas.Scheduler`: events in, one decision out, committed as it is applied.

    Parameters
    ----------
    config : topas.Config
        Capacity and costs of the engine, and the options of the score.
    name : str
        Name in reports, e.g. ``topas`` (preset ``default``) or ``topas-paper``.
    """

    explicit_residency = True

    def __init__(self, config: topas.Config, name: str = "topas") -> None:
        self.name = name
        self._config = config
        self._scheduler = self._new_scheduler()

    def _new_scheduler(self) -> topas.Scheduler:
        return topas.Scheduler(self._config)

    def begin(self, setup: Setup) -> None:
        """A fresh scheduler with the agents and workflows of the run."""
        self._scheduler = self._new_scheduler()
        for agent, tokens in setup.agents.items():
            self._scheduler.register_agent(agent, tokens)
        for name, profiles in setup.workflows.items():
            stages = tuple(
                topas.Stage(
                    p.name, p.agent, after=p.after, service_s=p.service_s, request_s=p.request_s
                )
                for p in profiles
            )
            self._scheduler.register_workflow(topas.Workflow(name, stages))

    def task_arrived(self, now: float, task: Id, workflow: str) -> None:
        """Pass the event on."""
        self._scheduler.task_arrived(now, task, workflow)

    def request_ready(self, now: float, request: RequestView) -> None:
        """Pass the event on."""
        self._scheduler.request_ready(
            now,
            request.id,
            request.task,
            request.stage,
            request.input_tokens,
            request.max_new_tokens,
        )

    def request_retracted(self, now: float, request: RequestView) -> None:
        """The request waits again with a reservation of its own, as one that comes now."""
        self._scheduler.request_aborted(now, request.id)
        self.request_ready(now, request)

    def request_completed(self, now: float, request: RequestView, service_s: float) -> None:
        """Pass the event on."""
        self._scheduler.request_completed(now, request.id, service_s)

    def stage_completed(self, now: float, task: Id, stage: str) -> None:
        """Pass the event on; the scheduler ends the task with its last stage."""
        self._scheduler.stage_completed(now, task, stage)

    def task_cancelled(self, now: float, task: Id) -> None:
        """Pass the event on."""
        self._scheduler.task_cancelled(now, task)

    def plan(self, now: float, view: QueueView) -> Plan:
        """Report progress, decide, commit.

        Raises
        ------
        StateError
            The core calls a request unschedulable that the engine holds for servable.
        """
        for request in view.running:
            self._scheduler.request_progress(now, request.id, request.generated_tokens)
        decision = self._scheduler.decide(now)
        if decision.unschedulable:
            raise StateError(f"requests that can never fit are waiting: {decision.unschedulable}")
        self._scheduler.commit(decision)
        # The engine numbers its requests and names its agents; ids come back as they were given.
        admit, preempt = cast("list[int]", decision.admit), cast("list[int]", decision.preempt)
        return Plan(admit, preempt, frozenset(cast("list[str]", decision.resident)))
