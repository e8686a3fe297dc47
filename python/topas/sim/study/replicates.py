"""Repetitions of a workload in two halves, one to pick settings on and one to judge them on."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from topas.errors import ArgumentError, StateError
from topas.sim.checks import check_int
from topas.sim.cost import EngineCosts
from topas.sim.draws import stream
from topas.sim.options import EngineOptions
from topas.sim.runner import run_policy
from topas.sim.study.resume import ResumeFile, key_of
from topas.sim.workload import Task, Workload

__all__ = ["Outcome", "Replicates", "Run", "redraw", "resample", "run_all"]

# Purpose of the random stream; the number is part of "same seed, same bytes".
_RESAMPLE = 21


@dataclass(frozen=True, kw_only=True)
class Replicates:
    """Repetitions of one workload.

    Parameters
    ----------
    selection, held_out : tuple of Workload
        Those that settings are picked on, and those that they are judged on; as many of each.
    resampled : bool
        Whether they are bootstrap replicates of the same tasks, rather than independent draws.
    """

    selection: tuple[Workload, ...]
    held_out: tuple[Workload, ...]
    resampled: bool


def redraw(make: Callable[[int], Workload], *, seed: int, count: int) -> Replicates:
    """Independent repetitions of a workload that is made from a seed.

    Parameters
    ----------
    make : callable
        The workload of a seed.
    seed : int
        The first seed; the selection has this one and those after it, then comes the other half.
    count : int
        Repetitions in each half, at least 2.

    Raises
    ------
    ConfigError
        ``count`` is not legal.
    """
    check_int("replicates", count, minimum=2)
    made = [make(seed + index) for index in range(2 * count)]
    return Replicates(selection=tuple(made[:count]), held_out=tuple(made[count:]), resampled=False)


def resample(workload: Workload, *, seed: int, count: int, sample: int) -> Replicates:
    """Bootstrap replicates of a recorded workload.

    Each takes a run of successive arrival times, at a place drawn at random, and fills them with
    tasks that are drawn, with replacement, from every other task recorded there: the even ones for
    the selection, the odd ones for the other half. So both halves have the recorded bursts and
    rate, and no task in common.

    Parameters
    ----------
    workload : Workload
        At least four tasks.
    seed : int
        Of the draws.
    count : int
        Replicates in each half, at least 2.
    sample : int
        Most tasks of a replicate, at least 4; a shorter workload is taken whole.

    Raises
    ------
    ConfigError
        ``count`` or ``sample`` is not legal.
    ArgumentError
        There are fewer than four tasks.
    """
    check_int("replicates", count, minimum=2)
    check_int("sample", sample, minimum=4)
    if len(workload.tasks) < 4:
        raise ArgumentError(
            f"workload: {workload.name} has {len(workload.tasks)} tasks, resampling needs 4"
        )
    halves = [
        tuple(_replicate(workload, half, seed, 2 * index + half, sample) for index in range(count))
        for half in (0, 1)
    ]
    return Replicates(selection=halves[0], held_out=halves[1], resampled=True)


def _replicate(workload: Workload, half: int, seed: int, index: int, sample: int) -> Workload:
    draw = stream(seed, _RESAMPLE, index)
    size = min(sample, len(workload.tasks))
    begin = int(draw.integers(len(workload.tasks) - size + 1))
    window = workload.tasks[begin : begin + size]
    pool = [task for at, task in enumerate(window, start=begin) if at % 2 == half]
    picked = draw.integers(len(pool), size=size)
    tasks = [
        replace(pool[int(which)], id=place, arrival_s=slot.arrival_s - window[0].arrival_s)
        for place, (slot, which) in enumerate(zip(window, picked, strict=True))
    ]
    return replace(workload, tasks=tuple(tasks))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one repetition.

    Parameters
    ----------
    workload : int
        Index of the repetition.
    factor : float
        How many times faster than given its tasks arrive.
    policy : str
        As of :func:`topas.sim.run_policy`.
    config : mapping
        Fields of :class:`topas.Config` on top of the policy's preset.
    """

    workload: int
    factor: float
    policy: str
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Figures of one run; ``None`` where it did not finish all its tasks."""

    mean_jct_s: float | None
    p99_jct_s: float | None
    preemptions: int


def _sped_up(workload: Workload, factor: float) -> Workload:
    def sooner(task: Task) -> Task:
        return replace(task, arrival_s=task.arrival_s / factor)

    return replace(workload, tasks=tuple(sooner(task) for task in workload.tasks))


@dataclass(frozen=True)
class _Bench:
    """What a process needs for the runs that it is given."""

    workloads: Sequence[Workload]
    costs: EngineCosts
    options: EngineOptions

    @cached_property
    def digests(self) -> list[str]:
        """Of each workload, with all its tasks."""
        return [hashlib.sha256(repr(each).encode()).hexdigest() for each in self.workloads]

    def key(self, run: Run) -> str:
        """Digest of all that the outcome depends on."""
        settings = {**asdict(run), "workload": self.digests[run.workload]}
        engine = {"costs": asdict(self.costs), "options": asdict(self.options)}
        return key_of(self.name(run), {**settings, **engine})

    def name(self, run: Run) -> str:
        """For files and errors."""
        return f"{self.workloads[run.workload].name} x{run.factor:g} {run.policy}"

    def outcome(self, run: Run) -> Outcome:
        workload = _sped_up(self.workloads[run.workload], run.factor)
        metrics, _ = run_policy(
            workload, run.policy, costs=self.costs, options=self.options, config=run.config
        )
        whole = not metrics.stopped and metrics.finished == metrics.arrived
        return Outcome(
            mean_jct_s=metrics.mean_jct_s if whole else None,
            p99_jct_s=metrics.p99_jct_s if whole else None,
            preemptions=metrics.preemptions,
        )


_bench: _Bench | None = None


def _set_bench(bench: _Bench) -> None:
    """In a worker: keep what all its runs share; Ctrl-C is the parent's to handle."""
    global _bench
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _bench = bench


