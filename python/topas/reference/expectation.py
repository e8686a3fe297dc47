"""SPEC section 2: residuals, the longest path, its expectation, and the marginal of a request.

Read from the top: `residual_support` conditions a stage's profile on the service already given,
`longest_path` evaluates one joint realisation, `blocks` cuts a DAG where every path must pass, and
`Expectation` averages block by block, exactly or over the stratified draws of `stage_draws`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from graphlib import TopologicalSorter
from itertools import product
from math import prod

from .state import Id, Request, Settings, Stage, Task, id_key

# ---------------------------------------------------------------------------------- residual


def residual_support(stage: Stage) -> tuple[float, ...]:
    """Sorted equally likely values of a stage's residual Z, with multiplicity, in seconds.

    Zero for a completed stage, every total for one that has not started, what remains of the
    totals beyond the recorded service otherwise; where no total exceeds it, the stage is known to
    be unfinished and one request's service is left.
    """
    if stage.completed:
        return (0.0,)
    if stage.service_s == 0.0:
        remaining = sorted(stage.totals_s)
    else:
        remaining = sorted(x - stage.service_s for x in stage.totals_s if x > stage.service_s)
    return tuple(remaining) or (stage.request_s,)


# ------------------------------------------------------------------------- random numbers

_MASK = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """Scramble 64 bits (one step of SplitMix64)."""
    z = (x + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def hash_id(identifier: Id) -> int:
    """Hash an identifier to 64 bits: integers by value, strings by FNV-1a of their UTF-8 bytes."""
    if isinstance(identifier, int):
        return mix(identifier & _MASK)
    fnv = 0xCBF29CE484222325
    for byte in identifier.encode():
        fnv = ((fnv ^ byte) * 0x100000001B3) & _MASK
    return mix(~fnv & _MASK)


def random_stream(seed: int, task: Id, stage: int) -> Iterator[int]:
    """Yield the 64-bit numbers that belong to (seed, task, stage), without end."""
    state = mix(mix(mix(seed & _MASK) ^ hash_id(task)) ^ stage)
    while True:
        yield mix(state)
        state = (state + _GOLDEN) & _MASK


def stage_draws(
    support: Sequence[float], samples: int, seed: int, task: Id, stage: int
) -> list[float]:
    """Draw a stage's residual ``samples`` times, one draw in each of as many equal strata.

    The strata come in a random order, so that stages of one task are independent of each other.
    The result depends on nothing but the arguments.
    """
    stream = random_stream(seed, task, stage)
    strata = list(range(samples))
    for i in range(samples - 1, 0, -1):
        j = (next(stream) * (i + 1)) >> 64
        strata[i], strata[j] = strata[j], strata[i]
    draws = []
    for stratum in strata:
        jitter = (next(stream) >> 11) * 2.0**-53
        index = int(((stratum + jitter) * len(support)) / samples)
        draws.append(support[min(index, len(support) - 1)])
    return draws


# ------------------------------------------------------------------------------ longest path


def topological_order(task: Task) -> list[int]:
    """Order the stages of a task so that each comes after its predecessors."""
    after = {index: stage.after for index, stage in enumerate(task.stages)}
    return list(TopologicalSorter(after).static_order())


def longest_path(order: Sequence[int], task: Task, residual: Mapping[int, float]) -> float:
    """Longest path of residuals through the stages in ``order``, by reverse topological order."""
    behind = dict.fromkeys(order, 0.0)
    longest = 0.0
    for stage in reversed(order):
        tail = residual[stage] + behind[stage]
        longest = max(longest, tail)
        for before in task.stages[stage].after:
            if before in behind:
                behind[before] = max(behind[before], tail)
    return longest


def ancestors_of(order: Sequence[int], task: Task) -> dict[int, frozenset[int]]:
    """All stages, direct or not, that come before each stage."""
    above: dict[int, frozenset[int]] = {}
    for stage in order:
        parents = task.stages[stage].after
        above[stage] = frozenset(parents).union(*(above[parent] for parent in parents))
    return above


def kept_stages(order: Sequence[int], task: Task) -> list[int]:
    """List the stages that matter: the unfinished ones, and the completed ones between such."""
    above = ancestors_of(order, task)
    unfinished = {v for v in order if not task.stages[v].completed}
    before_unfinished = frozenset[int]().union(*(above[v] for v in unfinished))
    return [
        v for v in order if v in unfinished or (v in before_unfinished and above[v] & unfinished)
    ]


def blocks(task: Task) -> list[list[int]]:
    """Cut a task's unfinished DAG into blocks whose longest paths add up to that of the whole.

    A separator is a stage that comes before or after every other one: some longest path passes
    through it. Separators are blocks of their own, and so are the stages between two of them.
    """
    order = topological_order(task)
    above = ancestors_of(order, task)
    kept = kept_stages(order, task)
    related = {v: sum(u in above[v] or v in above[u] for u in kept) for v in kept}
    separators = {v for v in kept if related[v] == len(kept) - 1}
    place: dict[tuple[int, bool], list[int]] = {}
    for v in kept:
        depth = len(above[v] & separators)
        place.setdefault((depth, v in separators), []).append(v)
    return [place[key] for key in sorted(place)]


# ------------------------------------------------------------------------------- expectation


def lane_mean(values: Iterable[float], count: int) -> float:
    """Mean in eight interleaved partial sums, an order of additions that any machine can keep."""
    lanes = [0.0] * 8
    for k, value in enumerate(values):
        lanes[k % 8] += value
    a, b, c, d, e, f, g, h = lanes
    return (((a + e) + (c + g)) + ((b + f) + (d + h))) / count


def expected_path(task: Task) -> float:
    """Longest path of the expected residuals of a task's stages, in seconds."""
    support = {index: residual_support(stage) for index, stage in enumerate(task.stages)}
    means = {index: lane_mean(values, len(values)) for index, values in support.items()}
    return longest_path(topological_order(task), task, means)


