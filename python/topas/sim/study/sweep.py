"""Many runs on all processors, which can be interrupted and goes on where it was.

A sweep is a list of cells; each names a workload, a policy and all settings, so that its figures
depend on nothing else. Finished cells are appended to a file, one JSON line each, and are read from
there the next time. What comes back is the same, byte for byte, whatever the number of processes
and however often the sweep was interrupted.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from topas.errors import StateError
from topas.sim.builtin import Lengths, make_workload
from topas.sim.checks import check_int
from topas.sim.cost import EngineCosts
from topas.sim.options import EngineOptions
from topas.sim.runner import run_policy
from topas.sim.study.resume import ResumeFile, key_of

__all__ = ["Cell", "CellResult", "run_cells", "show_progress"]

# Figures by task, which would make most of a file.
_LEFT_OUT = ("jct_s", "cancelled_tasks", "unfinished_tasks")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of one built-in workload under one policy.

    Parameters
    ----------
    workload : str
        One of :data:`topas.sim.BUILTIN_WORKLOADS`.
    tasks, rate, seed
        As of :func:`topas.sim.make_workload`.
    policy : str
        One of :data:`topas.policies.POLICY_NAMES`.
    lengths : Lengths, optional
        Token counts of the workload; ``None``: its defaults.
    costs, options : EngineCosts, EngineOptions
        The engine.
    config : mapping
        Fields of :class:`topas.Config` on top of the policy's preset; plain values.
    label : str
        What reports call the policy with its settings; empty: its name. No part of the key.
    with_jct : bool
        Whether the result has the completion time of each task.
    """

    workload: str
    tasks: int
    rate: float
    seed: int
    policy: str
    lengths: Lengths | None = None
    costs: EngineCosts = field(default_factory=EngineCosts)
    options: EngineOptions = field(default_factory=EngineOptions)
    config: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    with_jct: bool = False

    @property
    def name(self) -> str:
        """For reports and errors: workload, rate, seed and policy."""
        return f"{self.workload} rate {self.rate:g} seed {self.seed} {self.label or self.policy}"

    def key(self) -> str:
        """Digest of all that the result depends on: the settings, and the code of topas.

        Raises
        ------
        ConfigError
            ``config`` has a value that JSON has no form for.
        """
        settings = {name: value for name, value in asdict(self).items() if name != "label"}
        return key_of(self.name, settings)


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """Figures of one cell.

    Parameters
    ----------
    cell : Cell
        Which one.
    metrics : mapping
        :class:`topas.sim.RunMetrics` as plain values, without those by task. Empty after an error.
    jct_s : list of float or None
        Completion times of the finished tasks in the order of their ids, seconds, if asked for.
    error : str
        Why there are no figures, or empty.
    """

    cell: Cell
    metrics: Mapping[str, Any] = field(default_factory=dict)
    jct_s: list[float] | None = None
    error: str = ""

    def describe_error(self) -> str:
        """The error with the cell's name, or empty."""
        return f"{self.cell.name}: {self.error}" if self.error else ""


def _figures(cell: Cell) -> dict[str, Any]:
    workload = make_workload(
        cell.workload, tasks=cell.tasks, rate=cell.rate, seed=cell.seed, lengths=cell.lengths
    )
    run, _ = run_policy(
        workload, cell.policy, costs=cell.costs, options=cell.options, config=cell.config
    )
    metrics = {name: value for name, value in run.to_dict().items() if name not in _LEFT_OUT}
    figures: dict[str, Any] = {"metrics": metrics}
    if cell.with_jct:
        figures["jct_s"] = list(run.jct_s.values())
    return figures


def _try_cell(cell: Cell) -> tuple[dict[str, Any], str]:
    """Figures, or what went wrong: an exception itself may not survive between processes."""
    try:
        return _figures(cell), ""
    except Exception as error:
        return {}, f"{type(error).__name__}: {error}"


def _ignore_interrupts() -> None:
    """In a worker: Ctrl-C reaches the whole group, and the parent decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_cells(
    cells: Sequence[Cell],
    *,
    processes: int | None = None,
    resume: Path | str | None = None,
    on_cell: Callable[[CellResult], None] | None = None,
) -> list[CellResult]:
    """Run cells in parallel.

    Parameters
    ----------
    cells : sequence of Cell
        What to run; equal cells are run once.
    processes : int, optional
        At most so many at a time, at least 1; default: as many as there are processors. With 1 all
        runs are made in this process. With more, a script that calls this needs the usual
        ``if __name__ == "__main__"``, as workers import it.
    resume : path, optional
        File of finished cells: what it has is not run again, what is run is added. It may hold
        other cells, and an interrupted last line. Cells with an error are not in it, so they are
        tried again. Only one sweep at a time may write to it.
    on_cell : callable, optional
        Called with each result as it comes, in no fixed order; those from the file first.

    Returns
    -------
    list of CellResult
        One for each cell, in their order. A cell that could not be run has an ``error``; the others
        are not affected.

    Raises
    ------
    ConfigError
        ``processes`` is not legal, or ``resume`` is a file of something else.
    StateError
        A worker process died (out of memory, or killed). What was finished is in ``resume``.
    KeyboardInterrupt
        As usual; what was finished is in ``resume``, the cells under way are lost.
    """
    workers = processes if processes is not None else _processors()
    check_int("processes", workers, minimum=1)
    file = ResumeFile(Path(resume)) if resume is not None else None
    keys = [cell.key() for cell in cells]
    results: dict[str, CellResult] = {}
    todo: dict[str, Cell] = {}
    for key, cell in zip(keys, cells, strict=True):
        if file is not None and key in file.found:
            if key not in results:
                results[key] = CellResult(cell=cell, **file.found[key])
                _tell(on_cell, results[key])
        else:
            todo.setdefault(key, cell)
    workers = min(workers, len(todo))
    with closing(_one_by_one(todo) if workers <= 1 else _pooled(todo, workers)) as outcomes:
        for key, (figures, error) in outcomes:
            results[key] = CellResult(cell=todo[key], error=error, **figures)
            if file is not None and not error:
                file.append(key, todo[key].name, figures)
            _tell(on_cell, results[key])
    return [replace(results[key], cell=cell) for key, cell in zip(keys, cells, strict=True)]


def _processors() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _tell(on_cell: Callable[[CellResult], None] | None, result: CellResult) -> None:
    if on_cell is not None:
        on_cell(result)


_Outcome = tuple[str, tuple[dict[str, Any], str]]


def _one_by_one(todo: Mapping[str, Cell]) -> Generator[_Outcome, None, None]:
    for key, cell in todo.items():
        yield key, _try_cell(cell)


def _pooled(todo: Mapping[str, Cell], workers: int) -> Generator[_Outcome, None, None]:
    context = get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_ignore_interrupts)
    key_of: dict[Future[tuple[dict[str, Any], str]], str] = {}
    given: set[str] = set()
    try:
        for key, cell in todo.items():
            key_of[pool.submit(_try_cell, cell)] = key
        for future in as_completed(key_of):
            outcome = key_of[future], future.result()
            given.add(key_of[future])
            yield outcome
    except BrokenProcessPool as error:
        left = len(todo) - len(given)
        raise StateError(f"a worker process died, {left} of {len(todo)} cells are left") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def show_progress(total: int, what: str) -> Iterator[Callable[[CellResult], None]]:
    """A progress bar on stderr (only on a terminal) for ``on_cell`` of :func:`run_cells`.

    Parameters
    ----------
    total : int
        Number of cells.
    what : str
        Its description.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        line = bar.add_task(what, total=total)
        yield lambda result: bar.advance(line)