def _outcome(run: Run) -> Outcome:
    if _bench is None:
        raise StateError("worker: was started without its workloads")
    return _bench.outcome(run)


def run_all(
    workloads: Sequence[Workload],
    runs: Sequence[Run],
    *,
    costs: EngineCosts,
    options: EngineOptions,
    processes: int,
    resume: Path | None = None,
    on_run: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Run repetitions in parallel.

    Parameters
    ----------
    workloads : sequence of Workload
        What the runs refer to.
    runs : sequence of Run
        Which ones.
    costs, options : EngineCosts, EngineOptions
        The engine.
    processes : int
        At most so many at a time, at least 1; with more than 1 a script that calls this needs the
        usual ``if __name__ == "__main__"``.
    resume : Path, optional
        File of finished runs: what it has is not run again, what is run is added
        (:func:`topas.sim.study.sweep.run_cells`, whose files they may share).
    on_run : callable, optional
        Called with each outcome in the order of the runs.

    Returns
    -------
    list of Outcome
        In the order of the runs, the same whatever ``processes`` is.

    Raises
    ------
    ConfigError
        ``processes``, a policy or a setting is not legal, or ``resume`` is a file of something
        else.
    StateError
        A run cannot go on, or a worker process died.
    """
    check_int("processes", processes, minimum=1)
    bench = _Bench(tuple(workloads), costs, options)
    file = ResumeFile(resume) if resume is not None else None
    keys = [bench.key(run) if file is not None else str(at) for at, run in enumerate(runs)]
    done = {key: Outcome(**row["metrics"]) for key, row in file.found.items()} if file else {}
    todo = {key: run for key, run in zip(keys, runs, strict=True) if key not in done}
    fresh = _outcomes(bench, list(todo.values()), min(processes, len(todo)))
    found = []
    with closing(fresh):
        for key, run in zip(keys, runs, strict=True):
            if key not in done:
                done[key] = next(fresh)
                if file is not None:
                    file.append(key, bench.name(run), {"metrics": asdict(done[key])})
            found.append(done[key])
            if on_run is not None:
                on_run(done[key])
    return found


def _outcomes(bench: _Bench, runs: Sequence[Run], workers: int) -> Generator[Outcome, None, None]:
    if workers <= 1:
        yield from map(bench.outcome, runs)
        return
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_set_bench, initargs=(bench,)
    )
    try:
        yield from pool.map(_outcome, runs, chunksize=4)
    except BrokenProcessPool as error:
        raise StateError("a worker process died") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
