"""A benchmark of policies on the real SGLang engine, and of the simulator against it.

:mod:`~topas.enginebench.workload` says what arrives, :mod:`~topas.enginebench.launch` runs it in
a fresh engine, :mod:`~topas.enginebench.results` compares, :mod:`~topas.enginebench.calibration`
and :mod:`~topas.enginebench.simulated` repeat it in the simulator with the engine's own costs.
SGLang is imported only in the child processes that run an engine.
"""

from topas.enginebench.calibration import Fit, fit_costs
from topas.enginebench.launch import EnginePlan, run_engine
from topas.enginebench.results import EngineRun, Figures, Report
from topas.enginebench.simulated import simulate_run
from topas.enginebench.workload import WORKLOADS, BenchSettings, BenchWorkload

__all__ = [
    "WORKLOADS",
    "BenchSettings",
    "BenchWorkload",
    "EnginePlan",
    "EngineRun",
    "Figures",
    "Fit",
    "Report",
    "fit_costs",
    "run_engine",
    "simulate_run",
]
