"""E[LP] in NumPy: enumerated, by plain draws, and the truth that the sampling study measures by.

Independent of the core: `Outcomes` evaluates any sample of a block, `Fork` gives the expectation of
parallel stages without sampling, `TaskPaths` adds the blocks of a task up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from math import prod
from typing import Protocol

import numpy as np
import topas
from numpy.typing import NDArray
from topas.reference.expectation import blocks, residual_support, stage_draws
from topas.reference.score import Scorer
from topas.reference.state import Request, Settings, State, Task, id_key

Floats = NDArray[np.float64]
Block = Sequence[int]


class BlockPath(Protocol):
    """What a block of a task gives: its expected longest path after reductions, seconds."""

    def expected(self, reduction: Floats) -> float:
        """E[LP] with the residual of each stage lowered, not below zero."""
        ...


Method = Callable[[Task, Block], BlockPath]


def supports_of(task: Task, block: Block) -> list[Floats]:
    """The equally likely residuals of each stage of a block, seconds."""
    return [np.array(residual_support(task.stages[v])) for v in block]


class Outcomes:
    """Weighted joint outcomes of a block.

    Parameters
    ----------
    task, block
        Whose stages they are.
    values : array, shape (stages, outcomes)
        Residuals, seconds.
    weights : array, shape (outcomes,), optional
        Probabilities; equal ones when not given.
    """

    def __init__(
        self, task: Task, block: Block, values: Floats, weights: Floats | None = None
    ) -> None:
        self._values = values
        self._weights = weights
        self._next = [
            [at for at, v in enumerate(block) if stage in task.stages[v].after] for stage in block
        ]

    def expected(self, reduction: Floats) -> float:
        """E[LP] after reductions, by reverse topological order."""
        tails: list[Floats] = [np.zeros(0)] * len(self._next)
        longest = np.zeros(self._values.shape[1])
        for at in reversed(range(len(self._next))):
            tail = np.maximum(self._values[at] - reduction[at], 0.0)
            if self._next[at]:
                tail = tail + np.maximum.reduce([tails[after] for after in self._next[at]])
            tails[at] = tail
            np.maximum(longest, tail, out=longest)
        if self._weights is None:
            return float(longest.mean())
        return float((longest * self._weights).sum())


class Fork:
    """A block whose stages are all parallel: E[max] from the product of their distributions."""

    def __init__(self, supports: Sequence[Floats]) -> None:
        self._supports = [np.sort(support) for support in supports]

    def expected(self, reduction: Floats) -> float:
        """E[max] after reductions: its least value, and the area above its distribution."""
        lowered = [np.maximum(s - r, 0.0) for s, r in zip(self._supports, reduction, strict=True)]
        at = np.unique(np.concatenate(lowered))
        below = np.ones(len(at))
        for support in lowered:
            below *= np.searchsorted(support, at, side="right") / len(support)
        return float(at[0] + ((1.0 - below[:-1]) * np.diff(at)).sum())


def is_fork(task: Task, block: Block) -> bool:
    """Say whether no stage of a block comes before another."""
    return not any(before in block for v in block for before in task.stages[v].after)


# --------------------------------------------------------------------------------- methods


def enumerated(task: Task, block: Block) -> BlockPath:
    """Every joint outcome of a block."""
    counts = [sorted(Counter(support.tolist()).items()) for support in supports_of(task, block)]
    axes = np.meshgrid(*[[value for value, _ in c] for c in counts], indexing="ij")
    values = np.array([axis.ravel() for axis in axes])
    weights = np.ones(1)
    for c in counts:
        share = np.array([count for _, count in c]) / sum(count for _, count in c)
        weights = np.multiply.outer(weights, share)
    return Outcomes(task, block, values, weights.ravel())


def plain(draws: int, rng: np.random.Generator, limit: int) -> Method:
    """Independent draws where there are more than ``limit`` joint outcomes."""

    def method(task: Task, block: Block) -> BlockPath:
        supports = supports_of(task, block)
        if prod(len(np.unique(support)) for support in supports) <= limit:
            return enumerated(task, block)
        return Outcomes(task, block, np.array([rng.choice(s, draws) for s in supports]))

    return method


def stratified(draws: int, rng: np.random.Generator) -> Method:
    """Stratified draws as in the specification, from NumPy's generator; for large numbers."""

    def method(task: Task, block: Block) -> BlockPath:
        def drawn(support: Floats) -> Floats:
            position = (rng.permutation(draws) + rng.random(draws)) * len(support) / draws
            return support[np.minimum(position.astype(np.int64), len(support) - 1)]

        return Outcomes(task, block, np.array([drawn(s) for s in supports_of(task, block)]))

    return method


