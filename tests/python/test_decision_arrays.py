"""A decision as NumPy arrays is the decision as lists."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from busy import NOW, busy_config, busy_scheduler
from strategies import random_snapshot
from topas import (
    Config,
    Decision,
    DecisionArrays,
    Id,
    Scheduler,
    Snapshot,
    Stage,
    Workflow,
    decide,
)

ID_FIELDS = ("resident", "admit", "preempt", "load", "drop", "unschedulable")


def admission(*requests: Id, agent: Id = 1) -> Decision:
    """Decide to load the agent and to admit all the requests."""
    scheduler = Scheduler(busy_config())
    scheduler.register_agent(agent, 100)
    scheduler.register_workflow(Workflow("w", [Stage("s", agent, service_s=2.0)]))
    for request in requests:
        scheduler.task_arrived(0.0, request, "w")
        scheduler.request_ready(0.0, request, request, "s", 10, 10)
    decision = scheduler.decide(0.0)
    assert sorted(map(str, decision.admit)) == sorted(map(str, requests))
    return decision


def agrees(decision: Decision) -> bool:
    arrays = decision.arrays()
    for field in ID_FIELDS:
        array, ids = getattr(arrays, field), getattr(decision, field)
        dtype = np.int64 if all(isinstance(i, int) for i in ids) else np.object_
        assert (array.dtype, array.shape) == (dtype, (len(ids),)), field
        assert [(type(i), i) for i in array.tolist()] == [(type(i), i) for i in ids], field
    assert list(zip(arrays.admit.tolist(), arrays.credits.tolist(), strict=True)) == list(
        decision.credits.items()
    )
    terms = decision.terms
    by_term = [terms.admit, terms.reuse, terms.move, terms.redo, terms.revoke]
    assert arrays.terms.tolist() == by_term
    return True


@pytest.mark.parametrize("seed", range(150))
def test_equal_to_the_lists(seed: int) -> None:
    fields = random_snapshot(seed)
    config = Config(**fields.pop("config"))
    assert agrees(decide(Snapshot.from_dict(fields), config))


def test_equal_to_the_lists_of_a_scheduler() -> None:
    assert agrees(busy_scheduler().decide(NOW))


def test_integers_over_the_whole_range() -> None:
    ids = (2**63 - 1, -(2**63), 0, 2**53 + 1, -1)
    arrays = admission(*ids).arrays()
    assert arrays.admit.dtype == np.int64
    assert sorted(arrays.admit.tolist()) == sorted(ids)


def test_strings_are_plain_strings() -> None:
    ids = ("", "7", "a\0b", "日本", "🦉", "x" * 1000)
    arrays = admission(*ids).arrays()
    assert arrays.admit.dtype == np.object_
    assert {type(i) for i in arrays.admit} == {str}
    assert set(arrays.admit) == set(ids)


def test_integers_and_strings_are_not_mixed_up() -> None:
    arrays = admission(7, "7").arrays()
    assert arrays.admit.dtype == np.object_
    assert sorted(arrays.admit, key=repr) == ["7", 7]


def test_each_array_goes_by_its_own_ids() -> None:
    arrays = admission(3, 4, agent="planner").arrays()
    assert arrays.load.tolist() == arrays.resident.tolist() == ["planner"]
    assert arrays.admit.dtype == np.int64


def test_an_empty_one_is_of_integers_and_indexes() -> None:
    arrays = Scheduler(busy_config()).decide(0.0).arrays()
    for field in ID_FIELDS:
        array = getattr(arrays, field)
        assert (array.dtype, array.shape) == (np.int64, (0,))
        assert np.arange(3)[array].size == 0
    assert (arrays.credits.dtype, arrays.credits.shape) == (np.float64, (0,))
    assert arrays.terms.tolist() == [0.0] * 5


def test_indexes_arrays_of_the_caller() -> None:
    arrays = admission(2, 0).arrays()
    started = np.zeros(4, dtype=bool)
    started[arrays.admit] = True
    assert started.tolist() == [True, False, True, False]


@pytest.mark.parametrize("ids", [(1, 2), ("a", "b")], ids=["integers", "strings"])
def test_read_only_contiguous_and_of_their_own(ids: tuple[Any, ...]) -> None:
    decision = admission(*ids)
    arrays = decision.arrays()
    for array in arrays:
        assert not array.flags.writeable
        assert array.flags.owndata
        assert array.flags.c_contiguous
        assert array.ndim == 1
    with pytest.raises(ValueError, match="read-only"):
        arrays.admit[0] = arrays.admit[1]
    with pytest.raises(ValueError, match="read-only"):
        arrays.credits[0] = 1.0
    again = decision.arrays()
    assert not np.shares_memory(arrays.credits, again.credits)


def test_outlive_the_decision() -> None:
    decision = admission("first-request", "second-request")
    admit, granted = decision.admit, decision.credits
    arrays = decision.arrays()
    del decision
    admission(*range(20))  # other data where the decision was
    assert arrays.admit.tolist() == admit
    assert arrays.credits.tolist() == [granted[request] for request in admit]


def test_holds_each_string_once() -> None:
    arrays = admission("first-request", "second-request").arrays()
    name = arrays.admit[0]
    held = sys.getrefcount(name)
    del arrays
    assert sys.getrefcount(name) == held - 1


def test_a_named_tuple() -> None:
    arrays = admission(1).arrays()
    assert isinstance(arrays, DecisionArrays)
    order = "resident admit credits preempt load drop unschedulable terms"
    assert " ".join(arrays._fields) == order
    assert arrays[1] is arrays.admit
