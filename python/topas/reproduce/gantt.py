"""Figure 2: LPM against SRPT where only one prefix fits, request by request.

The paper gives the workflow A→B→C, room for one prefix, four time units a request and one a prefix
setup. It does not give the number of tasks; here n tasks are there at time 0 and the engine has
room for one request beside the prefix. LPM then serves all of A, all of B, all of C: three setups
and ``3 + 12 n`` units, the k-th task done at ``3 + 8 n + 4 k``. SRPT ends one task after the other
and sets up a prefix for each request: ``15 n`` units, the k-th task done at ``15 k``. So LPM has
the better makespan, SRPT the better mean completion time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from topas.policies import make_policy
from topas.sim.checks import check_int
from topas.sim.cost import EngineCosts
from topas.sim.engine import Engine
from topas.sim.metrics import summarise
from topas.sim.result import Span
from topas.sim.workload import Round, StageShape, Task, WorkflowShape, Workload

__all__ = ["Bar", "Gantt", "run_gantt"]

_AGENTS = ("A", "B", "C")
_PREFIX, _OUTPUT = 10, 4
#: A step takes 1 unit and a request 4 steps; a prefix of 10 tokens takes 1 unit, a request needs no
#: other prefill; the pool has room for one prefix and one request.
_COSTS = EngineCosts(
    kv_capacity=_PREFIX + _OUTPUT,
    kv_bytes_per_token=0.0,
    decode_fixed_s=1.0,
    decode_s_per_context_token=0.0,
    prefill_s_per_token=0.1,
)


@dataclass(frozen=True)
class Bar:
    """A request in the chart: from ``start`` its prefix setup, from ``service`` on its service."""

    task: int | str
    agent: str
    start: float
    service: float
    end: float


@dataclass(frozen=True)
class Gantt:
    """The chart of one policy; time in units.

    Parameters
    ----------
    policy : str
        Its name.
    makespan, mean_jct : float
        Until the last task is done, and the mean over the tasks.
    setups : int
        Prefixes set up.
    bars : tuple of Bar
        By end.
    """

    policy: str
    makespan: float
    mean_jct: float
    setups: int
    bars: tuple[Bar, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "bars": [asdict(bar) for bar in self.bars]}


def _workload(tasks: int) -> Workload:
    stages = tuple(
        StageShape(agent, agent, (index - 1,) if index else (), 1.0, 0.0, float(_OUTPUT))
        for index, agent in enumerate(_AGENTS)
    )
    rounds = tuple((Round(0, _OUTPUT),) for _ in _AGENTS)
    return Workload(
        "gantt",
        dict.fromkeys(_AGENTS, _PREFIX),
        {"chain": WorkflowShape("chain", stages)},
        tuple(Task(index + 1, 0.0, "chain", rounds) for index in range(tasks)),
    )


def _bar(span: Span) -> Bar:
    started = span.admitted_s if span.started_s is None else span.started_s
    setup = _COSTS.prefill_s(_PREFIX) if span.computed_prefix else 0.0
    return Bar(span.task, span.agent, started, started + setup, span.ended_s)


def run_gantt(policy: str, tasks: int = 3) -> Gantt:
    """Run the figure's example under a policy.

    Parameters
    ----------
    policy : str
        A baseline, e.g. ``lpm`` or ``srpt``.
    tasks : int
        Tasks at time 0, at least 1.

    Raises
    ------
    ConfigError
        The policy is unknown or ``tasks`` is not legal.
    """
    check_int("tasks", tasks, minimum=1)
    engine = Engine(_workload(tasks), make_policy(policy, {}), _COSTS, timeline=True)
    result = engine.run()
    jct = summarise(result).jct_s.values()
    bars = tuple(_bar(span) for span in result.timeline)
    return Gantt(
        policy,
        max(jct),
        sum(jct) / tasks,
        sum(span.computed_prefix for span in result.timeline),
        bars,
    )
