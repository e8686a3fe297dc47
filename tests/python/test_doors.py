"""The two doors agree: after any events, the scheduler decides as the pure function would.

Each step also compares with the readable reference, and the gauges with bookkeeping of our own.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from agreement import differences
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from random_world import EVENT_WEIGHTS, World, random_events, random_workflow, world_config
from topas import Config, Decision, Scheduler, Snapshot, decide, reference

GAUGES = ("tasks", "waiting", "running", "resident", "kv_tokens", "credits")


def small_world(seed: int) -> World:
    """Make a world with few agents and little room, so that decisions are hard."""
    rng = Random(seed)
    agents: list[int | str] = list(rng.sample([1, 2, 3, 10, -4, "1", "2", "10", "é", "plan"], 5))
    prefixes = {agent: rng.choice((0, 100, 200, 350)) for agent in agents}
    workflows = [random_workflow(rng, name, agents) for name in (0, "w", "0")]
    return World(world_config(rng, rng.choice((900, 1500, 4000))), prefixes, workflows, 6)


def contents(decision: Decision) -> dict[str, Any]:
    """Give everything in a decision except for the version of the state."""
    more = {name: getattr(decision, name) for name in ("now", "load", "drop", "evaluated_sets")}
    return {**decision.to_dict(), **more}


def check_doors(world: World) -> None:
    """Compare everything that can be asked in the present state."""
    decision = world.scheduler.decide(world.now)
    assert world.scheduler.decide(world.now) == decision
    snapshot = world.scheduler.snapshot(world.now)
    assert contents(decide(snapshot, world.config)) == contents(decision)
    assert Snapshot.from_dict(snapshot.to_dict()) == snapshot
    fields = {**snapshot.to_dict(), "config": world.config.to_dict()}
    assert differences(decision.to_dict(), reference.decide(fields)) == []
    check_usage(world)
    assert world.scheduler.decide(world.now) == decision, "something that only reads has changed"


def check_usage(world: World) -> None:
    usage = world.scheduler.usage()
    counted = world.usage()
    assert {name: getattr(usage, name) for name in counted} == counted
    stages = sum(len(workflow.stages) for workflow in world.workflows)
    assert 0 <= usage.samples <= 256 * stages


def check_empty(world: World) -> None:
    """Nothing of any task is left, and with nothing left there is nothing to decide."""
    usage = world.scheduler.usage()
    assert {name: getattr(usage, name) for name in GAUGES} == dict.fromkeys(GAUGES, 0)
    decision = world.scheduler.decide(world.now)
    assert (decision.resident, decision.admit, decision.preempt) == ([], [], [])
    snapshot = world.scheduler.snapshot(world.now).to_dict()
    assert (snapshot["tasks"], snapshot["requests"], snapshot["resident"]) == ([], [], [])


@pytest.mark.parametrize("seed", range(40))
def test_doors_agree_after_every_event(seed: int) -> None:
    world = small_world(seed)
    events = random_events(Random(1000 + seed), EVENT_WEIGHTS)
    happened = 0
    while happened < 120:
        if next(events)(world):
            happened += 1
            check_doors(world)
    assert world.names > 0
    world.drain()
    check_empty(world)


def test_random_events_reach_what_they_should() -> None:
    """Preemptions, both endings of tasks, sampled and exact expectations, ties and limits."""
    seen: dict[str, int] = dict.fromkeys(("admit", "preempt", "drop", "load", "unschedulable"), 0)
    ended: dict[str, int] = dict.fromkeys(("finished", "cancelled"), 0)
    for seed in range(24):
        world = small_world(seed)
        events = random_events(Random(1000 + seed), EVENT_WEIGHTS)
        for _ in range(400):
            next(events)(world)
            decision = world.scheduler.decide(world.now)
            for name in seen:
                seen[name] += bool(getattr(decision, name))
        for how, count in world.ended.items():
            ended[how] += count
    assert all(count >= 50 for count in (*seen.values(), *ended.values())), (seen, ended)


class Doors(RuleBasedStateMachine):
    """The same checks on sequences that hypothesis makes up, and shrinks when one fails."""

    picks = st.integers(0, 2**16 - 1)

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.world = small_world(seed)

    @rule(pick=picks)
    def arrive(self, pick: int) -> None:
        self.world.arrive(pick)

    @rule(pick=picks)
    def ready(self, pick: int) -> None:
        self.world.ready(pick)

    @rule(pick=picks)
    def start_some(self, pick: int) -> None:
        self.world.ready(pick)
        self.world.commit()

    @rule(pick=picks)
    def progress(self, pick: int) -> None:
        self.world.progress(pick)

    @rule(pick=picks)
    def complete(self, pick: int) -> None:
        self.world.complete(pick)

    @rule(pick=picks)
    def abort(self, pick: int) -> None:
        self.world.abort(pick)

    @rule(pick=picks)
    def fail_start(self, pick: int) -> None:
        self.world.fail_start(pick)

    @rule(pick=picks)
    def complete_stage(self, pick: int) -> None:
        self.world.complete_stage(pick)

    @rule(pick=picks)
    def skip_stage(self, pick: int) -> None:
        self.world.skip_stage(pick)

    @rule(pick=picks, cancel=st.booleans())
    def end_task(self, pick: int, cancel: bool) -> None:
        self.world.cancel(pick) if cancel else self.world.finish(pick)

    @rule(pick=picks)
    def evict(self, pick: int) -> None:
        self.world.evict(pick)

    @rule(pick=picks)
    def change_prefix(self, pick: int) -> None:
        self.world.change_prefix(pick)

    @rule(pick=picks)
    def wait(self, pick: int) -> None:
        self.world.wait(pick)

    @rule(seed=st.integers(0, 2**16))
    def reconfigure(self, seed: int) -> None:
        config = world_config(Random(seed), self.world.config.kv_capacity_tokens)
        self.world.scheduler.reconfigure(config)
        self.world.config = config

    @invariant()
    def doors_agree(self) -> None:
        if hasattr(self, "world"):
            check_doors(self.world)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()
            check_empty(self.world)


TestDoors = Doors.TestCase
TestDoors.settings = settings(max_examples=100, stateful_step_count=50)


def test_the_core_is_the_same_for_every_rank() -> None:
    """Schedulers that see the same events make the same decisions, and may share one."""
    ranks = [small_world(77) for _ in range(3)]
    streams = [random_events(Random(5), EVENT_WEIGHTS) for _ in ranks]
    for _ in range(500):
        for world, stream in zip(ranks, streams, strict=True):
            next(stream)(world)
        first, *others = [world.scheduler.decide(world.now) for world in ranks]
        assert all(other == first for other in others)
    for world in ranks:
        world.apply(first)
    assert len({str(world.scheduler.snapshot(world.now).to_dict()) for world in ranks}) == 1


def prepared(order: Random) -> Scheduler:
    """Make a scheduler whose tables were filled in a random order at one moment."""
    config = Config(
        kv_capacity_tokens=900,
        kv_bytes_per_token=262144.0,
        swap_bytes_per_s=2e10,
        decode_s_per_token=0.02,
    )
    rng = Random(3)
    agents: list[int | str] = [3, "3", 20, "b", "a"]
    workflows = [random_workflow(rng, name, agents) for name in range(4)]
    scheduler = Scheduler(config)
    for agent in order.sample(agents, len(agents)):
        scheduler.register_agent(agent, 100)
    for workflow in order.sample(workflows, len(workflows)):
        scheduler.register_workflow(workflow)
    tasks = [(f"t{n}", n % 4) for n in range(12)]
    for task, name in order.sample(tasks, len(tasks)):
        scheduler.task_arrived(0.0, task, name)
    ready = [
        (f"{task}/{stage.name}", task, stage.name)
        for task, name in tasks
        for stage in workflows[name].stages
        if not stage.after
    ]
    for request, task, stage_name in order.sample(ready, len(ready)):
        scheduler.request_ready(1.0, request, task, stage_name, 20, 20)
    return scheduler


def test_order_of_simultaneous_events_changes_nothing() -> None:
    wanted = prepared(Random(0))
    for seed in range(1, 12):
        scheduler = prepared(Random(seed))
        assert scheduler.snapshot(2.0) == wanted.snapshot(2.0)
        assert scheduler.decide(2.0) == wanted.decide(2.0)
    assert wanted.decide(2.0).admit
