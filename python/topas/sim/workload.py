"""A workload as plain data: agents, workflow shapes, tasks with arrivals and token counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from topas.errors import ConfigError, WorkflowError
from topas.sim.checks import check_int, check_number

__all__ = ["Round", "StageShape", "Task", "WorkflowShape", "Workload"]


@dataclass(frozen=True)
class Round:
    """One request of a stage (one ReAct round).

    Parameters
    ----------
    input_tokens : int
        Dynamic input after the agent's static prefix, tokens, at least 0.
    output_tokens : int
        Tokens generated, at least 1.
    wait_s : float
        Tool wait before the round, seconds. Before the first round of a stage it runs from the
        release of the stage, or from the end of the stage that :attr:`StageShape.wait_from` names.
    shared_tokens : int
        How much of the input, from its start, repeats input and output of the stage's previous
        round; at most ``input_tokens``. An engine that keeps contexts need not prefill it.
    """

    input_tokens: int
    output_tokens: int
    wait_s: float = 0.0
    shared_tokens: int = 0

    def __post_init__(self) -> None:
        check_int("shared_tokens", self.shared_tokens, minimum=0)
        check_int("input_tokens", self.input_tokens, minimum=0)
        check_int("output_tokens", self.output_tokens, minimum=1)
        check_number("wait_s", self.wait_s)
        if self.shared_tokens > self.input_tokens:
            raise ConfigError(
                f"shared_tokens: at most the {self.input_tokens} of the input, "
                f"got {self.shared_tokens}"
            )


@dataclass(frozen=True)
class StageShape:
    """A stage of a workflow, with what is known about it beforehand.

    Parameters
    ----------
    name, agent : str
        Name within the workflow, and the agent whose static prefix its requests share.
    after : tuple of int
        Indexes of the predecessors, all smaller than the stage's own.
    rounds, input_tokens, output_tokens : float
        Expected number of rounds, and of tokens per round; they make the profile that topas is
        given.
    wait_from : int or None
        Predecessor from whose end the first round's wait runs (``None``: from the last one's).
    """

    name: str
    agent: str
    after: tuple[int, ...] = ()
    rounds: float = 1.0
    input_tokens: float = 1400.0
    output_tokens: float = 700.0
    wait_from: int | None = None


@dataclass(frozen=True)
class WorkflowShape:
    """A DAG of stages in topological order.

    Raises
    ------
    WorkflowError
        No stage, a stage named twice, or a predecessor that does not come earlier.
    """

    name: str
    stages: tuple[StageShape, ...]

    def __post_init__(self) -> None:
        if not self.stages:
            raise WorkflowError(f"workflow {self.name!r} has no stage")
        seen: set[str] = set()
        for index, stage in enumerate(self.stages):
            if stage.name in seen:
                raise WorkflowError(f"workflow {self.name!r}: stage {stage.name!r} is given twice")
            seen.add(stage.name)
            if any(before < 0 or before >= index for before in stage.after):
                raise WorkflowError(
                    f"workflow {self.name!r}: predecessors of {stage.name!r} must come before it"
                )
            if stage.wait_from is not None and stage.wait_from not in stage.after:
                raise WorkflowError(
                    f"workflow {self.name!r}: wait_from of {stage.name!r} is no predecessor"
                )

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Longest path from a root to each stage, in stages; roots have 0."""
        depths: list[int] = []
        for stage in self.stages:
            depths.append(1 + max((depths[before] for before in stage.after), default=-1))
        return tuple(depths)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Indexes of the direct successors of each stage."""
        result: list[list[int]] = [[] for _ in self.stages]
        for index, stage in enumerate(self.stages):
            for before in sorted(set(stage.after)):
                result[before].append(index)
        return tuple(tuple(item) for item in result)


@dataclass(frozen=True)
class Task:
    """One run of a workflow.

    Parameters
    ----------
    id : int or str
        Unique in the workload.
    arrival_s : float
        Arrival, seconds from the start of the simulation.
    workflow : str
        Name of its :class:`WorkflowShape`.
    stages : tuple of tuple of Round
        The rounds of each stage, in the order of the workflow's stages, at least one each.
    """

    id: int | str
    arrival_s: float
    workflow: str
    stages: tuple[tuple[Round, ...], ...]


@dataclass(frozen=True)
class Workload:
    """Everything a simulation is about; no policy has a say in it.

    Parameters
    ----------
    name : str
        For reports.
    agents : mapping
        Static prefix of each agent, tokens.
    workflows : mapping
        The shapes by name.
    tasks : tuple of Task
        In order of arrival.
    parameters : mapping
        What it was made from, for reports; plain values.

    Raises
    ------
    WorkflowError
        A task or stage names something unknown, or a task does not match its workflow.
    ConfigError
        An arrival or a prefix length is not legal.
    """

    name: str
    agents: Mapping[str, int]
    workflows: Mapping[str, WorkflowShape]
    tasks: tuple[Task, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for agent, tokens in self.agents.items():
            check_int(f"prefix of agent {agent!r}", tokens, minimum=0)
        for shape in self.workflows.values():
            for stage in shape.stages:
                if stage.agent not in self.agents:
                    raise WorkflowError(
                        f"workflow {shape.name!r}: stage {stage.name!r} has unknown agent "
                        f"{stage.agent!r}"
                    )
        if len({task.id for task in self.tasks}) != len(self.tasks):
            raise WorkflowError("a task id is given twice")
        last = 0.0
        for task in self.tasks:
            check_number(f"arrival of task {task.id!r}", task.arrival_s)
            if task.arrival_s < last:
                raise WorkflowError(f"task {task.id!r} is out of arrival order")
            last = task.arrival_s
            if task.workflow not in self.workflows:
                raise WorkflowError(f"task {task.id!r}: unknown workflow {task.workflow!r}")
            if [bool(rounds) for rounds in task.stages] != [True] * len(
                self.workflows[task.workflow].stages
            ):
                raise WorkflowError(
                    f"task {task.id!r}: needs at least one round for each stage of "
                    f"{task.workflow!r}"
                )
