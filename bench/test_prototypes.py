"""A policy that is no part of topas: it runs, it is a row of the table, and errors are named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import policies
import prototypes
import pytest
from topas.policies.base import Plan, Policy, QueueView
from topas.sim.study.sweep import Cell

NAME = "test_prototypes:Largest"


class Largest(Policy):
    """Largest requests first; at most ``limit`` wait to be admitted at a time, 0: all of them."""

    name = "largest"

    def __init__(self, fields: Mapping[str, Any], *, limit: int = 0) -> None:
        self.capacity = fields["kv_capacity_tokens"]
        self.limit = limit

    def plan(self, now: float, view: QueueView) -> Plan:
        """The waiting requests by size."""
        fits = [r for r in view.waiting if r.input_tokens + r.max_new_tokens <= self.capacity]
        order = sorted(fits, key=lambda r: (-r.input_tokens - r.max_new_tokens, r.id))
        return Plan([r.id for r in order[: self.limit or None]])


def cell(**fields: Any) -> Cell:
    given = {"workload": "dag-4", "tasks": 8, "rate": 0.2, "seed": 3, "policy": f"prototype {NAME}"}
    return Cell(**{**given, **fields})


def test_runs_finish_the_same_way_each_time():
    first, second = (prototypes.run_one(cell()) for _ in range(2))
    assert not first.error
    assert first.metrics["finished"] == 8
    assert first.metrics == second.metrics


def test_settings_reach_it():
    one_by_one = prototypes.run_one(cell(config={"limit": 1}))
    assert one_by_one.metrics["mean_jct_s"] != prototypes.run_one(cell()).metrics["mean_jct_s"]


def test_in_the_table(capsys):
    words = ["--workloads", "chain-3", "--tasks", "3", "--seeds", "1", "--processes", "1"]
    policies.main([*words, "--policies", "lpm", "--prototype", f"{NAME},limit=8"])
    assert "Largest limit=8" in capsys.readouterr().out


def test_what_cannot_be_loaded_is_named():
    for wrong in ("no_such:Class", "test_prototypes:Nothing", "test_prototypes"):
        with pytest.raises(SystemExit, match=f"--prototype {wrong}"):
            policies.prototype_of(wrong)
    with pytest.raises(SystemExit, match="--prototype limit: must be FIELD=VALUE"):
        policies.prototype_of(f"{NAME},limit")
    (broken,) = prototypes.run_prototypes([cell(config={"no": 1})])
    assert "unexpected keyword argument 'no'" in broken.error
