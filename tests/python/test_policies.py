"""The orders of the baselines, and the registry."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from topas.errors import ConfigError
from topas.policies import POLICY_NAMES, Policy, Setup, make_policy, parse_policies
from topas.policies.base import Id


@dataclass
class _Request:
    id: int
    task: Id
    agent: str = "A"
    stage: str = "s"
    depth: int = 0
    ready_s: float = 0.0
    task_arrival_s: float = 0.0
    input_tokens: int = 10
    max_new_tokens: int = 10
    generated_tokens: int = 0


@dataclass
class _View:
    waiting: list[_Request]
    running: list[_Request] = field(default_factory=list)
    resident: dict[str, int] = field(default_factory=dict)

    def resident_tokens(self, agent: str) -> int:
        return self.resident.get(agent, 0)


QUEUE = [
    _Request(1, "x", agent="A", depth=0, ready_s=5.0, task_arrival_s=1.0),
    _Request(2, "y", agent="B", depth=2, ready_s=4.0, task_arrival_s=2.0),
    _Request(3, "z", agent="A", depth=1, ready_s=3.0, task_arrival_s=3.0),
    _Request(4, "x", agent="C", depth=1, ready_s=6.0, task_arrival_s=1.0),
    _Request(5, "z", agent="B", depth=2, ready_s=3.0, task_arrival_s=3.0),
]


def _order(policy: Policy, resident: dict[str, int] | None = None) -> list[int]:
    plan = policy.plan(10.0, _View(list(QUEUE), resident=resident or {}))
    assert plan.resident is None
    assert list(plan.preempt) == []
    return list(plan.admit)


def test_fcfs_goes_by_arrival_of_the_request() -> None:
    assert _order(make_policy("fcfs", {})) == [3, 5, 2, 1, 4]


def test_parrot_goes_by_arrival_of_the_task_then_of_the_request() -> None:
    assert _order(make_policy("parrot", {})) == [1, 4, 2, 3, 5]


def test_lpm_goes_by_tokens_in_the_pool_then_by_arrival() -> None:
    policy = make_policy("lpm", {})
    assert _order(policy, {"A": 100, "C": 300}) == [4, 3, 1, 5, 2]
    assert _order(policy) == [3, 5, 2, 1, 4]


def test_spf_goes_by_depth_then_by_arrival() -> None:
    assert _order(make_policy("spf", {})) == [5, 2, 3, 4, 1]


def test_las_goes_by_service_of_the_task() -> None:
    policy = make_policy("las", {})
    policy.begin(Setup({}, {}))
    for task in ("x", "y", "z"):
        policy.task_arrived(0.0, task, "w")
    assert _order(policy) == [3, 5, 2, 1, 4]
    policy.request_completed(1.0, _Request(8, "z"), 2.0)
    policy.request_completed(1.0, _Request(9, "z"), 2.0)
    policy.request_completed(1.0, _Request(10, "x"), 3.0)
    assert _order(policy) == [2, 1, 4, 3, 5]


def test_las_forgets_tasks_that_ended_and_earlier_runs() -> None:
    policy = make_policy("las", {})
    policy.task_arrived(0.0, "x", "w")
    policy.task_arrived(0.0, "y", "w")
    policy.task_finished(1.0, "x")
    policy.task_cancelled(1.0, "y")
    with pytest.raises(KeyError):
        _order(policy)
    policy.task_arrived(0.0, "x", "w")
    policy.begin(Setup({}, {}))
    with pytest.raises(KeyError):
        _order(policy)


def test_every_name_makes_a_policy_of_that_name() -> None:
    fields = {
        "kv_capacity_tokens": 1000,
        "kv_bytes_per_token": 1.0,
        "swap_bytes_per_s": 100.0,
        "decode_s_per_token": 0.02,
    }
    assert POLICY_NAMES == ("fcfs", "lpm", "parrot", "las", "spf", "topas-paper", "topas")
    for name in POLICY_NAMES:
        policy = make_policy(name, fields)
        assert policy.name == name
        assert policy.explicit_residency == name.startswith("topas")


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'nope', known are fcfs, lpm.*topas"):
        make_policy("nope", {})
    with pytest.raises(ConfigError, match=r"'nope', known are .*all"):
        parse_policies("fcfs,nope")
    with pytest.raises(ConfigError, match="policies: unknown ''"):
        parse_policies("")
    with pytest.raises(ConfigError, match="'lpm' is given twice"):
        parse_policies("all,lpm")


def test_lists_of_names() -> None:
    assert parse_policies("all") == list(POLICY_NAMES)
    assert parse_policies("topas, fcfs") == ["topas", "fcfs"]


def test_a_wrong_option_of_topas_is_named() -> None:
    with pytest.raises(ConfigError, match="kv_capacity_tokens"):
        make_policy("topas", {})
    with pytest.raises(ConfigError, match="no_such"):
        make_policy("topas-paper", {"no_such": 1})
