"""The outcome of one run, before it is summarised."""

from __future__ import annotations

from dataclasses import dataclass, field

from topas.policies.base import Id
from topas.sim.counters import Counters

__all__ = ["RunResult"]


@dataclass(slots=True)
class RunResult:
    """What happened in one run.

    Parameters
    ----------
    policy : str
        Name of the policy.
    arrival_s, finish_s : dict
        By task: arrival of those that arrived, end of those that finished; seconds.
    cancelled : dict
        By task: why it was given up.
    unfinished : list
        Tasks that arrived and did not end before the run stopped.
    stopped : str
        Why the run ended early, or empty.
    end_s : float
        Simulated time at the end, seconds.
    peak_kv_tokens : int
        Most KV tokens in use at any instant.
    counters : Counters
        Everything counted.
    decision_ns : int
        Real time spent in the policy's decisions, nanoseconds; no part of the simulated time.
    """

    policy: str
    arrival_s: dict[Id, float] = field(default_factory=dict)
    finish_s: dict[Id, float] = field(default_factory=dict)
    cancelled: dict[Id, str] = field(default_factory=dict)
    unfinished: list[Id] = field(default_factory=list)
    stopped: str = ""
    end_s: float = 0.0
    peak_kv_tokens: int = 0
    counters: Counters = field(default_factory=Counters)
    decision_ns: int = 0
