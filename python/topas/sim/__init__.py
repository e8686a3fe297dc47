"""A simulator: one LLM engine made of arithmetic, driven by the same policies as a real one.

The engine is here, who holds its memory in :mod:`topas.sim.memory`, what its work costs in
:mod:`topas.sim.cost`; many runs and what they tell are :mod:`topas.sim.study`.

Needs numpy only. :mod:`topas.sim.trace` and :mod:`topas.sim.graphs` also need pydantic and
:mod:`topas.sim.report` rich (``pip install topas[sim]``); they are not imported here.
"""

from topas.sim.builtin import BUILTIN_WORKLOADS, Lengths, make_workload, poisson_arrivals
from topas.sim.cost import EngineCosts, engine_costs
from topas.sim.engine import Engine
from topas.sim.metrics import RunMetrics, summarise
from topas.sim.options import EngineOptions
from topas.sim.result import RunResult
from topas.sim.runner import Comparison, best_baseline, compare, run_policy
from topas.sim.workload import Round, StageShape, Task, WorkflowShape, Workload

__all__ = [
    "BUILTIN_WORKLOADS",
    "Comparison",
    "Engine",
    "EngineCosts",
    "EngineOptions",
    "Lengths",
    "Round",
    "RunMetrics",
    "RunResult",
    "StageShape",
    "Task",
    "WorkflowShape",
    "Workload",
    "best_baseline",
    "compare",
    "engine_costs",
    "make_workload",
    "poisson_arrivals",
    "run_policy",
    "summarise",
]
