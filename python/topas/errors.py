"""The one tree of errors: whatever topas refuses is a :class:`TopasError`.

The C++ core throws the same kinds under the same names; ``bindings/register_errors.cpp`` maps them
here, in one place. Each kind also derives from the builtin that a caller would expect to catch.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "CapacityError",
    "ConfigError",
    "IdError",
    "SnapshotError",
    "StateError",
    "TopasError",
    "TraceError",
    "UnknownId",
    "WorkflowError",
]


class TopasError(Exception):
    """Base class of every error that topas raises on purpose."""


class ConfigError(TopasError, ValueError):
    """A setting is missing, of the wrong type or out of range; the message names it."""


class ArgumentError(TopasError, ValueError):
    """An argument is of the wrong type or out of range; the message names it and the value."""


class WorkflowError(TopasError, ValueError):
    """A workflow is no DAG of known stages: a cycle, an unknown or a duplicate stage, none."""


class SnapshotError(TopasError, ValueError):
    """A snapshot is malformed or inconsistent; the message gives the path of the field."""


class TraceError(TopasError, ValueError):
    """A trace file has wrong rows; the message names them by line number."""


class IdError(TopasError, ValueError):
    """An id is neither a string nor an integer of 64 bits (``bool`` is not an integer here)."""


class UnknownId(TopasError, LookupError):  # noqa: N818 - the project's name for it
    """An agent, workflow, task, stage or request is not known, or no longer."""


class StateError(TopasError, RuntimeError):
    """An event or a commit is not legal in the present state; the state is unchanged."""


class CapacityError(TopasError, RuntimeError):
    """Something needs more KV tokens than there are; the message gives the numbers."""
