"""Failures people hit with such systems, as tests: leaks, inconsistent decisions, lost tasks.

Case numbers are those of the project's list of cases. Case 26 is in test_workflow.py, cases 33
and 34 are in test_config.py, the simulator's part of case 37 is in test_trace.py and
test_sim_runs.py.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from statistics import fmean

import pytest
from busy import busy_config, commit_now, fork_and_join
from random_world import EVENT_WEIGHTS, World, random_events, world_config
from scenarios import STAGE, case_config, one_stage
from topas import Id, Scheduler, Stage, StateError, Workflow


def resident_bytes() -> int:
    """Give the memory that this process has in use now."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("this system does not tell the memory of a process")
    return int(statm.read_text(encoding="ascii").split()[1]) * 4096


AGENTS = 20
BATCH = 10
WINDOW = 256  # totals kept of each stage


class Churn:
    """Short tasks over many agents, a few at a time, ended in every way there is."""

    def __init__(self) -> None:
        # The published score preempts often: credits stay what they were while others age.
        config = case_config(1500, preset="paper", enumerate_max_agents=0, age_scale_s=0.5)
        self.scheduler = Scheduler(config)
        for agent in range(AGENTS):
            self.scheduler.register_agent(agent, 100)
            self.scheduler.register_workflow(one_stage(agent, agent))
        self.rng = Random(9)
        self.now = 0.0
        self.ways: Counter[str] = Counter()
        self.late: list[int] = []
        self.waiting: set[int] = set()
        self.running: set[int] = set()

    def run_batch(self, first: int) -> None:
        """Let some tasks arrive, a third of them ready later; end them all somehow."""
        for task in range(first, first + BATCH):
            self.scheduler.task_arrived(self.now, task, self.rng.randrange(AGENTS))
            if task % 3:
                self.make_ready(task)
            else:
                self.late.append(task)
        self.abort(min(self.waiting), "aborted while waiting")
        while self.waiting or self.running or self.late:
            self.decide()
            self.now += 1.0
            while self.late:
                self.make_ready(self.late.pop())
            self.decide()
            for task in self.rng.sample(sorted(self.running), (len(self.running) + 1) // 2):
                self.end(task)

    def make_ready(self, task: int) -> None:
        tokens = self.rng.randrange(200)
        self.scheduler.request_ready(self.now, task, task, STAGE, tokens, 100)
        self.waiting.add(task)

    def decide(self) -> None:
        decision = commit_now(self.scheduler, self.now)
        self.running |= set(decision.admit)
        self.waiting -= set(decision.admit)
        for task in decision.preempt:
            self.abort(task, "preempted, then aborted")

    def abort(self, task: int, how: str) -> None:
        self.scheduler.request_aborted(self.now, task)
        self.scheduler.task_finished(self.now, task)
        self.forget(task, how)

    def end(self, task: int) -> None:
        """End a running task in one of four ways."""
        chance = self.rng.random()
        if chance < 0.2:
            self.abort(task, "aborted while running")
        elif chance < 0.3:
            self.scheduler.task_cancelled(self.now, task)
            self.forget(task, "cancelled")
        elif chance < 0.35:
            self.scheduler.request_start_failed(self.now, task)
            self.abort(task, "failed to start, then aborted")
        else:
            self.scheduler.request_completed(self.now, task, chance)
            self.scheduler.stage_completed(self.now, task, STAGE)
            self.forget(task, "completed")

    def forget(self, task: int, how: str) -> None:
        self.waiting.discard(task)
        self.running.discard(task)
        self.ways[how] += 1


class TestCase9EntriesThatNeverComeBack:
    """100,000 short tasks over 20 agents; at the end all is as in the beginning."""

    TASKS = 100_000

    def test_nothing_is_left_and_memory_stays_flat(self) -> None:
        churn = Churn()
        memory = []
        for first in range(0, self.TASKS, BATCH):
            if first == self.TASKS // 2:
                memory.append(resident_bytes())
            churn.run_batch(first)
        memory.append(resident_bytes())
        assert commit_now(churn.scheduler, churn.now).resident == []
        assert sum(churn.ways.values()) == self.TASKS
        assert len(churn.ways) == 6, churn.ways
        assert min(churn.ways.values()) > self.TASKS / 200, churn.ways
        assert memory[1] <= memory[0] * 1.03
        usage, fresh = churn.scheduler.usage(), Churn().scheduler.usage()
        assert usage.samples == AGENTS * WINDOW
        for gauge in (
            *("agents", "workflows", "tasks", "waiting", "running"),
            *("resident", "kv_tokens", "credits"),
        ):
            assert getattr(usage, gauge) == getattr(fresh, gauge), gauge
        snapshot = churn.scheduler.snapshot(churn.now).to_dict()
        assert (snapshot["tasks"], snapshot["requests"], snapshot["resident"]) == ([], [], [])
        assert all(len(profile["totals_s"]) == WINDOW for profile in snapshot["profiles"])


class TestCase16InconsistentDecision:
    """20 agents, 300 requests, little room, 5,000 decisions among random events."""

    DECISIONS = 5000
    REQUESTS = 300

    def world(self, seed: int) -> World:
        rng = Random(seed)
        agents: list[Id] = [n if n % 2 else f"agent {n}" for n in range(20)]
        workflows = [
            Workflow(
                f"pair {n}",
                [
                    Stage("first", agents[n], service_s=rng.uniform(1.0, 9.0)),
                    Stage("second", agents[-n], after=("first",), service_s=3.0),
                ],
            )
            for n in range(20)
        ]
        config = case_config(
            2000,
            enumerate_max_agents=0,
            action_cap=(0, 3)[seed],
            age_scale_s=5.0,
            redo_model="kept",
            reuse_weight=1.0,
        )
        prefixes = {agent: rng.choice((0, 100, 300)) for agent in agents}
        return World(config, prefixes, workflows, 200)

    def fill(self, world: World) -> None:
        """Top up the live requests."""
        pick = len(world.waiting)
        while len(world.waiting) + len(world.running) < self.REQUESTS:
            pick += 7
            if not world.ready(pick):
                assert world.arrive(pick)
            elif pick % 3 == 0:
                world.arrive(pick)

    def check(self, world: World) -> Counter[str]:
        """Check one decision against the world's own lists, and apply it."""
        decision = world.scheduler.decide(world.now)
        admit, preempt = decision.admit, decision.preempt
        assert len({*admit, *preempt}) == len(admit) + len(preempt), "no id twice, none in both"
        assert set(admit) <= set(world.waiting)
        assert set(preempt) == {
            request for request in world.running if world.agent_of(request) not in decision.resident
        }
        assert list(decision.credits) == admit
        before = (len(world.waiting), len(world.running))
        world.apply(decision)
        moved = len(admit) - len(preempt)
        assert (len(world.waiting), len(world.running)) == (before[0] - moved, before[1] + moved)
        usage = world.scheduler.usage()
        counted = world.usage()
        assert {name: getattr(usage, name) for name in counted} == counted
        assert usage.kv_tokens <= world.config.kv_capacity_tokens
        return Counter(decisions=1, admit=len(admit), preempt=len(preempt))

    @pytest.mark.parametrize("seed", [0, 1], ids=["no cap", "cap of 3"])
    def test_each_decision_is_consistent(self, seed: int) -> None:
        world = self.world(seed)
        weights = {**EVENT_WEIGHTS, "arrive": 0, "ready": 0, "commit": 0}
        weights |= {"change_prefix": 0, "start": 0}  # they may leave too much running
        events = random_events(Random(seed), weights)
        seen: Counter[str] = Counter()
        while seen["decisions"] < self.DECISIONS // 2:
            self.fill(world)
            for _ in range(3):
                next(events)(world)
            seen += self.check(world)
        assert seen["admit"] > self.DECISIONS / 4
        assert seen["preempt"] > self.DECISIONS / 100
        world.drain()
        assert set(world.usage().values()) - {20} == {0}
        assert world.scheduler.usage().kv_tokens == 0


class TestCase29ABranchThatWillNotRun:
    """S -> (A | B) -> J -> T, one branch taken."""

    def scheduler(self) -> Scheduler:
        scheduler = Scheduler(busy_config())
        scheduler.register_agent("agent", 100)
        services = {"S": 1.0, "A": 2.0, "B": 40.0, "B2": 30.0, "J": 3.0, "T": 4.0}
        after = {"A": "S", "B": "S", "B2": "B", "T": "J"}
        stages = [
            Stage(
                name,
                "agent",
                after=("A", "B2") if name == "J" else tuple(after.get(name, "")),
                service_s=service,
            )
            for name, service in services.items()
        ]
        scheduler.register_workflow(Workflow("w", stages))
        scheduler.task_arrived(0.0, "t", "w")
        self.serve(scheduler, "S", 1.0)
        return scheduler

    @staticmethod
    def serve(scheduler: Scheduler, stage: str, now: float) -> None:
        scheduler.request_ready(now, stage, "t", stage, 10, 10)
        assert commit_now(scheduler, now).admit == [stage]
        scheduler.request_completed(now, stage, 1.0)
        scheduler.stage_completed(now, "t", stage)

    @staticmethod
    def open_stages(scheduler: Scheduler) -> list[int]:
        tasks = scheduler.snapshot(9.0).to_dict()["tasks"]
        stages = tasks[0]["stages"] if tasks else []
        return [index for index, stage in enumerate(stages) if not stage["completed"]]

    def test_skipped_branch_no_longer_counts(self) -> None:
        """Neither in the remaining path nor for what comes next."""
        scheduler = self.scheduler()
        scheduler.request_ready(2.0, "A", "t", "A", 10, 10)
        with_branch = scheduler.decide(2.0)
        assert with_branch.credits["A"] == 0.0, "A is not on the longest path"
        scheduler.stage_skipped(2.0, "t", "B")
        assert self.open_stages(scheduler) == [1, 4, 5], "A, J, T: B2 is reached through B only"
        without = commit_now(scheduler, 2.0)
        critical_path = 1.0 + 40.0 + 30.0 + 3.0 + 4.0  # H_age
        assert without.credits["A"] == pytest.approx((1.0 + 2.0 / critical_path) * 0.02 * 10)
        fields = scheduler.snapshot(2.0).to_dict()
        assert fields["requests"][0]["running"]
        # J follows A directly now: its prefix is the agent's, which the lookahead sees
        assert scheduler.decide(2.0).terms.reuse == pytest.approx(100 / 1e5)

    def test_task_ends_after_the_join(self) -> None:
        scheduler = self.scheduler()
        scheduler.stage_skipped(2.0, "t", "B")
        for now, stage in enumerate(("A", "J", "T"), start=3):
            self.serve(scheduler, stage, float(now))
        assert scheduler.usage().tasks == 0
        assert commit_now(scheduler, 9.0).resident == []
        assert scheduler.usage().kv_tokens == 0

    def test_join_with_an_open_branch_is_refused_by_the_missing_event(self) -> None:
        scheduler = self.scheduler()
        self.serve(scheduler, "A", 2.0)
        with pytest.raises(StateError, match=r"stage_completed or stage_skipped for 'B2'"):
            scheduler.request_ready(3.0, "J", "t", "J", 10, 10)
        scheduler.stage_skipped(3.0, "t", "B")
        self.serve(scheduler, "J", 3.0)

    def test_failed_branch_can_be_given_up(self) -> None:
        """A's request is aborted and A skipped; the other branch and the join go on."""
        scheduler = self.scheduler()
        scheduler.request_ready(2.0, "A", "t", "A", 10, 10)
        commit_now(scheduler, 2.0)
        scheduler.request_aborted(3.0, "A")
        scheduler.stage_skipped(3.0, "t", "A")
        assert self.open_stages(scheduler) == [2, 3, 4, 5]
        for now, stage in enumerate(("B", "B2", "J", "T"), start=4):
            self.serve(scheduler, stage, float(now))
        assert scheduler.usage().tasks == 0

    def test_both_branches_skipped_end_the_task(self) -> None:
        scheduler = self.scheduler()
        scheduler.stage_skipped(2.0, "t", "B")
        assert scheduler.usage().tasks == 1
        scheduler.stage_skipped(2.0, "t", "A")
        assert scheduler.usage().tasks == 0, "J and T were reached through them only"

    def test_task_finished_with_stages_open_leaves_nothing(self) -> None:
        scheduler = self.scheduler()
        scheduler.request_ready(2.0, "A", "t", "A", 10, 10)
        scheduler.request_ready(2.0, "B", "t", "B", 10, 10)
        commit_now(scheduler, 2.0)
        scheduler.task_finished(3.0, "t")
        commit_now(scheduler, 3.0)
        usage = scheduler.usage()
        assert (usage.tasks, usage.waiting, usage.running, usage.credits) == (0, 0, 0, 0)
        assert (usage.resident, usage.kv_tokens) == (0, 0)
        assert scheduler.age_scale_s == 1.0, "it counts with the service it had"


class TestCase31SeveralRequestsInOneStage:
    """Parallel samples and rounds; and an agent removed while it is in use."""

    def scheduler(self) -> Scheduler:
        scheduler = Scheduler(busy_config())
        scheduler.register_agent("A", 100)
        scheduler.register_workflow(
            Workflow("w", [Stage("s", "A", service_s=8.0), Stage("end", "A", after=("s",))])
        )
        scheduler.task_arrived(0.0, "t", "w")
        return scheduler

    @staticmethod
    def counts(scheduler: Scheduler) -> tuple[int, int, int]:
        usage = scheduler.usage()
        return usage.waiting, usage.running, usage.kv_tokens

    def test_stage_ends_by_its_signal_only(self) -> None:
        scheduler = self.scheduler()
        for number in range(4):
            scheduler.request_ready(0.0, number, "t", "s", 40, 60)
        assert self.counts(scheduler) == (4, 0, 0)
        assert commit_now(scheduler, 0.0).admit == [0, 1, 2, 3]
        assert self.counts(scheduler) == (0, 4, 500)
        scheduler.request_aborted(1.0, 2)
        for left, number in ((2, 0), (1, 3), (0, 1)):
            with pytest.raises(StateError, match=f"{left + 1} live request"):
                scheduler.stage_completed(2.0, "t", "s")
            scheduler.request_completed(2.0, number, 2.0)
            assert self.counts(scheduler) == (0, left, 100 + 100 * left)
        scheduler.request_ready(3.0, "retry", "t", "s", 40, 60)  # the stage is still open
        scheduler.request_aborted(3.0, "retry")
        scheduler.stage_completed(3.0, "t", "s")
        profile = scheduler.snapshot(3.0).to_dict()["profiles"][0]
        assert profile == {"id": 0, "totals_s": [6.0], "request_s": 2.0}

    def test_service_is_the_sum_of_rounds_without_tool_waits(self) -> None:
        scheduler = self.scheduler()
        services = (1.0, 2.5, 4.0)
        for turn, service in enumerate(services):
            start = 100.0 * turn
            scheduler.request_ready(start, "round", "t", "s", 40, 60)
            assert commit_now(scheduler, start).admit == ["round"]
            scheduler.request_completed(start + service, "round", service)
            stage = scheduler.snapshot(start + 50.0).to_dict()["tasks"][0]["stages"][0]
            assert stage["service_s"] == sum(services[: turn + 1])
            assert commit_now(scheduler, start + 50.0).resident == [], "idle during the tool call"
        scheduler.stage_completed(300.0, "t", "s")
        profile = scheduler.snapshot(300.0).to_dict()["profiles"][0]
        assert profile == {"id": 0, "totals_s": [7.5], "request_s": fmean(services)}
        assert scheduler.snapshot(300.0).to_dict()["tasks"][0]["arrival"] == 0.0

    def test_agent_in_use_is_not_removed_and_afterwards_it_is_at_once(self) -> None:
        scheduler = self.scheduler()
        for number in range(4):
            scheduler.request_ready(0.0, number, "t", "s", 40, 60)
        commit_now(scheduler, 0.0)
        for number in range(4):
            for remove, word in (
                (lambda: scheduler.unregister_agent("A"), "2 stage"),
                (lambda: scheduler.unregister_workflow("w"), "1 live task"),
            ):
                with pytest.raises(StateError, match=word):
                    remove()
            scheduler.request_completed(1.0, number, 1.0)
        scheduler.task_finished(1.0, "t")
        assert scheduler.usage().resident == 1
        scheduler.unregister_workflow("w")
        scheduler.unregister_agent("A")
        usage = scheduler.usage()
        assert (usage.agents, usage.workflows, usage.resident, usage.kv_tokens) == (0, 0, 0, 0)
        assert scheduler.decide(1.0).drop == []

    def test_parallel_requests_of_one_stage_count_together(self) -> None:
        """Two halves of a stage's service shorten the path by both, not twice by one."""
        scheduler = self.scheduler()
        for number in range(2):
            scheduler.request_ready(0.0, number, "t", "s", 40, 150)  # 3 s each, of 8 s
        decision = scheduler.decide(0.0)
        assert decision.credits == pytest.approx({0: 3.0, 1: 3.0})
        scheduler.request_ready(0.0, 2, "t", "s", 40, 150)
        assert scheduler.decide(0.0).credits == pytest.approx({0: 3.0, 1: 3.0, 2: 2.0})


class TestCase37TasksLostAndTwoClocks:
    """The core's part: every task is somewhere, and no clock but the events' is read."""

    def test_arrived_are_finished_cancelled_and_live(self) -> None:
        rng = Random(37)
        agents: dict[Id, int] = {"A": 200, "B": 300}
        config = world_config(rng, 900)
        world = World(config, agents, [fork_and_join(0), fork_and_join(1)], 15)
        events = random_events(rng, EVENT_WEIGHTS)
        for _ in range(6000):
            next(events)(world)
            live = world.scheduler.usage().tasks
            assert world.arrived == sum(world.ended.values()) + live
        assert min(world.ended.values()) > 50
        world.drain()
        assert world.arrived == sum(world.ended.values())
        assert world.scheduler.usage().tasks == 0

    def decisions(self, pause_s: float) -> list[str]:
        """Play one log of events, slowly or not."""
        rng = Random(73)
        world = World(
            world_config(rng, 900, exact_limit=1), {"A": 200, "B": 300}, [fork_and_join()], 12
        )
        events = random_events(rng, EVENT_WEIGHTS)
        found = []
        for _ in range(150):
            next(events)(world)
            time.sleep(pause_s)
            found.append(repr(world.scheduler.decide(world.now)))
        return found

    def test_decisions_do_not_depend_on_the_load_of_the_machine(self) -> None:
        wanted = self.decisions(0.0)
        stop = threading.Event()

        def burn() -> None:
            while not stop.is_set():
                sum(range(1000))

        threads = [threading.Thread(target=burn, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            assert self.decisions(0.0005) == wanted
        finally:
            stop.set()
            for thread in threads:
                thread.join(timeout=10.0)
