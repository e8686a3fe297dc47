"""KVFlow: a prefix cache that knows the workflow (arXiv 2507.07400)."""

from __future__ import annotations

from collections.abc import Mapping

from topas.policies.base import Id, Plan, Policy, PrefixAdvice, QueueView, Setup, StageProfile

__all__ = ["KvFlow"]


class KvFlow(Policy):
    """First come, first served; prefixes are evicted and prefetched by steps to execution.

    The steps to execution of a stage that has not completed are 0 when all its predecessors have
    (it is ready, running or in a tool wait), else one more than the most of its predecessors, since
    it waits for all of them. Those of an agent are the least over its stages in all live tasks. Of
    the idle prefixes that of the most steps is evicted first; agents that no live task will call
    again go before all others. The prefixes of agents one step ahead are loaded from the host in
    the background; those of agents at 0 come with the requests that need them.
    """

    name = "kvflow"
    gives_advice = True
    needs_host_cache = True

    def __init__(self) -> None:
        self._workflows: Mapping[str, tuple[StageProfile, ...]] = {}
        self._live: dict[Id, tuple[str, frozenset[str]]] = {}  # workflow, completed stages
        self._steps: dict[tuple[str, frozenset[str]], Mapping[str, int]] = {}

    def begin(self, setup: Setup) -> None:
        """Take the workflows and forget an earlier run."""
        self._workflows = setup.workflows
        self._live.clear()
        self._steps.clear()

    def task_arrived(self, now: float, task: Id, workflow: str) -> None:
        """A task at its roots."""
        self._live[task] = (workflow, frozenset())

    def stage_completed(self, now: float, task: Id, stage: str) -> None:
        """The task has come one stage further."""
        workflow, completed = self._live[task]
        self._live[task] = (workflow, completed | {stage})

    def task_finished(self, now: float, task: Id) -> None:
        """Forget the task."""
        self._live.pop(task, None)

    def task_cancelled(self, now: float, task: Id) -> None:
        """Forget the task."""
        self._live.pop(task, None)

    def steps_to_execution(self) -> dict[str, float]:
        """Steps by agent, over all live tasks; agents that none of them will call are not there."""
        steps: dict[str, float] = {}
        for state in dict.fromkeys(self._live.values()):
            for agent, ahead in self._agents_ahead(state).items():
                steps[agent] = min(ahead, steps.get(agent, ahead))
        return steps

    def _agents_ahead(self, state: tuple[str, frozenset[str]]) -> Mapping[str, int]:
        """Steps by agent for a task of that workflow with those stages completed."""
        if state not in self._steps:
            workflow, completed = state
            of_stage: dict[str, int] = {}
            of_agent: dict[str, int] = {}
            for stage in self._workflows[workflow]:  # predecessors come first
                if stage.name in completed:
                    continue
                open_ = [of_stage[name] for name in stage.after if name not in completed]
                steps = of_stage[stage.name] = 1 + max(open_, default=-1)
                of_agent[stage.agent] = min(steps, of_agent.get(stage.agent, steps))
            self._steps[state] = of_agent
        return self._steps[state]

    def plan(self, now: float, view: QueueView) -> Plan:
        """The waiting requests by arrival, and the steps to execution for the cache."""
        steps = self.steps_to_execution()
        following = sorted(agent for agent, ahead in steps.items() if ahead == 1)
        order = sorted(view.waiting, key=lambda r: (r.ready_s, r.id))
        advice = PrefixAdvice(distance=steps, prefetch=following)
        return Plan([r.id for r in order], advice=advice)
