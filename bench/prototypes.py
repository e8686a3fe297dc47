"""Run policies that are no part of topas, e.g. ``my_module:MyPolicy``.

A prototype is a :class:`topas.policies.base.Policy` whose first argument is the mapping of
:func:`topas.sim.profiles.config_fields`; its settings are keyword arguments.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from topas.sim.builtin import make_workload
from topas.sim.engine import Engine
from topas.sim.metrics import summarise
from topas.sim.profiles import config_fields
from topas.sim.study.sweep import Cell, CellResult

PREFIX = "prototype "


def is_prototype(cell: Cell) -> bool:
    """Whether the policy of a cell is none that the registry knows."""
    return cell.policy.startswith(PREFIX)


def load(name: str) -> Callable[..., object]:
    """The class that ``MODULE:CLASS`` names.

    Raises
    ------
    SystemExit
        There is none.
    """
    module, colon, attribute = name.partition(":")
    try:
        found: Callable[..., object] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SystemExit(f"--prototype {name}: {error}") from None
    if not colon:
        raise SystemExit(f"--prototype {name}: must be MODULE:CLASS")
    return found


def run_one(cell: Cell) -> CellResult:
    """One run; an error is in the result, as of :func:`topas.sim.study.sweep.run_cells`."""
    try:
        workload = make_workload(
            cell.workload, tasks=cell.tasks, rate=cell.rate, seed=cell.seed, lengths=cell.lengths
        )
        fields = config_fields(workload, cell.costs, cell.options)
        policy = load(cell.policy.removeprefix(PREFIX))(fields, **cell.config)
        run = summarise(Engine(workload, policy, cell.costs, cell.options).run())
    except Exception as error:
        return CellResult(cell=cell, error=f"{type(error).__name__}: {error}")
    return CellResult(cell=cell, metrics=run.to_dict())


def run_prototypes(
    cells: Sequence[Cell],
    processes: int | None = None,
    on_cell: Callable[[CellResult], None] | None = None,
) -> list[CellResult]:
    """Runs in parallel, in the order of the cells; with ``processes`` 1 in this process."""
    if processes == 1 or len(cells) < 2:
        return [_told(result, on_cell) for result in map(run_one, cells)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return [_told(result, on_cell) for result in pool.map(run_one, cells)]


def _told(result: CellResult, on_cell: Callable[[CellResult], None] | None) -> CellResult:
    if on_cell is not None:
        on_cell(result)
    return result
