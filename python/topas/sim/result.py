"""The outcome of one run, before it is summarised."""

from __future__ import annotations

from dataclasses import dataclass, field

from topas.policies.base import Id
from topas.sim.counters import Counters

__all__ = ["RunResult", "Span"]


@dataclass(frozen=True, slots=True)
class Span:
    """One stay of a request in the engine, from its admission to its end; times in seconds.

    Parameters
    ----------
    request, task, stage, agent, round
        Which one it is.
    ready_s, admitted_s, ended_s : float
        When the request was first ready, when it was admitted this time, when it left.
    started_s : float or None
        When the engine began to compute it; ``None``: it left before.
    computed_prefix : bool
        Its prefill also computed the agent's static prefix.
    finished : bool
        It ended by itself; else it was preempted or its task was given up.
    """

    request: int
    task: Id
    stage: str
    agent: str
    round: int
    ready_s: float
    admitted_s: float
    started_s: float | None
    ended_s: float
    computed_prefix: bool
    finished: bool


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
    timeline : list of Span
        Each stay of each request in the engine, by end; empty unless it was asked for.
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
    timeline: list[Span] = field(default_factory=list)
