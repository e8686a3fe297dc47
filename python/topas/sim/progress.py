"""How far each task is: which stages are released, which rounds are done, how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from topas.sim.workload import Round, Task, WorkflowShape, Workload

__all__ = ["Release", "TaskRun"]


@dataclass(frozen=True, slots=True)
class Release:
    """A round that becomes ready at ``ready_s``, seconds."""

    stage: int
    round: int
    ready_s: float


@dataclass(slots=True, eq=False)
class TaskRun:
    """A task that has arrived and has not ended."""

    task: Task
    shape: WorkflowShape
    open_before: list[int] = field(default_factory=list)
    ended_s: list[float | None] = field(default_factory=list)
    open_stages: int = 0

    @classmethod
    def start(cls, task: Task, workload: Workload) -> TaskRun:
        """A task at its arrival."""
        shape = workload.workflows[task.workflow]
        return cls(
            task,
            shape,
            [len(set(stage.after)) for stage in shape.stages],
            [None] * len(shape.stages),
            len(shape.stages),
        )

    def round(self, stage: int, index: int) -> Round:
        """A round of a stage."""
        return self.task.stages[stage][index]

    def roots(self, now: float) -> list[Release]:
        """First rounds of the stages without predecessors."""
        return [
            Release(index, 0, now + self.round(index, 0).wait_s)
            for index, stage in enumerate(self.shape.stages)
            if not stage.after
        ]

    def finish_round(self, stage: int, index: int, now: float) -> tuple[bool, list[Release]]:
        """A round is done.

        Returns
        -------
        tuple of bool and list of Release
            Whether the stage is completed, and the rounds that this releases.
        """
        if index + 1 < len(self.task.stages[stage]):
            wait = self.round(stage, index + 1).wait_s
            return False, [Release(stage, index + 1, now + wait)]
        self.ended_s[stage] = now
        self.open_stages -= 1
        released = []
        for successor in self.shape.successors[stage]:
            self.open_before[successor] -= 1
            if self.open_before[successor] == 0:
                released.append(Release(successor, 0, self._ready_s(successor, now)))
        return True, released

    def _ready_s(self, stage: int, now: float) -> float:
        origin = self.shape.stages[stage].wait_from
        since = self.ended_s[origin] if origin is not None else None
        return max(now, (now if since is None else since) + self.round(stage, 0).wait_s)