def as_the_core(settings: Settings) -> Method:
    """The core's own outcomes, to compare the arithmetic with."""

    def method(task: Task, block: Block) -> BlockPath:
        supports = supports_of(task, block)
        if prod(len(np.unique(support)) for support in supports) <= settings.exact_limit:
            return enumerated(task, block)
        drawn = [
            stage_draws(s.tolist(), settings.samples, settings.seed, task.id, v)
            for v, s in zip(block, supports, strict=True)
        ]
        return Outcomes(task, block, np.array(drawn))

    return method


def truth(draws: int, seed: int, limit: int = 4096) -> Method:
    """No sampling for parallel stages and small blocks, else a large stratified sample."""
    sample = stratified(draws, np.random.default_rng(seed))

    def method(task: Task, block: Block) -> BlockPath:
        if is_fork(task, block):
            return Fork(supports_of(task, block))
        small = prod(len(np.unique(s)) for s in supports_of(task, block)) <= limit
        return (enumerated if small else sample)(task, block)

    return method


# ---------------------------------------------------------------------------- tasks, scores


class TaskPaths:
    """E[LP(Z(H))] of a task, block by block, by one method."""

    def __init__(self, task: Task, method: Method) -> None:
        self._task = task
        self._method = method
        self._blocks = [tuple(block) for block in blocks(task)]
        self._paths: dict[tuple[int, ...], BlockPath] = {}
        self._known: dict[tuple[tuple[int, ...], frozenset[Request]], float] = {}

    def total(self, completions: Iterable[Request] = ()) -> float:
        """E[LP(Z(H))] over all blocks, seconds."""
        done = frozenset(completions)
        return sum(self._of_block(block, done) for block in self._blocks)

    def marginal(self, request: Request, completions: Collection[Request]) -> float:
        """Delta(r | H), seconds."""
        done = frozenset(completions)
        return sum(
            self._of_block(block, done) - self._of_block(block, done | {request})
            for block in self._blocks
            if request.stage in block
        )

    def _of_block(self, block: tuple[int, ...], done: frozenset[Request]) -> float:
        here = frozenset(r for r in done if r.stage in block)
        key = (block, here)
        if key not in self._known:
            if block not in self._paths:
                self._paths[block] = self._method(self._task, block)
            reduction = np.zeros(len(block))
            for request in sorted(here, key=lambda r: id_key(r.id)):
                reduction[block.index(request.stage)] += request.expected_service_s
            self._known[key] = self._paths[block].expected(reduction)
        return self._known[key]


class MethodScorer(Scorer):
    """The reference's score, its expectations by one method."""

    def __init__(self, state: State, method: Method) -> None:
        super().__init__(state)
        self._method = method
        self._paths: dict[object, TaskPaths] = {}

    def expectation(self, task: int | str) -> TaskPaths:  # type: ignore[override]
        """The expected longest path of a task."""
        if task not in self._paths:
            self._paths[task] = TaskPaths(self.state.tasks[task], self._method)
        return self._paths[task]

    def score(self, decision: topas.Decision) -> float:
        """J of a decision, seconds, its admissions in their order."""
        state = self.state
        resident = frozenset(decision.resident)
        kept = [r for r in state.running if r.agent in resident]
        done = kept if state.settings.count_running else []
        waiting = {r.id: r for r in state.waiting}
        admit: list[Request] = []
        gains: list[float] = []
        for request in (waiting[name] for name in decision.admit):
            gains.append(self.gain(request, [*admit, *done]))
            admit.append(request)
        preempt = [r for r in state.running if r.agent not in resident]
        return self.terms(resident, admit, gains, preempt).score
