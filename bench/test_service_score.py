"""The prototype of another score: what it admits, what it gives up, and that runs finish."""

from __future__ import annotations

from dataclasses import dataclass

import policies
import prototypes
import pytest
from service_score import Estimates, ServiceScore
from topas.policies.base import Setup, StageProfile
from topas.sim.sweep import Cell

SETUP = Setup(
    {"A": 100, "B": 50},
    {
        "fork": (
            StageProfile("root", "A", (), 10.0, 10.0),
            StageProfile("left", "A", ("root",), 20.0, 10.0),
            StageProfile("right", "B", ("root",), 5.0, 5.0),
        )
    },
)
CONFIG = {"kv_capacity_tokens": 400, "decode_s_per_token": 0.1}


@dataclass
class Asked:
    """A request as the policy sees it."""

    id: int
    task: int
    stage: str
    agent: str
    task_arrival_s: float = 0.0
    input_tokens: int = 10
    max_new_tokens: int = 40
    generated_tokens: int = 0
    ready_s: float = 0.0
    depth: int = 0


@dataclass
class View:
    """A queue."""

    waiting: list
    running: list

    def resident_tokens(self, agent):
        """No policy of this file asks."""
        raise NotImplementedError(agent)


def policy_with(tasks, **settings):
    policy = ServiceScore(CONFIG, **settings)
    policy.begin(SETUP)
    for task in range(tasks):
        policy.task_arrived(0.0, task, "fork")
    return policy


def test_estimates():
    """Residuals shrink with finished requests, end with the stage; profiles learn from both."""
    known = Estimates(SETUP)
    assert known.age_scale_s == 30.0
    known.arrived(1, "fork")
    assert known.path_s(1) == 30.0
    known.served(Asked(1, 1, "root", "A"), 4.0)
    assert known.path_s(1) == 26.0
    assert known.request_s(Asked(2, 1, "root", "A")) == 4.0
    known.stage_completed(1, "root")
    assert known.path_s(1) == 20.0
    known.arrived(2, "fork")
    assert known.path_s(2) == 24.0
    known.served(Asked(3, 1, "left", "A"), 25.0)
    assert known.path_s(1) == 25.0  # longer than ever seen: one more request of it
    known.finished(1)
    assert known.age_scale_s == 29.0


def test_siblings_count_alone():
    """Each branch of a fork is worth its own service, whatever the other one does."""
    policy = policy_with(1)
    waiting = [Asked(1, 0, "left", "A"), Asked(2, 0, "right", "B")]
    plan = policy.plan(0.0, View(waiting, []))
    assert list(plan.admit) == [1, 2]
    assert plan.resident == {"A", "B"}


def test_admission_by_task_arrival():
    """What does not fit is left out by arrival; the smallest request of each agent keeps room."""
    policy = policy_with(8)
    waiting = [Asked(i, i, "left", "A", task_arrival_s=10.0 - i) for i in range(7)]
    waiting.append(Asked(7, 7, "right", "B", task_arrival_s=20.0))
    plan = policy.plan(20.0, View(waiting, []))
    assert list(plan.admit) == [6, 5, 4, 3, 2, 1]
    assert plan.resident == {"A"}


def test_preemption_has_its_price():
    """A lone fresh request makes way for many, one with progress costs more, beyond d it stays."""
    waiting = [Asked(i, i, "left", "A") for i in range(1, 7)]

    def preempted(generated, **settings):
        running = Asked(0, 0, "right", "B", generated_tokens=generated, max_new_tokens=190)
        return list(policy_with(7, **settings).plan(0.0, View(waiting, [running])).preempt)

    assert preempted(0) == [0]
    assert preempted(40) == [0]
    assert preempted(40, redo_weight=12.0) == []
    assert preempted(40, redo_weight=0.0) == [0]
    assert preempted(60, redo_weight=0.0) == []
    assert preempted(60, redo_weight=0.0, progress_limit=2.0) == [0]
    assert preempted(0, progress_limit=0.0) == [0]


def test_many_agents_climb():
    """Above the number of sets that are tried the climb finds what enumeration would."""
    agents = {f"a{i}": 30 for i in range(7)}
    profiles = tuple(StageProfile(a, a, (), 10.0, 10.0) for a in agents)
    policy = ServiceScore(CONFIG, urgency=0.0)
    policy.begin(Setup(agents, {"flat": profiles}))
    policy.task_arrived(0.0, 0, "flat")
    plan = policy.plan(0.0, View([Asked(i, 0, a, a) for i, a in enumerate(agents)], []))
    assert len(plan.admit) == 400 // 80
    assert not plan.preempt


@pytest.mark.parametrize("workload", ["dag-4", "metagpt-tl"])
def test_runs_finish(workload):
    """All tasks of a loaded run finish, the same way each time."""
    cell = Cell(
        workload=workload, tasks=12, rate=0.2, seed=3, policy="prototype service_score:ServiceScore"
    )
    first, second = prototypes.run_one(cell), prototypes.run_one(cell)
    assert not first.error
    assert first.metrics["finished"] == 12
    assert first.metrics == second.metrics


def test_in_the_table(capsys):
    """A prototype is a row of the table; what cannot be loaded is named."""
    words = ["--workloads", "chain-3", "--tasks", "3", "--seeds", "1", "--processes", "1"]
    name = "service_score:ServiceScore"
    policies.main([*words, "--policies", "lpm", "--prototype", f"{name},redo_weight=8"])
    assert "ServiceScore redo_weight=8" in capsys.readouterr().out
    for wrong in ("no_such:Class", "service_score:Nothing", "service_score"):
        with pytest.raises(SystemExit, match=f"--prototype {wrong}"):
            policies.prototype_of(wrong)
    with pytest.raises(SystemExit, match="--prototype urgency: must be FIELD=VALUE"):
        policies.prototype_of(f"{name},urgency")
    broken = Cell(workload="chain-3", tasks=1, rate=1.0, seed=0, policy=f"prototype {name}")
    broken = prototypes.run_prototypes([prototypes.Cell(**{**vars(broken), "config": {"no": 1}})])
    assert "unexpected keyword argument 'no'" in broken[0].error


def test_nothing_overtakes_the_old():
    """A large request of an old task holds back the others of its set, a young one does not."""
    running = Asked(9, 9, "left", "A", max_new_tokens=140)
    waiting = [
        Asked(1, 1, "left", "A", max_new_tokens=290),
        Asked(2, 2, "left", "A", task_arrival_s=1.0),
    ]

    def admitted(now, **settings):
        policy = policy_with(10, progress_limit=0.0, **settings)
        running.generated_tokens = 100
        return list(policy.plan(now, View(waiting, [running])).admit)

    assert admitted(59.0) == [2]  # 2 * H_age = 60 s
    assert admitted(61.0) == []
    assert admitted(61.0, overtake_limit=3.0) == [2]