class Expectation:
    """E[LP(Z(H))] of one task for any set H of hypothetical completions (SPEC section 2)."""

    def __init__(self, task: Task, settings: Settings) -> None:
        self._task = task
        self._settings = settings
        self._blocks = blocks(task)
        self._block_of = {v: index for index, block in enumerate(self._blocks) for v in block}
        self._realisations = cache(self._realise)
        self._expected = cache(self._average)

    def total(self, completions: Iterable[Request] = ()) -> float:
        """E[LP(Z(H))] over all blocks, in seconds."""
        done = frozenset(completions)
        return sum(self._of_block(index, done) for index in range(len(self._blocks)))

    def marginal(self, request: Request, completions: Iterable[Request]) -> float:
        """Delta(r | H): how much the completion of ``request`` shortens the expected path."""
        index = self._block_of.get(request.stage)
        if index is None:
            return 0.0
        done = frozenset(completions)
        return self._of_block(index, done) - self._of_block(index, done | {request})

    def _of_block(self, index: int, completions: frozenset[Request]) -> float:
        """Keep the completions that matter to a block, so that equal cases are computed once."""
        return self._expected(
            index, frozenset(r for r in completions if self._block_of.get(r.stage) == index)
        )

    def _average(self, index: int, completions: frozenset[Request]) -> float:
        """Average a block's longest path over its joint realisations."""
        block = self._blocks[index]
        reduction = dict.fromkeys(block, 0.0)
        for request in sorted(completions, key=lambda r: id_key(r.id)):
            reduction[request.stage] += request.expected_service_s
        weighted, count = self._realisations(index)
        return lane_mean(
            (
                weight
                * longest_path(
                    block,
                    self._task,
                    {v: max(z - reduction[v], 0.0) for v, z in zip(block, values, strict=True)},
                )
                for weight, values in weighted
            ),
            count,
        )

    def _realise(self, index: int) -> tuple[list[tuple[float, tuple[float, ...]]], int]:
        """Weighted joint residuals of a block, and what the sum of the weights is."""
        block = self._blocks[index]
        supports = [residual_support(self._task.stages[v]) for v in block]
        distinct = [sorted(Counter(support).items()) for support in supports]
        if prod(map(len, distinct)) <= self._settings.exact_limit:
            outcomes = (tuple(zip(*joint, strict=True)) for joint in product(*distinct))
            total = prod(map(len, supports))
            return [(prod(counts) / total, values) for values, counts in outcomes], 1
        samples, seed = self._settings.samples, self._settings.seed
        columns = (
            stage_draws(support, samples, seed, self._task.id, v)
            for v, support in zip(block, supports, strict=True)
        )
        return [(1.0, values) for values in zip(*columns, strict=True)], samples
