"""How two answers are compared: the discrete parts exactly, the numbers to 1e-9 relative."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from topas import Config, Snapshot, decide, reference
from topas.reference.score import Scorer
from topas.reference.search import Search
from topas.reference.state import read_state

Json = dict[str, Any]

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
DISCRETE = ("resident", "admit", "preempt", "unschedulable")
TERMS = ("admit", "reuse", "move", "redo", "revoke")


def shared_file(relative: str) -> Path:
    """Give a file that is handed out beside the repository; skip the test where it is missing."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"{relative} is not here: it is handed out beside the repository")
    return path


def close(a: float, b: float, tolerance: float = 1e-9) -> bool:
    """Say whether two numbers agree relative to the larger of them and 1."""
    return abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))


def differences(got: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """List in words where two decisions disagree."""
    found = [
        f"{key}: {got[key]} instead of {wanted[key]}"
        for key in DISCRETE
        if key in wanted and got[key] != wanted[key]
    ]
    numbers = {"score": (got["score"], wanted["score"])}
    numbers |= {f"terms.{key}": (got["terms"][key], wanted["terms"][key]) for key in TERMS}
    if got["credits"].keys() == wanted["credits"].keys():
        for name, value in got["credits"].items():
            numbers[f"credits.{name}"] = (value, wanted["credits"][name])
    else:
        found.append(f"credits of {list(got['credits'])} instead of {list(wanted['credits'])}")
    found += [f"{key}: {a} instead of {b}" for key, (a, b) in numbers.items() if not close(a, b)]
    return found


def decided(fields: Json, **changes: Any) -> Json:
    """Give the core's decision, once the reference has agreed."""
    fields = {**fields, "config": {**fields["config"], **changes}}
    got = decide(Snapshot.from_dict(fields), Config.from_dict(fields["config"])).to_dict()
    assert differences(got, reference.decide(fields)) == []
    return got


def is_feasible(fields: Mapping[str, Any]) -> bool:
    """Say whether any state at all is feasible; the empty one is, where nothing runs."""
    if not any(request["running"] for request in fields["requests"]):
        return True
    return Search(Scorer(read_state(fields))).run() is not None


def disagreement(fields: Mapping[str, Any]) -> list[str]:
    """List where the core and the reference disagree about a snapshot with its config."""
    config = Config.from_dict(fields["config"])
    got = decide(Snapshot.from_dict(fields), config).to_dict()
    return differences(got, reference.decide(fields))


def shuffled(fields: Json, rng: Random) -> Json:
    """Give the same state with every list in another order, but for stages: they have indexes."""

    def mixed(rows: list[Any]) -> list[Any]:
        return rng.sample(rows, len(rows))

    profiles = [{**p, "totals_s": mixed(p["totals_s"])} for p in mixed(fields["profiles"])]
    tasks = [
        {**task, "stages": [{**stage, "after": mixed(stage["after"])} for stage in task["stages"]]}
        for task in mixed(fields["tasks"])
    ]
    return {
        **fields,
        "agents": mixed(fields["agents"]),
        "profiles": profiles,
        "tasks": tasks,
        "requests": [dict(mixed(list(request.items()))) for request in mixed(fields["requests"])],
        "resident": mixed(fields["resident"]),
    }
