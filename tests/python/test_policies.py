"""The orders of the baselines, and the registry."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from topas.errors import ConfigError
from topas.policies import (
    BASELINE_NAMES,
    POLICY_NAMES,
    Continuum,
    KvFlow,
    Plan,
    Policy,
    PolicyName,
    Setup,
    StageProfile,
    make_policy,
    parse_policies,
)
from topas.policies.base import Id
from topas.policies.continuum import time_to_live


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

    def cached_tokens(self, request: _Request) -> int:
        return self.resident_tokens(request.agent)


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


def test_srpt_goes_by_what_is_left_of_the_task() -> None:
    policy = make_policy("srpt", {})
    long = tuple(StageProfile(name, "A", (), 10.0, 5.0) for name in ("s", "t"))
    short = (StageProfile("s", "A", (), 12.0, 12.0),)
    policy.begin(Setup({}, {"long": long, "short": short}))
    for task, workflow in (("x", "short"), ("y", "long"), ("z", "short")):
        policy.task_arrived(0.0, task, workflow)
    assert _order(policy) == [3, 5, 1, 4, 2]  # 12, 20, 12 s are left
    policy.stage_completed(1.0, "y", "t")
    assert _order(policy) == [2, 3, 5, 1, 4]  # 12, 10, 12
    policy.request_completed(2.0, QUEUE[2], 5.0)
    assert _order(policy) == [3, 5, 2, 1, 4]  # 12, 10, 7
    policy.request_completed(2.0, QUEUE[1], 50.0)
    assert _order(policy) == [2, 3, 5, 1, 4]  # 12, 0, 7: more than profiled counts as all of it
    policy.begin(Setup({}, {"long": long, "short": short}))
    with pytest.raises(KeyError):
        _order(policy)  # an earlier run's tasks are forgotten


def test_every_name_makes_a_policy_of_that_name() -> None:
    fields = {
        "kv_capacity_tokens": 1000,
        "kv_bytes_per_token": 1.0,
        "swap_bytes_per_s": 100.0,
        "decode_s_per_token": 0.02,
    }
    assert POLICY_NAMES[: len(BASELINE_NAMES)] == BASELINE_NAMES
    presets = ("topas-paper", "topas-guarded", "topas", "topas-rollout")
    assert POLICY_NAMES[len(BASELINE_NAMES) :] == presets
    assert set(BASELINE_NAMES) >= {
        "fcfs",
        "lpm",
        "parrot",
        "las",
        "spf",
        "srpt",
        "kvflow",
        "continuum",
    }
    for name in parse_policies("all+host"):
        policy = make_policy(name, fields)
        assert policy.name == name
        assert policy.explicit_residency == name.startswith("topas")
        assert policy.needs_host_cache == (name == "kvflow")
    assert make_policy("lpm", fields).name == "lpm"


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'nope', known are fcfs, lpm.*topas"):
        make_policy("nope", {})
    with pytest.raises(ConfigError, match=r"'nope', known are .*all"):
        parse_policies("fcfs,nope")
    with pytest.raises(ConfigError, match="policies: unknown ''"):
        parse_policies("")
    with pytest.raises(ConfigError, match="'lpm' is given twice"):
        parse_policies("all,lpm")
    with pytest.raises(ConfigError, match=r"'spf\+host' is given twice"):
        parse_policies("all+host,spf+host")


def test_lists_of_names() -> None:
    assert parse_policies("all") == list(POLICY_NAMES)
    assert parse_policies("topas, fcfs") == ["topas", "fcfs"]


def test_names_of_runs_with_a_host_cache() -> None:
    assert PolicyName.parse("lpm") == PolicyName("lpm", 0)
    assert PolicyName.parse("lpm+host") == PolicyName("lpm", None)
    assert PolicyName.parse("lpm+host:50000") == PolicyName("lpm", 50_000)
    assert PolicyName.parse("kvflow+host:9") == PolicyName("kvflow", 9)
    assert PolicyName.parse("kvflow").has_host_cache
    assert not PolicyName.parse("topas").has_host_cache
    assert not PolicyName.parse("topas").is_baseline
    both = parse_policies("all+host")
    assert [name for name in both if "+" not in name] == list(POLICY_NAMES)
    assert [name for name in both if "+" in name] == [
        name + "+host" for name in BASELINE_NAMES if name != "kvflow"
    ]
    assert parse_policies("lpm, lpm+host, lpm+host:7") == ["lpm", "lpm+host", "lpm+host:7"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nope+host", r"unknown 'nope\+host'"),
        ("lpm+disk", r"'lpm\+disk': the suffix must be \+host or \+host:TOKENS"),
        ("lpm+", "the suffix must be"),
        ("lpm+host:", "the suffix must be"),
        ("lpm+host:0", "the suffix must be"),
        ("lpm+host:-5", "the suffix must be"),
        ("lpm+host:1.5", "the suffix must be"),
        ("lpm+host+host", "the suffix must be"),
        ("topas+host", "prefixes of topas always have host copies"),
        ("kvflow+host", "kvflow always has a host cache"),
    ],
)
def test_wrong_suffixes_are_named(name: str, message: str) -> None:
    for use in (PolicyName.parse, parse_policies, lambda text: make_policy(text, {})):
        with pytest.raises(ConfigError, match=message):
            use(name)


def _stage(name: str, agent: str, *after: str) -> StageProfile:
    return StageProfile(name, agent, after, 1.0, 1.0)


WORKFLOWS = {
    # a -> (b, c -> d) -> e: e waits for both branches; x is called first and last
    "fork": (
        _stage("a", "X"),
        _stage("b", "B", "a"),
        _stage("c", "C", "a"),
        _stage("d", "D", "c"),
        _stage("e", "E", "b", "d"),
        _stage("f", "X", "e"),
    ),
    "one": (_stage("only", "E"),),
}
AGENTS = {"X": 1, "B": 1, "C": 1, "D": 1, "E": 1, "unused": 1}


def _kvflow() -> KvFlow:
    policy = KvFlow()
    policy.begin(Setup(AGENTS, WORKFLOWS))
    return policy


def test_kvflow_counts_steps_to_execution() -> None:
    policy = _kvflow()
    assert policy.steps_to_execution() == {}
    policy.task_arrived(0.0, 1, "fork")
    assert policy.steps_to_execution() == {"X": 0, "B": 1, "C": 1, "D": 2, "E": 3}
    policy.stage_completed(1.0, 1, "a")
    assert policy.steps_to_execution() == {"B": 0, "C": 0, "D": 1, "E": 2, "X": 3}
    policy.stage_completed(2.0, 1, "b")  # the join still waits for c and d
    assert policy.steps_to_execution() == {"C": 0, "D": 1, "E": 2, "X": 3}
    policy.task_arrived(3.0, 2, "one")  # the least over all tasks
    assert policy.steps_to_execution() == {"C": 0, "D": 1, "E": 0, "X": 3}
    policy.task_cancelled(4.0, 2)
    policy.stage_completed(4.0, 1, "c")
    assert policy.steps_to_execution() == {"D": 0, "E": 1, "X": 2}
    policy.task_finished(5.0, 1)
    assert policy.steps_to_execution() == {}
    policy.task_arrived(6.0, 1, "one")
    policy.begin(Setup(AGENTS, WORKFLOWS))
    assert policy.steps_to_execution() == {}


def test_kvflow_goes_by_arrival_and_advises_the_next_step() -> None:
    policy = _kvflow()
    policy.task_arrived(0.0, 1, "fork")
    plan = policy.plan(1.0, _View(list(QUEUE)))
    assert list(plan.admit) == [3, 5, 2, 1, 4]
    assert plan.advice is not None
    assert plan.advice.distance == {"X": 0, "B": 1, "C": 1, "D": 2, "E": 3}
    assert list(plan.advice.prefetch) == ["B", "C"]
    assert not plan.advice.pinned_until_s


def test_the_time_to_live_of_the_greatest_worth() -> None:
    assert time_to_live([], 5.0) == 0.0
    assert time_to_live([1.0, 2.0, 30.0], 0.5) == 0.0  # never worth its memory
    # at 1: 5/3 - 1; at 2: 10/3 - 2; at 30: 5 - 30
    assert time_to_live([1.0, 2.0, 30.0], 5.0) == 2.0
    assert time_to_live([30.0, 2.0, 1.0], 100.0) == 30.0  # 100 - 30 > 200/3 - 2
    assert time_to_live([0.0, 0.0, 9.0], 9.0) == 0.0
    assert time_to_live([2.0, 2.0], 2.0) == 0.0  # of equal worth the shortest


def _continuum() -> Continuum:
    policy = Continuum()
    policy.begin(Setup({"A": 1, "B": 1}, {}, {"A": 3.0, "B": 0.0}))
    return policy


def _pins(plan: Plan) -> dict[str, float]:
    assert plan.advice is not None
    return dict(plan.advice.pinned_until_s)


def test_continuum_pins_over_a_tool_wait_and_puts_the_returned_first() -> None:
    policy = _continuum()
    other = _Request(1, "old", agent="B", task_arrival_s=0.0, ready_s=0.0)
    young = _Request(2, "young", agent="B", task_arrival_s=1.0, ready_s=0.5)
    assert list(policy.plan(1.0, _View([young, other])).admit) == [1, 2]
    policy.request_completed(10.0, _Request(3, "t", ready_s=4.0), 5.0)
    plan = policy.plan(10.0, _View([]))
    assert _pins(plan) == {"A": 12.0}  # 2 s before anything is known
    assert plan.advice is not None
    assert plan.advice.contexts_pinned_until_s == {("t", "s"): 12.0}
    assert _pins(policy.plan(12.0, _View([]))) == {}
    back = _Request(4, "t", agent="A", task_arrival_s=2.0, ready_s=11.0)
    policy.request_ready(11.0, back)
    plan = policy.plan(11.0, _View([other, young, back]))
    assert list(plan.admit) == [4, 1, 2]
    assert _pins(plan) == {"A": float("inf")}  # until it is admitted
    assert plan.advice is not None
    assert plan.advice.contexts_pinned_until_s == {("t", "s"): float("inf")}
    assert _pins(policy.plan(11.5, _View([other], running=[back]))) == {}
    policy.request_completed(13.0, back, 1.0)
    policy.stage_completed(13.0, "t", "s")  # the last round: nothing comes back
    assert _pins(policy.plan(13.0, _View([other]))) == {}


def test_continuum_forgets_a_return_that_came_too_late_and_a_task_given_up() -> None:
    policy = _continuum()
    policy.request_completed(10.0, _Request(1, "t"), 5.0)
    late = _Request(2, "t", task_arrival_s=5.0, ready_s=12.5)
    policy.request_ready(12.5, late)
    first = _Request(3, "u", task_arrival_s=4.0)
    plan = policy.plan(12.5, _View([late, first]))
    assert list(plan.admit) == [3, 2]
    assert _pins(plan) == {}
    policy.request_completed(20.0, _Request(4, "v"), 5.0)
    back = _Request(5, "w", task_arrival_s=9.0)
    policy.request_completed(20.0, _Request(6, "w"), 5.0)
    policy.request_ready(20.5, back)
    policy.task_cancelled(21.0, "v")
    policy.task_cancelled(21.0, "w")
    assert _pins(policy.plan(21.0, _View([first]))) == {}


def test_continuum_learns_waits_and_queueing_delays() -> None:
    policy = _continuum()
    for index in range(10):  # delays of 4 s, waits of 1 to 10 s
        done = _Request(100 + index, index, ready_s=0.0)
        policy.request_completed(10.0, done, 6.0)
        policy.request_ready(11.0 + index, _Request(200 + index, index))
    policy.request_completed(50.0, _Request(1, "t", ready_s=40.0), 6.0)
    # 7 s of benefit: each second of waiting gains 0.7 and costs 1
    assert _pins(policy.plan(50.0, _View([]))) == {}
    for index in range(10):  # delays of 64 s now and then
        policy.request_completed(100.0, _Request(300 + index, index, ready_s=30.0), 6.0)
        policy.stage_completed(100.0, index, "s")
    policy.request_completed(100.0, _Request(2, "u", ready_s=90.0), 6.0)
    # about 34 s + 3 s: all ten waits are worth their time
    assert _pins(policy.plan(100.0, _View([]))) == {"A": 110.0}
    # B has no waits of its own: those of all agents count
    policy.request_completed(100.0, _Request(3, "v", agent="B", ready_s=90.0), 6.0)
    assert _pins(policy.plan(100.0, _View([]))) == {"A": 110.0, "B": 110.0}
    policy.begin(Setup({}, {}))
    policy.request_completed(100.0, _Request(2, "u"), 6.0)
    assert _pins(policy.plan(100.0, _View([]))) == {"A": 102.0}


def test_a_wrong_option_of_topas_is_named() -> None:
    with pytest.raises(ConfigError, match="kv_capacity_tokens"):
        make_policy("topas", {})
    with pytest.raises(ConfigError, match="no_such"):
        make_policy("topas-paper", {"no_such": 1})
