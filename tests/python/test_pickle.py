"""What crosses process borders: it comes back equal, and does what the original does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from busy import NOW, busy_config, busy_scheduler, fingerprint, fork_and_join
from strategies import random_snapshot
from topas import Config, Decision, Scheduler, Snapshot, Stage, decide

WAYS: dict[str, Callable[[Any], Any]] = {
    **{
        f"pickle {protocol}": lambda thing, protocol=protocol: pickle.loads(
            pickle.dumps(thing, protocol)
        )
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.fixture(params=WAYS)
def again(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return WAYS[request.param]


def test_config(again: Callable[[Any], Any]) -> None:
    config = busy_config(redo_model="kept", age_scale_s=5.0, seed=2**64 - 1)
    assert again(config) == config
    assert hash(again(config)) == hash(config)


def test_stage(again: Callable[[Any], Any]) -> None:
    stage = Stage("s", 7, after=("r", 3), service_s=2.0, request_s=1.0)
    assert again(stage) == stage
    assert hash(again(stage)) == hash(stage)


def test_workflow(again: Callable[[Any], Any]) -> None:
    workflow = fork_and_join()
    assert again(workflow) == workflow
    assert hash(again(workflow)) == hash(workflow)
    assert again(workflow).critical_path_s == workflow.critical_path_s
    scheduler = busy_scheduler()
    scheduler.register_workflow(again(fork_and_join("other")))
    assert scheduler.usage().workflows == 3


def test_snapshot(again: Callable[[Any], Any]) -> None:
    for seed in range(60):
        fields = random_snapshot(7_000_000 + seed)
        snapshot = Snapshot.from_dict(fields)
        config = Config.from_dict(fields["config"])
        assert again(snapshot) == snapshot
        assert again(snapshot).to_dict() == snapshot.to_dict()
        assert decide(again(snapshot), config) == decide(snapshot, config)


def test_decision(again: Callable[[Any], Any]) -> None:
    for seed in range(60):
        fields = random_snapshot(8_000_000 + seed)
        decision = decide(Snapshot.from_dict(fields), Config.from_dict(fields["config"]))
        copied = again(decision)
        assert copied == decision
        assert copied.to_dict() == decision.to_dict()
        for name in ("now", "load", "drop", "evaluated_sets", "terms", "score", "credits"):
            assert getattr(copied, name) == getattr(decision, name)
        assert repr(copied) == repr(decision)


def test_decision_can_be_committed_afterwards(again: Callable[[Any], Any]) -> None:
    first, second = busy_scheduler(), busy_scheduler()
    decision = first.decide(NOW)
    assert decision.admit
    first.commit(decision)
    second.commit(again(decision))
    assert fingerprint(first) == fingerprint(second)


def test_different_things_are_not_equal() -> None:
    scheduler = busy_scheduler()
    decision, snapshot = scheduler.decide(NOW), scheduler.snapshot(NOW)
    scheduler.request_progress(NOW, "rx", 21)
    assert scheduler.decide(NOW) != decision
    assert scheduler.snapshot(NOW) != snapshot
    assert scheduler.decide(NOW + 1.0) != decision
    assert scheduler.decide(NOW).terms == decision.terms
    assert scheduler.decide(NOW + 1.0).terms != decision.terms
    assert fork_and_join("a") != fork_and_join("b")
    assert Stage("s", 7) != Stage("s", "7")
    for thing in (decision, snapshot, decision.terms, fork_and_join()):
        assert thing != 5
        assert thing is not None
        assert thing != "x"


def test_decision_shows_what_it_decides() -> None:
    decision = busy_scheduler().decide(NOW)
    assert repr(decision) == f"Decision({decision.to_dict()})"
    assert repr(decision.terms) == f"Terms({decision.terms.to_dict()})"
    terms = decision.terms
    assert decision.score == terms.score
    assert terms.score == terms.admit + terms.reuse - terms.move - terms.redo - terms.revoke
    assert terms.to_dict() == decision.to_dict()["terms"]


@pytest.mark.parametrize("name", ["now", "resident", "admit", "preempt", "terms", "score"])
def test_decision_cannot_be_changed(name: str) -> None:
    decision: Decision = busy_scheduler().decide(NOW)
    with pytest.raises(AttributeError):
        setattr(decision, name, None)
    decision.admit.append("x")  # a copy
    assert "x" not in decision.admit


def test_live_scheduler_is_not_copied() -> None:
    """It has a lock and is one place of truth; its snapshot is what can be sent around."""
    scheduler: Scheduler = busy_scheduler()
    for way in WAYS.values():
        with pytest.raises(TypeError):
            way(scheduler)
