"""Workflows: the stages of a task, their agents and their order (SPEC sections 1 and 2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from topas._core import critical_path_s, validate_workflow
from topas.errors import WorkflowError

__all__ = ["Id", "Stage", "Workflow"]

#: What users name things by; ``7`` and ``"7"`` are different ids.
Id = int | str


def _sequence(value: object, name: str) -> tuple[object, ...]:
    """The items of a list or another iterable, but not the letters of a string."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise WorkflowError(f"{name}: must be a list, got {value!r}")
    return tuple(value)


def _require(fields: object, names: Iterable[str], where: str) -> None:
    """Refuse what is no mapping with these names."""
    if not isinstance(fields, Mapping):
        raise WorkflowError(f"{where}: must be a mapping, got {fields!r}")
    for name in names:
        if name not in fields:
            raise WorkflowError(f"{where}.{name}: is missing")


@dataclass(frozen=True)
class Stage:
    """One stage of a workflow.

    Parameters
    ----------
    name : int or str
        Unique in the workflow.
    agent : int or str
        The agent that runs it.
    after : sequence of int or str
        Stages that must end first; a repeated one counts once.
    service_s : float
        Profiled total LLM service of the stage, all requests together, seconds; used until
        executions are observed.
    request_s : float or None
        Profiled service of one request, seconds; ``None``: ``service_s``.
    """

    name: Id
    agent: Id
    after: tuple[Id, ...] = ()
    service_s: float = 0.0
    request_s: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "after", _sequence(self.after, f"stage {self.name!r}: after"))


_STAGE_FIELDS = tuple(field.name for field in dataclasses.fields(Stage))


def _stage_fields(fields: Any, where: str) -> dict[str, Any]:
    """The parameters of a stage, if there are no others."""
    _require(fields, ("name", "agent"), where)
    for name in fields:
        if name not in _STAGE_FIELDS:
            raise WorkflowError(
                f"{where}.{name}: unknown field, known are {', '.join(_STAGE_FIELDS)}"
            )
    return dict(fields)


@dataclass(frozen=True)
class Workflow:
    """A checked DAG of stages. Immutable, comparable, hashable and picklable.

    Loops (ReAct rounds) belong inside one stage, as several requests of it, not into the graph.

    Parameters
    ----------
    name : int or str
        What tasks refer to.
    stages : sequence of Stage
        At least one.

    Raises
    ------
    WorkflowError
        No stage, a duplicate stage, an unknown predecessor, a cycle (named with its path), a
        service that is not a finite number of at least 0.
    IdError
        A name is neither a string nor an integer of 64 bits.
    """

    name: Id
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "stages", _sequence(self.stages, f"workflow {self.name!r}: stages")
        )
        validate_workflow(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Workflow:
        """A workflow from plain values, as a file or a hint has them.

        Parameters
        ----------
        fields : mapping
            ``name`` and ``stages``: mappings with the parameters of :class:`Stage`.

        Raises
        ------
        WorkflowError, IdError
            The workflow is malformed; the message names the field.
        """
        _require(fields, ("name", "stages"), "workflow")
        stages = [
            Stage(**_stage_fields(stage, f"stages.{at}"))
            for at, stage in enumerate(_sequence(fields["stages"], "workflow.stages"))
        ]
        return cls(fields["name"], tuple(stages))

    @property
    def critical_path_s(self) -> float:
        """Longest path of the profiled totals, seconds."""
        return critical_path_s(self)
