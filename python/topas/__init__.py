"""topas: workflow-aware prefix-state scheduling for multi-agent LLM serving.

Two doors into one compiled core: the pure :func:`decide` for a :class:`Snapshot`, and the
incremental :class:`Scheduler` that takes events. They agree bit for bit.
"""

from topas._core import (
    Candidate,
    Decision,
    Explanation,
    LeftWaiting,
    Scheduler,
    Snapshot,
    Terms,
    Usage,
    decide,
    expected_longest_path,
    explain,
)
from topas.config import PRESETS, Config
from topas.decision import DecisionArrays
from topas.errors import (
    ArgumentError,
    CapacityError,
    ConfigError,
    IdError,
    SnapshotError,
    StateError,
    TopasError,
    TraceError,
    UnknownId,
    WorkflowError,
)
from topas.workflow import Id, Stage, Workflow

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "ArgumentError",
    "Candidate",
    "CapacityError",
    "Config",
    "ConfigError",
    "Decision",
    "DecisionArrays",
    "Explanation",
    "Id",
    "IdError",
    "LeftWaiting",
    "Scheduler",
    "Snapshot",
    "SnapshotError",
    "Stage",
    "StateError",
    "Terms",
    "TopasError",
    "TraceError",
    "UnknownId",
    "Usage",
    "Workflow",
    "WorkflowError",
    "decide",
    "expected_longest_path",
    "explain",
]
