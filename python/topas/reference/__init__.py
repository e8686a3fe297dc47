"""The policy of SPEC.md in plain Python, for reading next to it and for testing the core.

One module a section: `state` (1), `expectation` (2), `score` (3), `pack` (4), `search` (5),
`reservation` (7), `rollout` (8); the presets are `PRESETS`. Clear rather than fast, and never used
by the product: it takes snapshots in their JSON form, imports nothing from the compiled core, and
takes its input to be valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .expectation import Expectation
from .pack import Allocation, fill
from .reservation import reserve
from .rollout import roll_out
from .score import Scorer
from .search import Search
from .state import PRESETS, Id, State, id_key, read_state

__all__ = ["PRESETS", "decide", "expected_longest_path"]


def decide(
    snapshot: Mapping[str, Any], config: object = None, *, preset: str | None = None
) -> dict[str, Any]:
    """Take the decision for a snapshot (docs/specification.md).

    Parameters
    ----------
    snapshot : Mapping
        A state in the JSON form (``config``, ``now``, ``agents``, ``profiles``, ``tasks``,
        ``requests``, ``resident``); other keys are ignored.
    config : Mapping or object, optional
        Configuration fields as keys or attributes; ``snapshot["config"]`` when not given.
    preset : {"paper", "guarded", "default"}, optional
        Fills ``count_running``, ``age_credit`` and ``redo_weight`` where the configuration lacks
        them; without it they must be there.

    Returns
    -------
    dict
        ``resident`` and ``preempt`` (sorted ids), ``admit`` (ids in packing order), ``score`` and
        ``terms`` (seconds), ``credits`` (admitted id to lambda, seconds) and ``unschedulable``
        (sorted ids of waiting requests that do not fit an empty machine). Where no state at all
        is feasible, the running requests stay and nothing is admitted.

    Raises
    ------
    TypeError
        If a configuration field is missing or unknown.
    ValueError
        If ``age_weight`` is positive and ``age_scale_s`` is not set.
    """
    state = read_state(snapshot, config, preset)
    scorer = Scorer(reserve(state))
    found = Search(scorer).run()
    if found is not None and state.settings.work_conserving:
        found = fill(scorer, found)
    if state.settings.rollout_scenarios:
        found = roll_out(scorer, found or _hold(scorer))
    chosen = found or _hold(scorer)
    return {
        "resident": chosen.agents,
        "admit": [request.id for request in chosen.admit],
        "preempt": [request.id for request in chosen.preempt],
        "score": chosen.terms.score,
        "terms": chosen.terms.as_dict(),
        "credits": {
            request.id: gain for request, gain in zip(chosen.admit, chosen.gains, strict=True)
        },
        "unschedulable": unschedulable(state),
    }


def expected_longest_path(
    snapshot: Mapping[str, Any],
    task_id: Id,
    completions: Iterable[Id] = (),
    config: object = None,
    *,
    preset: str | None = None,
) -> float:
    """E[LP(Z(H))] of one task, in seconds (SPEC section 2).

    Parameters
    ----------
    snapshot, config, preset
        As for `decide`.
    task_id : int or str
        The task.
    completions : iterable of int or str
        H, the ids of requests taken as completed; those of other tasks change nothing.
    """
    state = read_state(snapshot, config, preset)
    done = set(completions)
    requests = [r for r in state.waiting + state.running if r.id in done and r.task == task_id]
    return Expectation(state.tasks[task_id], state.settings).total(requests)


def unschedulable(state: State) -> list[Id]:
    """Ids of waiting requests that can never fit: l_a + c_r > C (SPEC section 9)."""
    return sorted((r.id for r in state.waiting if state.never_fits(r)), key=id_key)


def _hold(scorer: Scorer) -> Allocation:
    """Keep the present state, less its idle prefixes, for when nothing is feasible."""
    resident = frozenset(request.agent for request in scorer.state.running)
    terms = scorer.terms(resident, (), (), ())
    return Allocation(resident, (), (), (), serves=True, terms=terms)
