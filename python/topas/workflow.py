"""Workflows: the stages of a task, their agents and their order (SPEC sections 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from topas._core import critical_path_s, validate_workflow
from topas.errors import TopasError, WorkflowError

__all__ = ["Id", "Stage", "Workflow"]

#: What users name things by; ``7`` and ``"7"`` are different ids.
Id = int | str


def _sequence(value: object, name: str) -> tuple[object, ...]:
    """The items of a list or another iterable, but not the letters of a string."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise WorkflowError(f"{name}: must be a list, got {value!r}")
    return tuple(value)


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
            The workflow is malformed.
        """
        try:
            stages = [Stage(**dict(stage)) for stage in fields["stages"]]
            return cls(fields["name"], tuple(stages))
        except TopasError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise WorkflowError(f"workflow: malformed: {error}") from None

    @property
    def critical_path_s(self) -> float:
        """Longest path of the profiled totals, seconds."""
        return critical_path_s(self)
