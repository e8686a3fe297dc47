"""``topas explain``: one snapshot's decision for a person."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import topas
from topas.cli.common import console_of
from topas.cli.snapshots import (
    Exact,
    Expectation,
    PresetName,
    Samples,
    SnapshotFile,
    SnapshotLine,
    read_snapshots,
)
from topas.errors import SnapshotError

__all__ = ["explain"]


_TERMS = (
    ("admit", "+", "what the admitted requests gain (paths or services), aged"),
    ("reuse", "+", "reloads that the resident prefixes will save"),
    ("move", "-", "waiting for prefixes that enter and leave"),
    ("redo", "-", "work of preempted requests that is done again"),
    ("revoke", "-", "credit or worth of the preempted requests"),
)


def _names(ids: Sequence[topas.Id]) -> str:
    return escape(", ".join(repr(name) for name in ids)) if ids else "none"


def _signed(sign: str, value: float) -> str:
    return f"{sign}{value:.6g}" if value else "0"


def _nth_line(file: Path, number: int, preset: str, expectation: Expectation) -> SnapshotLine:
    if number < 1:
        raise SnapshotError(f"--line: must be at least 1, got {number}")
    for line in read_snapshots(file, preset, expectation):
        if line.number == number:
            return line
    raise SnapshotError(f"{file}: has no snapshot on line {number}")


def _reason(entry: topas.LeftWaiting, score: float, capacity: int) -> str:
    if entry.reason == "never_fits":
        return f"can never fit: needs {entry.needs_tokens} of {capacity} tokens"
    if entry.reason == "no_slot":
        return "no slot left: the action cap or the limit on running requests is reached"
    if entry.reason == "no_room":
        return f"no room: needs {entry.needs_tokens} tokens, {entry.free_tokens} are free"
    if entry.reason == "standstill":
        return "more is running than the limits allow: nothing can be admitted"
    if entry.reason == "held_back":
        return "held back: room is kept for a request that has waited much longer"
    if entry.reason == "not_worth":
        return "fits, but the state without it scores higher"
    if entry.alternative_score is None:
        return "its prefix is not kept, and no candidate admits it"
    behind = score - entry.alternative_score
    return f"its prefix is not kept; the best state that admits it scores {behind:.6g} s less"


def _chosen(console: Console, decision: topas.Decision) -> None:
    console.print("[bold]Chosen state[/bold]")
    console.print(f"  resident prefixes  {_names(decision.resident)}")
    console.print(f"  load / drop        {_names(decision.load)} / {_names(decision.drop)}")
    console.print(f"  admit, in order    {_names(decision.admit)}")
    console.print(f"  preempt            {_names(decision.preempt)}")


def _score(decision: topas.Decision) -> Table:
    table = Table(title="Score, seconds", title_justify="left", box=None)
    table.add_column("term")
    table.add_column("value", justify="right")
    table.add_column("what it is")
    for name, sign, meaning in _TERMS:
        table.add_row(name, _signed(sign, getattr(decision.terms, name)), meaning)
    table.add_row("[bold]score", f"[bold]{decision.score:.6g}", "")
    return table


def _runners_up(candidates: Sequence[topas.Candidate], evaluated: int, pruned: int) -> Table:
    title = f"Best candidates ({evaluated} prefix sets packed, {pruned} ruled out)"
    table = Table(title=title, title_justify="left", box=None)
    for name in ("score", "admit", "reuse", "move", "redo", "revoke"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("resident", "admits", "preempts"):
        table.add_column(name, overflow="fold", min_width=10)
    for candidate in candidates:
        terms = candidate.terms
        numbers = [terms.score, *(getattr(terms, name) for name, _, _ in _TERMS)]
        table.add_row(
            *(f"{number:.4g}" for number in numbers),
            _names(candidate.resident),
            _names(candidate.admit),
            _names(candidate.preempt),
        )
    return table


def _waiting(explanation: topas.Explanation, capacity: int) -> Table:
    table = Table(title="Left waiting", title_justify="left", box=None)
    table.add_column("request")
    table.add_column("agent")
    table.add_column("gain, s", justify="right")
    table.add_column("why", overflow="fold")
    score = explanation.decision.score
    for entry in explanation.left_waiting:
        table.add_row(
            escape(repr(entry.request)),
            escape(repr(entry.agent)),
            f"{entry.gain:.6g}",
            _reason(entry, score, capacity),
        )
    return table


def explain(
    file: SnapshotFile,
    line: Annotated[int, typer.Option(help="Which line of the file.")] = 1,
    preset: PresetName = "default",
    top: Annotated[int, typer.Option(help="So many candidates.")] = 5,
    samples: Samples = None,
    exact: Exact = False,
) -> None:
    """Explain one decision: the chosen state, its score, the runners-up, who waits and why."""
    chosen = _nth_line(file, line, preset, Expectation(exact, samples))
    explanation = topas.explain(chosen.snapshot, chosen.config, top)
    console = console_of(120)
    _chosen(console, explanation.decision)
    console.print(_score(explanation.decision))
    counts = explanation.decision.evaluated_sets, explanation.decision.pruned_sets
    console.print(_runners_up(explanation.candidates, *counts))
    if explanation.left_waiting:
        console.print(_waiting(explanation, chosen.config.kv_capacity_tokens))
