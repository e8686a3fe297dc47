"""The five built-in workloads: Chain-3, DAG-4, DAG-10-Wide, MetaGPT-SOP and MetaGPT-TL.

Shapes are those of the paper. The synthetic ones have fixed lengths; the MetaGPT ones have several
rounds a stage, lengths that vary around the defaults (lognormal) and tool waits (exponential). All
randomness comes from numpy's PCG64 with one stream per seed, purpose and task, so that a longer
run starts with the same tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from topas.errors import ConfigError
from topas.sim.checks import check_int, check_number
from topas.sim.draws import lognormal_tokens, stream
from topas.sim.workload import Round, StageShape, Task, WorkflowShape, Workload

__all__ = ["BUILTIN_WORKLOADS", "Lengths", "make_workload", "poisson_arrivals", "prefixes_at"]

# Purposes of random streams; the numbers are part of "same seed, same bytes".
_ARRIVALS, _LENGTHS = 1, 2


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Token counts of a built-in workload.

    Parameters
    ----------
    input_tokens, output_tokens : int
        Dynamic input and generation of a request (of an average one where lengths vary).
    prefix_tokens : tuple of int
        Static prefixes: one for all agents, or one for each in the workload's order; empty: its
        defaults.

    Raises
    ------
    ConfigError
        A value is not a positive integer.
    """

    input_tokens: int = 1400
    output_tokens: int = 700
    prefix_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_int("input_tokens", self.input_tokens, minimum=1)
        check_int("output_tokens", self.output_tokens, minimum=1)
        for tokens in self.prefix_tokens:
            check_int("prefix_tokens", tokens, minimum=0)


@dataclass(frozen=True)
class _Recipe:
    """A built-in workload: default prefixes, stages, and how much lengths and waits vary."""

    agents: Mapping[str, int]
    stages: Callable[[], Sequence[StageShape]]
    input_sigma: float = 0.0
    output_sigma: float = 0.0
    tool_wait_s: float = 0.0
    output_scale: Mapping[str, float] = field(default_factory=dict)


def _chain3() -> Sequence[StageShape]:
    return [StageShape("A", "A"), StageShape("B", "B", (0,)), StageShape("C", "C", (1,))]


def _dag4() -> Sequence[StageShape]:
    return [
        StageShape("A", "A"),
        StageShape("B", "B", (0,)),
        StageShape("C", "C", (0,)),
        StageShape("D", "D", (1, 2)),
    ]


def _dag10() -> Sequence[StageShape]:
    workers = [StageShape(f"W{i}", f"W{i}", (0,)) for i in range(1, 9)]
    return [StageShape("root", "root"), *workers, StageShape("join", "join", tuple(range(1, 9)))]


_SOP_ROUNDS = {
    "ProductManager": 1.5,
    "Architect": 1.5,
    "ProjectManager": 1.2,
    "Engineer": 3.0,
    "QaEngineer": 2.0,
}


def _sop() -> Sequence[StageShape]:
    return [
        StageShape(role, role, (index - 1,) if index else (), rounds=rounds)
        for index, (role, rounds) in enumerate(_SOP_ROUNDS.items())
    ]


_TL_PATH = ("TL", "S1", "TL", "S2", "TL", "S3", "TL", "S4", "TL")
_TL_ROUNDS = {"TeamLeader": 1.2, "S1": 2.0, "S2": 2.0, "S3": 3.0, "S4": 2.0}


def _tl() -> Sequence[StageShape]:
    stages = []
    for index, short in enumerate(_TL_PATH):
        agent = "TeamLeader" if short == "TL" else short
        name = f"TL{index // 2 + 1}" if short == "TL" else short
        after = (index - 1,) if index else ()
        stages.append(StageShape(name, agent, after, rounds=_TL_ROUNDS[agent]))
    return stages


_DAG10_PREFIXES = {
    "root": 5500,
    **{f"W{i}": 3500 + 500 * ((3 * i) % 9) for i in range(1, 9)},
    "join": 6500,
}

_RECIPES: Mapping[str, _Recipe] = {
    "chain-3": _Recipe({"A": 5500, "B": 7500, "C": 3500}, _chain3),
    "dag-4": _Recipe({"A": 5500, "B": 7500, "C": 6500, "D": 4500}, _dag4),
    "dag-10-wide": _Recipe(_DAG10_PREFIXES, _dag10),
    "metagpt-sop": _Recipe(
        {
            "ProductManager": 4500,
            "Architect": 5500,
            "ProjectManager": 3500,
            "Engineer": 7500,
            "QaEngineer": 6500,
        },
        _sop,
        input_sigma=0.3,
        output_sigma=0.5,
        tool_wait_s=3.0,
        output_scale={"ProjectManager": 0.8, "Engineer": 1.2},
    ),
    "metagpt-tl": _Recipe(
        {"TeamLeader": 7000, "S1": 4500, "S2": 5500, "S3": 7500, "S4": 6500},
        _tl,
        input_sigma=0.3,
        output_sigma=0.5,
        tool_wait_s=3.0,
        output_scale={"TeamLeader": 0.5},
    ),
}

