"""What arrives: tasks with stages, arrivals and token ids, all from one seed.

The shape is a :class:`topas.sim.Workload`, so that the simulator can repeat a run; the token ids
are drawn here. The prompt of a stage is its agent's static prefix, tokens of its own, and the
output of the stages it comes after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from topas.errors import ConfigError
from topas.sim.builtin import poisson_arrivals
from topas.sim.checks import check_choice, check_int, check_number
from topas.sim.workload import Round, StageShape, Task, WorkflowShape, Workload

__all__ = ["WORKLOADS", "BenchSettings", "BenchWorkload"]

#: Names of the workloads.
WORKLOADS: tuple[str, ...] = ("single", "chain-3", "dag-4", "mixed-no-hints")

# Purposes of random streams; the numbers are part of "same seed, same tokens".
_CHOICES, _LENGTHS, _PREFIX, _OWN, _WARM_UP = 11, 12, 13, 14, 15

_FIRST_TOKEN = 3  # the ones before are special in many vocabularies
_MOST_TOKENS = 30_000  # of a vocabulary
_UNIQUE = "unique"  # stands for all prompts that nobody shares
_UNIQUE_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """Size and seed of a workload.

    Parameters
    ----------
    workload : str
        One of :data:`WORKLOADS`.
    tasks, agents : int
        Tasks that arrive, and agents (shared system prompts).
    prefix_tokens, input_tokens, output_tokens : int
        Static prefix of each agent; mean of a stage's own tokens, which vary by half of it; output
        of each request, at least 2. Tokens.
    rate : float or None
        Poisson arrivals a second; ``None``: a fixed number of tasks is in flight.
    concurrency : int
        That number.
    seed : int
        Of arrivals, choices, lengths and tokens.
    hints : bool
        Whether requests say which task, stage and agent they are of.
    vocab : int
        Vocabulary of the model.

    Raises
    ------
    ConfigError
        A field is not legal; the message names it.
    """

    workload: str = "single"
    tasks: int = 100
    agents: int = 8
    prefix_tokens: int = 1024
    input_tokens: int = 48
    output_tokens: int = 12
    rate: float | None = None
    concurrency: int = 24
    seed: int = 0
    hints: bool = True
    vocab: int = 1024

    def __post_init__(self) -> None:
        check_choice("workload", self.workload, WORKLOADS)
        for name, minimum in (
            ("tasks", 1),
            ("agents", 1),
            ("prefix_tokens", 0),
            ("input_tokens", 2),
            ("output_tokens", 2),
            ("concurrency", 1),
            ("seed", 0),
            ("vocab", 16),
        ):
            check_int(name, getattr(self, name), minimum=minimum)
        if self.rate is not None:
            check_number("rate", self.rate, above=True)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)


def _name(index: int) -> str:
    return f"agent-{index}"


def _chain(agents: Sequence[str], before: Sequence[tuple[int, ...]]) -> tuple[StageShape, ...]:
    """Stages ``s0``, ``s1`` ... of these agents, each after the given ones."""
    return tuple(
        StageShape(f"s{index}", agent, after)
        for index, (agent, after) in enumerate(zip(agents, before, strict=True))
    )


def _same_agent(start: int, count: int) -> tuple[StageShape, ...]:
    return _chain([_name(start)] * 3, [(), (0,), (1,)])


def _three_agents(start: int, count: int) -> tuple[StageShape, ...]:
    return _chain([_name((start + i) % count) for i in range(3)], [(), (0,), (1,)])


def _diamond(start: int, count: int) -> tuple[StageShape, ...]:
    names = [_name((start + i) % count) for i in range(4)]
    return _chain(names, [(), (0,), (0,), (1, 2)])


def _one_shot(start: int, count: int) -> tuple[StageShape, ...]:
    return _chain([_name(start)], [()])


_STAGES: Mapping[str, Callable[[int, int], tuple[StageShape, ...]]] = {
    "single": _same_agent,
    "chain-3": _three_agents,
    "dag-4": _diamond,
    "mixed-no-hints": _one_shot,
}


class BenchWorkload:
    """A workload with its tokens.

    Workflow ``flow-i`` starts with agent ``i`` and goes on to the next ones, so that workflows
    share agents. In ``mixed-no-hints`` the popularity of system prompts falls as 1, 1/2, 1/3 ...,
    and a quarter of the requests is unique.

    Parameters
    ----------
    settings : BenchSettings
        Size and seed.
    """

    def __init__(self, settings: BenchSettings) -> None:
        self.settings = settings
        self._prefixes: dict[str, list[int]] = {}

    @property
    def has_hints(self) -> bool:
        """Whether requests carry hints."""
        return self.settings.hints and self.settings.workload != "mixed-no-hints"

    def _stream(self, purpose: int, *more: int) -> np.random.Generator:
        seeds = np.random.SeedSequence([self.settings.seed, purpose, *more])
        return np.random.Generator(np.random.PCG64(seeds))

    @cached_property
    def shape(self) -> Workload:
        """Agents, workflows, arrivals and lengths (arrivals are all 0 without a rate)."""
        settings = self.settings
        agents = {_name(i): settings.prefix_tokens for i in range(settings.agents)}
        stages = _STAGES[settings.workload]
        flows = {
            f"flow-{i}": WorkflowShape(f"flow-{i}", stages(i, settings.agents))
            for i in range(settings.agents)
        }
        if settings.workload == "mixed-no-hints":
            agents[_UNIQUE] = 0
            flows[_UNIQUE] = WorkflowShape(_UNIQUE, _chain([_UNIQUE], [()]))
        arrivals = [0.0] * settings.tasks
        if settings.rate is not None:
            arrivals = poisson_arrivals(settings.tasks, settings.rate, settings.seed)
        tasks = tuple(
            self._task(index, flows[self._flows[index]], arrival)
            for index, arrival in enumerate(arrivals)
        )
        return Workload(settings.workload, agents, flows, tasks, settings.to_dict())

    @cached_property
    def _flows(self) -> list[str]:
        """The workflow of each task."""
        settings, draw = self.settings, self._stream(_CHOICES)
        names = [f"flow-{i}" for i in range(settings.agents)]
        if settings.workload != "mixed-no-hints":
            return [names[i] for i in draw.integers(settings.agents, size=settings.tasks)]
        weights = 1.0 / np.arange(1, settings.agents + 1)
        weights *= (1.0 - _UNIQUE_SHARE) / weights.sum()
        chosen = draw.choice(settings.agents + 1, settings.tasks, p=[*weights, _UNIQUE_SHARE])
        return [[*names, _UNIQUE][i] for i in chosen]

    def _task(self, index: int, flow: WorkflowShape, arrival_s: float) -> Task:
        settings, draw = self.settings, self._stream(_LENGTHS, index)
        mean = settings.input_tokens
        if flow.name == _UNIQUE:  # as long as the others, to compute as much at each miss
            mean += settings.prefix_tokens // 2
        own = draw.integers(mean - mean // 2, mean + mean // 2 + 1, size=len(flow.stages))
        output = settings.output_tokens
        rounds = [
            (Round(int(tokens) + output * len(stage.after), output),)
            for stage, tokens in zip(flow.stages, own, strict=True)
        ]
        return Task(index, arrival_s, flow.name, tuple(rounds))

    # -- tokens

    def _tokens(self, count: int, purpose: int, *more: int) -> list[int]:
        last = min(self.settings.vocab, _MOST_TOKENS)
        drawn = self._stream(purpose, *more).integers(_FIRST_TOKEN, last, size=count)
        return [int(token) for token in drawn]

    def prefix(self, agent: str) -> list[int]:
        """Token ids of an agent's static prefix."""
        if agent not in self._prefixes:
            place = list(self.shape.agents).index(agent)
            count = self.shape.agents[agent]
            self._prefixes[agent] = self._tokens(count, _PREFIX, place)
        return self._prefixes[agent]

    def prompt(self, task: int, stage: int, outputs: Mapping[int, Sequence[int]]) -> list[int]:
        """Token ids of a request.

        Parameters
        ----------
        task, stage : int
            Indexes.
        outputs : mapping
            Output by stage index, at least those of the stages it comes after.
        """
        work = self.shape.tasks[task]
        shape = self.shape.workflows[work.workflow].stages[stage]
        earlier = [token for before in shape.after for token in outputs[before]]
        count = work.stages[stage][0].input_tokens - len(shape.after) * self.settings.output_tokens
        return [*self.prefix(shape.agent), *self._tokens(count, _OWN, task, stage), *earlier]

    def warm_up(self, count: int) -> list[list[int]]:
        """Prompts of no task, to be run before the clock starts."""
        most = self.settings.prefix_tokens + self.settings.input_tokens
        return [self._tokens(max(most >> i, 2), _WARM_UP, i) for i in range(count)]

    def agent_hints(self, task: int, stage: int) -> dict[str, Any] | None:
        """The ``agent_hints`` of a request; the first of a task registers its workflow."""
        if not self.has_hints:
            return None
        work = self.shape.tasks[task]
        shape = self.shape.workflows[work.workflow]
        stages = shape.stages
        hints: dict[str, Any] = {
            "workflow_id": f"task-{task}",
            "workflow": shape.name,
            "agent_id": stages[stage].agent,
            "step_id": stages[stage].name,
            "step_finish": True,
            "finish": not shape.successors[stage],
        }
        if stage == 0:
            hints["workflow_graph"] = {
                "name": shape.name,
                "stages": [
                    {
                        "name": entry.name,
                        "agent": entry.agent,
                        "after": [stages[before].name for before in entry.after],
                    }
                    for entry in stages
                ],
            }
        return hints


def check_fits(settings: BenchSettings, pool: int) -> None:
    """Refuse a workload with a request that the pool can never hold.

    Raises
    ------
    ConfigError
        Names the tokens needed and there.
    """
    shape = BenchWorkload(settings).shape
    need = 0
    for task in shape.tasks:
        for stage, (work,) in zip(shape.workflows[task.workflow].stages, task.stages, strict=True):
            tokens = shape.agents[stage.agent] + work.input_tokens + work.output_tokens
            need = max(need, tokens)
    if need >= pool:
        raise ConfigError(f"pool: {pool} tokens, but a request needs {need}")
