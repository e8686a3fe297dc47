"""Requests with and without hints become tasks, stages and agents of the core, and all ends."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
import topas
from topas.sglang import Arrival, Carriers, HeadTable, Hints, Ledger, Namespace, read_hints

SYSTEM = {name: list(range(base, base + 64)) for name, base in (("a", 0), ("b", 1000), ("c", 2000))}
CONFIG = topas.Config(
    kv_capacity_tokens=2_000,
    kv_bytes_per_token=1e3,
    swap_bytes_per_s=1e9,
    decode_s_per_token=0.01,
    age_scale_s=10.0,
)
CHAIN = topas.Workflow(
    "chain",
    (
        topas.Stage("one", "a", service_s=4.0),
        topas.Stage("two", "b", after=("one",), service_s=3.0),
        topas.Stage("three", "c", after=("two",), service_s=2.0),
    ),
)
FORK = topas.Workflow(
    "fork",
    (
        topas.Stage("s", "a"),
        topas.Stage("x", "b", after=("s",)),
        topas.Stage("y", "c", after=("s",)),
        topas.Stage("j", "a", after=("x", "y")),
    ),
)


class World:
    """A ledger with its core, and requests that start and finish by hand."""

    def __init__(self, **options: object) -> None:
        self.core = topas.Scheduler(CONFIG)
        self.ended: list[tuple[str | None, float]] = []
        self.ledger = Ledger(
            self.core,
            HeadTable(min_tokens=16, page_size=8),
            profile_s=lambda tokens, new: 0.001 * tokens + 0.01 * new,
            on_task_end=lambda workflow, took: self.ended.append((workflow, took)),
            **options,
        )
        self.fresh = itertools.count(10_000)
        self.cached: list[list[int]] = []  # what the engine holds

    def holds(self, tokens: np.ndarray, namespace: Namespace) -> int:
        """Say how much of a prefix the engine has in its cache."""
        heads = (head[: len(tokens)] for head in self.cached)
        return max((len(head) for head in heads if list(tokens[: len(head)]) == head), default=0)

    def prompt(self, system: str | None = None, tail: int = 8) -> list[int]:
        head = SYSTEM[system] if system else []
        return [*head, *(next(self.fresh) for _ in range(tail))]

    def come(self, now: float, rid: str, prompt: list[int], **hints: object) -> None:
        self.ledger.arrived(now, Arrival(rid, prompt, 8, hints=Hints(**hints)))

    def serve(self, now: float) -> list[str]:
        decision = self.ledger.decide(now, self.holds)
        return [str(rid) for rid in decision.admit]

    def run(self, now: float, rid: str, prompt: list[int], **hints: object) -> None:
        """Arrive, start and finish within a second."""
        self.come(now, rid, prompt, **hints)
        assert rid in self.serve(now)
        self.ledger.completed(now + 1.0, rid, 1.0)

    def request(self, rid: str) -> dict:
        return next(r for r in self.core.snapshot(1e6).to_dict()["requests"] if r["id"] == rid)

    def tasks(self) -> list[dict]:
        return self.core.snapshot(1e6).to_dict()["tasks"]


def step(stage: str, task: str = "t", workflow: str = "chain", **more: object) -> dict:
    agents = {s.name: s.agent for graph in (CHAIN, FORK) for s in graph.stages}
    return {"task": task, "stage": stage, "agent": agents[stage], "workflow": workflow, **more}


class TestWithoutHints:
    def test_a_request_is_a_task_of_its_own(self) -> None:
        world = World()
        world.run(0.0, "r", world.prompt())
        assert world.ended == [(None, 1.0)]
        assert world.core.usage().tasks == world.core.usage().running == 0

    def test_a_shared_system_prompt_becomes_an_agent_when_it_is_seen_again(self) -> None:
        world = World()
        world.come(0.0, "first", world.prompt("a"))
        world.come(0.5, "second", world.prompt("a"))
        world.come(0.5, "third", world.prompt("a"))
        world.come(0.5, "other", world.prompt("b"))
        agents = {rid: world.request(rid)["agent"] for rid in ("first", "second", "third", "other")}
        assert agents["second"] == agents["third"] == agents["first"], "the first one moves to it"
        assert agents["other"] != agents["first"], "nobody else shares it so far"
        assert world.request("first")["kv_tokens"] == 8 + 8, "the prefix is the agent's"
        assert world.request("other")["kv_tokens"] == 64 + 8 + 8
        arrivals = {task["id"]: task["arrival"] for task in world.tasks()}
        assert sorted(arrivals.values()) == [0.0, 0.5, 0.5, 0.5], "it is as old as before"

    def test_a_running_request_stays_where_it_is(self) -> None:
        world = World()
        world.come(0.0, "first", world.prompt("a"))
        assert world.serve(0.0) == ["first"]
        world.come(1.0, "second", world.prompt("a"))
        assert world.request("first")["agent"] != world.request("second")["agent"]
        assert world.request("first")["running"]

    def test_short_prompts_share_nothing(self) -> None:
        world = World()
        for rid in "xyz":
            world.come(0.0, rid, [1, 2, 3])
        assert {world.request(rid)["kv_tokens"] for rid in "xyz"} == {3 + 8}

    def test_namespaces_never_share_a_prefix(self) -> None:
        world = World()
        for at, space in enumerate([("ab", "c"), ("a", "bc"), ("ab", "c"), ("a", "bc")]):
            world.ledger.arrived(0.0, Arrival(f"r{at}", world.prompt("a"), 8, space, Hints()))
        agents = [world.request(f"r{at}")["agent"] for at in range(4)]
        assert agents[0] == agents[2] != agents[1] == agents[3], "each namespace its own head"


class TestWorkflows:
    def test_a_request_of_a_stage_ends_what_comes_before_it(self) -> None:
        world = World()
        world.ledger.register(CHAIN)
        world.run(0.0, "1", world.prompt("a"), **step("one"))
        assert [s["completed"] for s in world.tasks()[0]["stages"]] == [False, False, False]
        world.run(2.0, "2", world.prompt("b"), **step("two"))
        assert [s["completed"] for s in world.tasks()[0]["stages"]] == [True, False, False]
        world.run(4.0, "3", world.prompt("c"), **step("three", finishes_task=True))
        assert world.core.usage().tasks == 0
        assert world.ended == [("chain", 5.0)]

    def test_rounds_stay_in_their_stage(self) -> None:
        world = World()
        world.ledger.register(CHAIN)
        for at in range(3):
            world.run(at * 2.0, f"round{at}", world.prompt("a"), **step("one"))
        (task,) = world.tasks()
        assert task["stages"][0] == {**task["stages"][0], "completed": False, "service_s": 3.0}

    def test_a_branch_that_is_not_taken_ends_with_the_join(self) -> None:
        world = World()
        world.ledger.register(FORK)
        world.run(0.0, "s", world.prompt("a"), **step("s", workflow="fork"))
        world.run(2.0, "x", world.prompt("b"), **step("x", workflow="fork"))
        world.run(4.0, "j", world.prompt("a"), **step("j", workflow="fork", finishes_stage=True))
        assert world.core.usage().tasks == 0, "every stage has ended"

    def test_a_workflow_may_come_with_the_first_request(self) -> None:
        world = World()
        graph = {"name": "g", "stages": [{"name": "one", "agent": "a", "service_s": 1.0}]}
        hints = {"task": "t", "stage": "one", "agent": "a", "graph": graph}
        world.run(0.0, "r", world.prompt("a"), **hints)
        world.run(2.0, "s", world.prompt("a"), **hints, finishes_stage=True)
        assert world.ended == [("g", 3.0)]
        assert not world.ledger.hint_errors

    def test_the_prefix_length_is_settled_by_the_second_request(self) -> None:
        world = World()
        world.ledger.register(CHAIN)
        world.come(0.0, "1", world.prompt("a"), **step("one", "t"))
        assert world.request("1")["kv_tokens"] == 64 + 8 + 8
        world.come(0.0, "2", world.prompt("a"), **step("one", "u"))
        assert world.request("1")["kv_tokens"] == world.request("2")["kv_tokens"] == 8 + 8

    def test_idle_tasks_expire(self) -> None:
        world = World(idle_expiry_s=10.0)
        world.ledger.register(CHAIN)
        world.run(0.0, "1", world.prompt("a"), **step("one"))
        world.ledger.expire(10.0)
        assert world.ledger.tasks == 1
        world.ledger.expire(11.5)
        assert world.ledger.tasks == world.core.usage().tasks == 0

    def test_a_live_task_does_not_expire(self) -> None:
        world = World(idle_expiry_s=10.0)
        world.ledger.register(CHAIN)
        world.come(0.0, "1", world.prompt("a"), **step("one"))
        world.ledger.expire(1000.0)
        assert world.ledger.tasks == 1

    def test_another_workflow_of_the_same_name_is_refused(self) -> None:
        world = World()
        world.ledger.register(CHAIN)
        world.ledger.register(CHAIN)
        with pytest.raises(topas.StateError, match="'chain' is already registered differently"):
            world.ledger.register(topas.Workflow("chain", CHAIN.stages[:1]))


class TestBadHints:
    """Whatever they say, the request is served and the error counted."""

    @pytest.mark.parametrize(
        "hints",
        [
            {"task": "t", "stage": "one", "agent": "a", "workflow": "unknown"},
            {"task": "t", "stage": "nine", "agent": "a", "workflow": "chain"},
            {"task": "t", "stage": "one", "agent": "a", "graph": {}},
            {"task": "t", "stage": "one", "agent": "a", "graph": {"name": "g", "stages": [{}]}},
            {"task": "t", "stage": "one", "agent": "a", "graph": {"name": "g", "stages": 3}},
            {
                "task": "t",
                "stage": "one",
                "agent": "a",
                "graph": {"name": "g", "stages": [{"name": 1, "agent": 2, "after": [1]}]},
            },
        ],
    )
    def test_served_all_the_same(self, hints: dict) -> None:
        world = World()
        world.ledger.register(CHAIN)
        world.run(0.0, "r", world.prompt("a"), **hints)
        assert sum(world.ledger.hint_errors.values()) == 1
        assert world.ended == [(None, 1.0)]

    def test_a_stage_that_has_ended(self) -> None:
        world = World()
        world.ledger.register(CHAIN)
        world.run(0.0, "1", world.prompt("a"), **step("one"))
        world.run(2.0, "2", world.prompt("b"), **step("two"))
        world.run(4.0, "again", world.prompt("a"), **step("one"))
        assert world.ledger.hint_errors == {"bad_workflow_StateError": 1}

    def test_a_stage_whose_predecessor_still_runs(self) -> None:
        world = World()
        world.ledger.register(CHAIN)
        world.come(0.0, "1", world.prompt("a"), **step("one"))
        world.serve(0.0)
        world.run(1.0, "2", world.prompt("b"), **step("two"))
        world.ledger.completed(3.0, "1", 1.0)
        assert world.ledger.hint_errors == {"bad_workflow_StateError": 1}

    def test_a_request_id_that_is_live_replaces_the_earlier_request(self) -> None:
        world = World()
        world.come(0.0, "r", world.prompt())
        world.come(1.0, "r", world.prompt())
        assert world.ledger.hint_errors == {"duplicate_rid": 1}
        assert world.core.usage().waiting == 1


def test_the_age_of_a_task_without_a_workflow_counts_from_its_first_request() -> None:
    world = World()
    world.run(5.0, "r", world.prompt("a"), task="t", agent="a")
    world.come(9.0, "s", world.prompt("a"), task="t", agent="a")
    assert [task["arrival"] for task in world.tasks()] == [5.0]


def test_unknown_requests_are_ignored() -> None:
    world = World()
    world.ledger.completed(0.0, "nobody", 1.0)
    world.ledger.aborted(0.0, "nobody")
    assert world.core.usage().tasks == 0


class TestWhatTheEngineDoesByItself:
    def two_of_a(self) -> World:
        """Return a world where the head of agent a is known and two of its requests wait."""
        world = World()
        for rid in ("x", "y"):
            world.come(0.0, rid, world.prompt("a"), agent="a")
        return world

    def loads(self, world: World, now: float = 1.0) -> list[str]:
        return [str(agent) for agent in world.ledger.decide(now, world.holds).load]

    def test_a_prefix_that_is_not_cached_is_loaded(self) -> None:
        assert len(self.loads(self.two_of_a())) == 1

    def test_a_prefix_that_is_cached_costs_nothing(self) -> None:
        world = self.two_of_a()
        world.cached = [SYSTEM["a"]]
        decision = world.ledger.decide(1.0, world.holds)
        assert decision.load == []
        assert decision.admit == ["x", "y"]
        assert decision.terms.move == 0.0
        assert world.ledger.agents.resident_tokens == (1, 64)

    def test_half_a_prefix_does_not_count(self) -> None:
        world = self.two_of_a()
        world.cached = [SYSTEM["a"][:32]]
        assert len(self.loads(world)) == 1

    def test_an_evicted_prefix_is_loaded_again(self) -> None:
        world = self.two_of_a()
        world.cached = [SYSTEM["a"]]
        assert self.loads(world) == []
        for rid in ("x", "y"):
            world.ledger.completed(2.0, rid, 1.0)
        world.come(2.0, "z", world.prompt("a"), agent="a")
        world.cached = []
        assert len(self.loads(world, 2.0)) == 1

    def test_a_started_request_runs(self) -> None:
        world = self.two_of_a()
        world.ledger.started(1.0, "x")
        world.ledger.started(1.0, "x")
        assert world.request("x")["running"]
        assert not world.request("y")["running"]
        assert world.ledger.decide(1.0, world.holds).admit == ["y"]
        world.ledger.stopped(2.0, "x")
        world.ledger.stopped(2.0, "x")
        assert not world.request("x")["running"]

    def test_a_request_that_completes_while_it_waits_had_been_started(self) -> None:
        world = self.two_of_a()
        world.ledger.completed(2.0, "x", 1.0)
        assert world.ended == [(None, 2.0)]
        assert world.core.usage().waiting == 1


def test_what_nobody_uses_is_forgotten_beyond_the_limit() -> None:
    world = World()
    world.ledger.register(CHAIN)
    for at in range(3000):
        world.run(at, f"r{at}", [at, *range(40)], task=f"t{at}", agent=f"a{at}")
    usage = world.core.usage()
    assert usage.tasks == 0
    assert usage.workflows <= 1025
    world.run(5000.0, "s", world.prompt("a"), **step("one"))
    assert world.core.usage().tasks == 1, "a registered workflow is not forgotten"


def test_the_prefix_is_always_short_of_the_prompt() -> None:
    world = World()
    for rid in ("x", "y"):
        world.come(0.0, rid, SYSTEM["a"], agent="a")
    assert world.request("y")["kv_tokens"] == 8 + 8, "whole pages, and the last token is computed"


class Traffic:
    """Random requests, with and without hints, in and out of order."""

    def __init__(self, seed: int) -> None:
        self.world = World(idle_expiry_s=5.0)
        self.world.ledger.register(CHAIN)
        self.world.ledger.register(FORK)
        self.dice = random.Random(seed)
        self.now = 0.0
        self.running: set[str] = set()

    def come(self, rid: str) -> None:
        graph = self.dice.choice((CHAIN, FORK))
        stage = self.dice.choice(graph.stages).name
        hints = {}
        if self.dice.random() < 0.7:
            hints = step(stage, f"t{self.dice.randrange(4)}", graph.name)
            hints["finishes_task"] = self.dice.random() < 0.3
        self.world.come(self.now, rid, self.world.prompt(self.dice.choice("abc")), **hints)

    def go(self) -> None:
        for rid in list(self.world.ledger.live_requests):
            if rid in self.running and self.dice.random() < 0.3:
                self.world.ledger.completed(self.now, rid, self.dice.random())
            elif self.dice.random() < 0.05:
                self.world.ledger.aborted(self.now, rid)

    def decide(self) -> None:
        decision = self.world.ledger.decide(self.now, self.world.holds)
        self.running -= {str(rid) for rid in decision.preempt}
        self.running |= {str(rid) for rid in decision.admit}
        self.running &= set(self.world.ledger.live_requests)

    def end(self) -> None:
        for rid in list(self.world.ledger.live_requests):
            self.world.ledger.aborted(self.now, rid)
        self.now += 6.0
        self.world.ledger.expire(self.now)
        self.decide()


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_left_after_random_traffic(seed: int) -> None:
    traffic = Traffic(seed)
    for at in range(200):
        traffic.now += traffic.dice.random()
        if traffic.dice.random() < 0.5:
            traffic.come(f"r{at}")
        traffic.go()
        traffic.decide()
        traffic.world.ledger.expire(traffic.now)
    assert traffic.world.ended, "some tasks have finished"
    traffic.end()
    usage = traffic.world.core.usage()
    assert (usage.tasks, usage.waiting, usage.running, usage.kv_tokens) == (0, 0, 0, 0)
    assert traffic.world.ledger.tasks == 0


class TestReadHints:
    def test_agent_hints_as_text_and_as_object(self) -> None:
        fields = {
            "workflow_id": "t",
            "agent_id": "coder",
            "step_id": "code",
            "parent_step_ids": ["plan"],
            "workflow": "feature",
            "finish": True,
        }
        for value in (fields, json.dumps(fields)):
            hints = read_hints(Carriers(custom_params={"agent_hints": value}))
            assert hints == Hints(
                "agent_hints", "t", "coder", "code", "feature", None, ("plan",), True
            )

    def test_precedence_and_no_merging(self) -> None:
        params = {"agent_hints": {"agent_id": "coder"}, "program_id": "p", "x-session-id": "s"}
        assert read_hints(Carriers(params)) == Hints("agent_hints", agent="coder")
        params["agent_hints"] = {"tool_name": "grep"}
        assert read_hints(Carriers(params)) == Hints("program", task="p")
        del params["program_id"]
        assert read_hints(Carriers(params)) == Hints("headers", task="s")
        assert read_hints(Carriers(session_id="sid")) == Hints("session", task="sid")
        assert read_hints(Carriers()) == Hints()

    @pytest.mark.parametrize(
        ("carriers", "expected"),
        [
            (Carriers(routing_key="t/coder/code"), ("agent_hints", "t", "coder", "code")),
            (Carriers(routing_key='{"workflow_id": 7}'), ("agent_hints", 7, None, None)),
            (Carriers(kv_payloads=[{"agent_id": "x"}]), ("agent_hints", None, "x", None)),
            (Carriers({"x-dynamo-session-id": "d"}), ("nvext", "d", None, None)),
            (
                Carriers({"vllm_xargs": {"agentic_context": '{"program_id": "p"}'}}),
                ("agentic_context", "p", None, None),
            ),
            (Carriers({"job_id": "j", "is_last_step": True}), ("program", "j", None, None)),
            (Carriers({"prompt_cache_key": "k"}), ("session", "k", None, None)),
        ],
    )
    def test_every_carrier(self, carriers: Carriers, expected: tuple) -> None:
        hints = read_hints(carriers)
        assert (hints.source, hints.task, hints.agent, hints.stage) == expected

    @pytest.mark.parametrize(
        ("carriers", "kind"),
        [
            (Carriers({"agent_hints": "{"}), "bad_agent_hints"),
            (Carriers({"agent_hints": 5}), "bad_agent_hints"),
            (Carriers({"agent_hints": {"workflow_id": True}}), "bad_workflow_id"),
            (Carriers({"agent_hints": {"workflow_id": 1 << 63}}), "bad_workflow_id"),
            (Carriers({"agent_hints": {"agent_id": "x" * 1000}}), "bad_agent_id"),
            (
                Carriers({"agent_hints": {"agent_id": "a", "parent_step_ids": 3}}),
                "bad_parent_step_ids",
            ),
            (Carriers({"agent_hints": "[" * 100_000}), "bad_agent_hints"),
            (Carriers(routing_key="only/two"), "bad_routing_key"),
            (Carriers("text"), "bad_custom_params"),
            (Carriers(kv_payloads=["text"]), "bad_kv_hints"),
        ],
    )
    def test_malformed_hints_are_counted_and_never_raise(self, carriers, kind: str) -> None:
        assert kind in read_hints(carriers).errors