#: Names of the built-in workloads.
BUILTIN_WORKLOADS: tuple[str, ...] = tuple(_RECIPES)

# A round's input repeats the stage's earlier rounds: their output and a short tool result each.
_TOOL_RESULT_TOKENS = 200
_MAX_ROUNDS = 8


def poisson_arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Arrivals of a Poisson process from 0 on, seconds; the same gaps for each rate, scaled.

    Parameters
    ----------
    count : int
        How many.
    rate : float
        Arrivals per second, above 0.
    seed : int
        Seed of the trace, at least 0.

    Raises
    ------
    ConfigError
        An argument is not legal.
    """
    check_int("tasks", count, minimum=1)
    check_number("rate", rate, above=True)
    check_int("seed", seed, minimum=0)
    gaps = stream(seed, _ARRIVALS).standard_exponential(count)
    return [float(arrival) for arrival in np.cumsum(gaps) / rate]


def _rounds(stage: StageShape, recipe: _Recipe, draw: np.random.Generator) -> tuple[Round, ...]:
    count = (
        1 + min(int(draw.poisson(stage.rounds - 1.0)), _MAX_ROUNDS - 1) if stage.rounds > 1 else 1
    )
    history = shared = 0
    rounds = []
    for index in range(count):
        fresh = lognormal_tokens(stage.input_tokens, recipe.input_sigma, draw) if index == 0 else 0
        history += fresh
        output = lognormal_tokens(stage.output_tokens, recipe.output_sigma, draw)
        wait = recipe.tool_wait_s * float(draw.standard_exponential()) if index else 0.0
        rounds.append(Round(history, output, wait, shared))
        shared = history + output
        history = shared + _TOOL_RESULT_TOKENS
    return tuple(rounds)


def _prefixes(recipe: _Recipe, lengths: Lengths) -> dict[str, int]:
    given = lengths.prefix_tokens
    if not given:
        return dict(recipe.agents)
    if len(given) == 1:
        return dict.fromkeys(recipe.agents, given[0])
    if len(given) != len(recipe.agents):
        raise ConfigError(
            f"prefix_tokens: {len(given)} lengths for {len(recipe.agents)} agents "
            f"({', '.join(recipe.agents)})"
        )
    return dict(zip(recipe.agents, given, strict=True))


def make_workload(
    name: str, *, tasks: int, rate: float, seed: int = 0, lengths: Lengths | None = None
) -> Workload:
    """A built-in workload.

    Parameters
    ----------
    name : str
        One of :data:`BUILTIN_WORKLOADS`.
    tasks : int
        Number of tasks, at least 1.
    rate : float
        Poisson arrival rate, tasks per second.
    seed : int
        Seed of arrivals, lengths and waits, at least 0.
    lengths : Lengths, optional
        Token counts; default :class:`Lengths`.

    Raises
    ------
    ConfigError
        The name is unknown or an argument is not legal.
    """
    if name not in _RECIPES:
        raise ConfigError(f"workload: unknown {name!r}, known are {', '.join(_RECIPES)}")
    recipe, lengths = _RECIPES[name], lengths or Lengths()
    stages = tuple(
        replace(
            stage,
            input_tokens=float(lengths.input_tokens),
            output_tokens=lengths.output_tokens * recipe.output_scale.get(stage.agent, 1.0),
        )
        for stage in recipe.stages()
    )
    arrivals = poisson_arrivals(tasks, rate, seed)
    built = []
    for index, arrival in enumerate(arrivals):
        draw = stream(seed, _LENGTHS, index)
        rounds = tuple(_rounds(stage, recipe, draw) for stage in stages)
        built.append(Task(index, arrival, name, rounds))
    agents = _prefixes(recipe, lengths)
    profiled = tuple(replace(stage, input_tokens=_mean_input(stage)) for stage in stages)
    parameters = {
        "tasks": tasks,
        "rate": rate,
        "seed": seed,
        "input_tokens": lengths.input_tokens,
        "output_tokens": lengths.output_tokens,
        "prefix_tokens": agents,
    }
    return Workload(name, agents, {name: WorkflowShape(name, profiled)}, tuple(built), parameters)


def prefixes_at(name: str, pressure: float, capacity: int) -> tuple[int, ...]:
    """The prefixes of a built-in workload, all scaled by one factor.

    Parameters
    ----------
    name : str
        One of :data:`BUILTIN_WORKLOADS`.
    pressure : float
        Their sum over the KV capacity.
    capacity : int
        KV capacity, tokens.

    Returns
    -------
    tuple of int
        Tokens, in the workload's order of agents.

    Raises
    ------
    ConfigError
        The name is unknown.
    """
    own = make_workload(name, tasks=1, rate=1.0).agents.values()
    factor = pressure * capacity / sum(own)
    return tuple(round(factor * tokens) for tokens in own)


def _mean_input(stage: StageShape) -> float:
    """Mean input of a round that repeats the earlier ones (exact for a fixed number)."""
    repeated = 0.5 * (stage.rounds - 1.0) * (stage.output_tokens + _TOOL_RESULT_TOKENS)
    return stage.input_tokens + repeated
