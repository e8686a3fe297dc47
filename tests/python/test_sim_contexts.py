"""What rounds of a stage, and stopped requests, find of their own context."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_scenarios import ROUND_COSTS, Scripted, dense_workload, keep
from topas.errors import ConfigError
from topas.policies import POLICY_NAMES, Continuum, Fcfs, Lpm, Plan, Policy, QueueView, make_policy
from topas.sim import (
    Engine,
    EngineCosts,
    EngineOptions,
    Round,
    RunResult,
    StageShape,
    Task,
    WorkflowShape,
    Workload,
    make_workload,
)
from topas.sim.counters import Counters
from topas.sim.memory.contexts import Contexts
from topas.sim.memory.host import HostCache
from topas.sim.memory.pool import KvPool
from topas.sim.memory.prefix import Context, Prefix
from topas.sim.options import BATCHINGS
from topas.sim.profiles import config_fields
from topas.sim.request import Request
from topas.sim.trace import TraceScale, load_trace

REUSE = EngineOptions(reuse_context=True)
#: Loading takes a fifth of the time that computing takes.
COSTS = dataclasses.replace(ROUND_COSTS, kv_bytes_per_token=0.2)


def _workload(
    agents: dict[str, int], tasks: Sequence[tuple[str, float, Sequence[Round]]]
) -> Workload:
    """Tasks of one stage: agent, arrival, rounds."""
    shapes = {agent: WorkflowShape(agent, (StageShape("only", agent),)) for agent in agents}
    built = [Task(i, at, agent, (tuple(rounds),)) for i, (agent, at, rounds) in enumerate(tasks)]
    return Workload("rounds", agents, shapes, tuple(built))


def _run(
    workload: Workload, options: EngineOptions = REUSE, policy: Policy | None = None
) -> RunResult:
    engine = Engine(workload, policy or Fcfs(), COSTS, options)
    result = engine.run()
    assert result.peak_kv_tokens <= 1000
    for holder in engine.pool.holders():
        assert holder in workload.agents or holder[0] == "context"  # type: ignore[index]
    return result


COSTS_OF_A_GPU = EngineCosts()
#: Two rounds: 50 in, 10 out; the second repeats these 60, brings 20 new ones and comes 20 s later.
TWO = (Round(50, 10), Round(80, 10, 20.0, 60))


def test_a_round_does_not_prefill_what_the_last_one_left() -> None:
    workload = _workload({"A": 100}, [("A", 0.0, TWO)])
    # 150 tokens and 10 steps to 11.5; from 31.5 on 20 tokens and 10 steps
    result = _run(workload)
    assert result.finish_s[0] == pytest.approx(31.5 + 0.2 + 10)
    assert result.counters.reused_tokens == 60
    assert result.counters.prefill_tokens == 150 + 20
    assert _run(workload, EngineOptions()).finish_s[0] == pytest.approx(31.5 + 0.8 + 10)
    # whole pages of 16 only: 48 of the 60
    paged = _run(workload, dataclasses.replace(REUSE, page_size=16))
    assert paged.counters.reused_tokens == 48


def test_only_what_is_repeated_counts_and_one_token_is_always_prefilled() -> None:
    other = (Round(50, 10), Round(80, 10, 20.0, 30))
    assert _run(_workload({"A": 100}, [("A", 0.0, other)])).counters.reused_tokens == 30
    nothing_new = (Round(50, 10), Round(60, 10, 20.0, 60))
    assert _run(_workload({"A": 100}, [("A", 0.0, nothing_new)])).counters.reused_tokens == 59
    nothing_at_all = (Round(0, 10), Round(0, 10, 20.0, 0))
    assert _run(_workload({"A": 100}, [("A", 0.0, nothing_at_all)])).counters.reused_tokens == 0


def test_a_context_goes_before_the_prefix_it_is_behind() -> None:
    # 100 + 60 are kept; B needs 300 + 590 = 890 of the 840 that are free: the context goes
    tasks = [("A", 0.0, TWO), ("B", 15.0, (Round(550, 40),))]
    result = _run(_workload({"A": 100, "B": 300}, tasks))
    assert result.counters.reused_tokens == 0
    assert result.counters.recomputed_prefixes == 0
    # with 10 tokens less it may stay, and so it does
    tasks[1] = ("B", 15.0, (Round(500, 40),))
    assert _run(_workload({"A": 100, "B": 300}, tasks)).counters.reused_tokens == 60


def test_contexts_and_prefixes_go_by_their_last_use() -> None:
    # P's prefix of 200 is older than A's context; making room for 150 takes P, not the context
    first = [("P", 0.0, (Round(0, 1),)), ("A", 10.0, TWO)]
    tasks = [*first, ("B", 25.0, (Round(100, 630),))]
    # 200 + 1 (P's own) + 100 + 60 are held: 639 are free of 1000, B needs 730: P's 201 go
    result = _run(_workload({"P": 200, "A": 100, "B": 0}, tasks))
    assert result.counters.reused_tokens == 60


def test_continuum_keeps_a_context_over_a_short_tool_wait() -> None:
    # D runs all along; B's 640 of the 630 that are free come during A's wait of 1.5 s, which is
    # within the 2 s to live that hold before any wait is known: B waits, A's next round does not
    short = (Round(50, 10), Round(80, 10, 1.5, 60))
    tasks = [("D", 0.0, (Round(10, 200),)), ("A", 0.0, short), ("B", 12.0, (Round(600, 40),))]
    workload = _workload({"A": 100, "B": 0, "D": 0}, tasks)
    plain, kept = _run(workload), _run(workload, policy=Continuum())
    assert (plain.counters.reused_tokens, kept.counters.reused_tokens) == (0, 60)
    assert kept.finish_s[1] < plain.finish_s[1]
    assert kept.finish_s[2] > plain.finish_s[2]
    # a wait longer than the time to live: the context goes, and B does not wait for it
    tasks[1] = ("A", 0.0, (Round(50, 10), Round(80, 10, 5.0, 60)))
    late = _workload({"A": 100, "B": 0, "D": 0}, [*tasks[:2], ("B", 15.0, (Round(600, 40),))])
    assert _run(late, policy=Continuum()).counters.reused_tokens == 0


def test_under_continuum_later_rounds_reuse_more_than_under_parrot() -> None:
    workload = make_workload("metagpt-tl", tasks=20, rate=0.0175, seed=1)
    reused = {}
    for policy in ("parrot", "continuum"):
        engine = Engine(workload, make_policy(policy, {}), COSTS_OF_A_GPU, REUSE)
        reused[policy] = engine.run().counters.reused_tokens
    assert reused["continuum"] > reused["parrot"]


def test_a_context_in_the_pool_counts_once_with_its_request() -> None:
    # 100 + 800 + 50 are full; the next round holds 860 + 40 of which 850 are there already
    rounds = (Round(800, 50), Round(860, 40, 20.0, 850))
    result = _run(_workload({"A": 100}, [("A", 0.0, rounds)]))
    assert result.peak_kv_tokens == 1000
    assert result.counters.reused_tokens == 850


@pytest.mark.parametrize(("host", "reused", "end_s"), [(0, 0, 0.8), (None, 60, 0.12 + 0.2)])
def test_an_evicted_context_comes_from_the_host(
    host: int | None, reused: int, end_s: float
) -> None:
    # evicted as B is admitted; the second round is ready at 31.5, when B has ended (27.4)
    tasks = [("A", 0.0, TWO), ("B", 15.0, (Round(840, 4),))]
    options = dataclasses.replace(REUSE, host_cache_tokens=host)
    result = _run(_workload({"A": 100, "B": 0}, tasks), options)
    assert result.finish_s[0] == pytest.approx(31.5 + end_s + 10)
    assert result.counters.reused_tokens == reused
    assert result.counters.context_loads == (1 if reused else 0)
    assert result.counters.load_tokens == reused
    assert result.counters.loads == 0


def test_a_prefix_and_a_context_share_the_link() -> None:
    # B's 950 evict both; they come one after the other: 100 tokens 0.2 s, 60 tokens 0.12 s
    tasks = [("A", 0.0, TWO), ("B", 15.0, (Round(940, 3),))]
    options = dataclasses.replace(REUSE, host_cache_tokens=None)
    result = _run(_workload({"A": 100, "B": 0}, tasks), options)
    assert result.finish_s[0] == pytest.approx(31.5 + 0.2 + 0.12 + 0.2 + 10)
    assert (result.counters.loads, result.counters.context_loads) == (1, 1)


def test_the_host_replaces_a_shorter_copy() -> None:
    cache = HostCache(100)
    key = Context(1, 0, "a", "A", 1, 40)
    assert cache.store(key)
    assert cache.store(Prefix("A", 30))
    assert cache.store(Context(1, 0, "a", "A", 2, 70))  # 30 more: both stay
    assert cache.copies() == {"A": 30, key.holder: 70}
    assert cache.store(Context(1, 0, "a", "A", 3, 90))
    assert cache.copies() == {key.holder: 90}
    assert not cache.store(Context(1, 0, "a", "A", 4, 101))
    assert cache.tokens_of(key.holder) == cache.used == 90
    assert cache.tokens_of("A") == 0


def test_a_cancelled_load_leaves_nothing_behind() -> None:
    # the second round waits for its context (60 tokens, 60 s); a sibling's next round can never
    # fit, so that the task is given up meanwhile
    slow = dataclasses.replace(COSTS, swap_bytes_per_s=0.2)
    stages = (StageShape("a", "A"), StageShape("b", "B"))
    huge = (Round(10, 1), Round(2000, 1, 50.0))
    tasks = (
        Task(0, 0.0, "w", (TWO, huge)),
        Task(1, 15.0, "c", ((Round(860, 4),),)),
    )
    shapes = {"w": WorkflowShape("w", stages), "c": WorkflowShape("c", (StageShape("c", "C"),))}
    workload = Workload("given up", {"A": 100, "B": 0, "C": 0}, shapes, tasks)
    options = dataclasses.replace(REUSE, host_cache_tokens=None)
    engine = Engine(workload, Fcfs(), slow, options)
    result = engine.run()
    assert set(result.cancelled) == {0}
    assert result.counters.context_loads == 0
    assert not engine.memory.running
    assert engine.memory.next_event() == float("inf")


def test_lpm_counts_the_context() -> None:
    # One runs at a time. While B does, to 33.0, first task 2 comes (13.0), then the second round of
    # task 0 (16.5), whose context is there beside the prefix.
    rounds = (Round(50, 10), Round(80, 10, 5.0, 60))
    tasks = [("A", 0.0, rounds), ("B", 12.0, (Round(100, 20),)), ("A", 13.0, (Round(30, 5),))]
    workload = _workload({"A": 100, "B": 0}, tasks)
    with_context = _run(workload, dataclasses.replace(REUSE, max_running=1), Lpm())
    assert with_context.finish_s[0] == pytest.approx(33.0 + 0.2 + 10)
    assert with_context.finish_s[2] == pytest.approx(43.2 + 0.3 + 5)
    without = _run(workload, EngineOptions(max_running=1), Lpm())
    assert without.finish_s[2] == pytest.approx(33.0 + 0.3 + 5)


# ---- stopped requests


@pytest.mark.parametrize(
    ("redo", "prefilled", "decoded"), [("decode", 1, 25), ("prefill", 5, 20), ("kept", 0, 20)]
)
def test_a_preempted_request_finds_its_prompt(redo: Any, prefilled: int, decoded: int) -> None:
    # 1 s of prefill, 5 steps to 6.0; then request 2 runs alone; what was prefilled is still there
    def answer(now: float, view: QueueView) -> Plan:
        waiting = [r.id for r in view.waiting]
        if waiting == [2]:
            return keep(view, admit=[2], preempt=[1])
        return keep(view, admit=waiting if not view.running else [])

    rounds = (Round(100, 20),)
    workload = _workload({"A": 0}, [("A", 0.0, rounds), ("A", 5.5, (Round(10, 1),))])
    options = dataclasses.replace(REUSE, redo_model=redo)
    result = _run(workload, options, Scripted(answer))
    assert result.counters.prefill_tokens == 100 + 10 + prefilled
    assert result.counters.decode_tokens == decoded + 1


def test_a_retracted_request_finds_its_prompt() -> None:
    options = dataclasses.replace(
        REUSE, reservation="estimated", new_token_ratio=0.5, min_new_token_ratio_factor=1.0
    )
    tasks = [("A", 0.0, (Round(100, 500),)), ("A", 10.5, (Round(100, 500),))]
    result = _run(_workload({"A": 0}, tasks), options)
    # The second is retracted at 407 s with 395 generated tokens; the first's last 95 steps leave
    # 400 of the pool's 1000 to it and to the second's prompt of 100.
    assert result.counters.retractions == 1
    assert result.counters.reused_tokens == 100
    assert result.counters.prefill_tokens == 100 + 100 + 395
    assert result.finish_s[1] == pytest.approx(502.0 + 3.95 + 105)


# ---- explicit residency


def _admit_all(now: float, view: QueueView) -> Plan:
    return keep(view, admit=[r.id for r in view.waiting])


def test_a_context_stays_while_its_prefix_is_resident() -> None:
    # another request keeps A's prefix in the pool between the rounds
    tasks = [("A", 0.0, TWO), ("A", 5.0, (Round(10, 60),))]
    result = _run(_workload({"A": 100}, tasks), REUSE, Scripted(_admit_all))
    assert result.counters.reused_tokens == 60
    # without it the prefix leaves, and the context with it
    alone = _run(_workload({"A": 100}, tasks[:1]), REUSE, Scripted(_admit_all))
    assert alone.counters.reused_tokens == 0
    assert alone.counters.loads == 1


def test_explicit_residency_loads_contexts_after_prefixes() -> None:
    # A's prefix leaves at 11.5 and its context is given up with it; both have copies: 0.2 s and
    # 0.12 s from 31.5 on, then the 20 new tokens
    options = dataclasses.replace(REUSE, host_cache_tokens=None)
    result = _run(_workload({"A": 100}, [("A", 0.0, TWO)]), options, Scripted(_admit_all))
    assert result.finish_s[0] == pytest.approx(31.5 + 0.2 + 0.12 + 0.2 + 10)
    counters = result.counters
    assert (counters.loads, counters.context_loads, counters.load_tokens) == (1, 1, 160)
    assert counters.reused_tokens == 60


@pytest.mark.parametrize("preempt_s", [33.0, 100.0])
def test_a_preempted_load_of_a_context_starts_again(preempt_s: float) -> None:
    # A link of 2 tokens/s: A's prefix comes to 81.5 and its context to 111.5; request 3 stops that.
    slow = dataclasses.replace(COSTS, swap_bytes_per_s=0.4)

    def answer(now: float, view: QueueView) -> Plan:
        waiting = [r.id for r in view.waiting]
        if 3 in waiting:
            return keep(view, admit=[3], preempt=[r.id for r in view.running])
        return keep(view, admit=waiting if not view.running else [])

    tasks = [("A", 0.0, (Round(50, 10), Round(80, 10, 20.0, 60))), ("B", preempt_s, (Round(0, 1),))]
    workload = _workload({"A": 100, "B": 0}, tasks)
    options = dataclasses.replace(REUSE, host_cache_tokens=None, offload_copies=False)
    engine = Engine(workload, Scripted(answer), slow, options)
    result = engine.run()
    # request 3 runs for a second; then all of the prefix and of the context comes again
    assert result.finish_s[1] == pytest.approx(preempt_s + 1)
    assert result.finish_s[0] == pytest.approx(preempt_s + 1 + 50 + 30 + 0.2 + 10)
    assert result.counters.preemptions == 1
    assert result.counters.context_loads == 1
    assert result.counters.reused_tokens == 60


def _admit_what_fits(now: float, view: QueueView) -> Plan:
    agents = {"A": 100, "B": 50}
    chosen = list(view.running)
    for request in view.waiting:
        there = {r.agent for r in (*chosen, request)}
        needs = sum(r.input_tokens + r.max_new_tokens for r in (*chosen, request))
        if needs + sum(agents[agent] for agent in there) <= 1000:
            chosen.append(request)
    return keep(view, admit=[r.id for r in view.waiting if r in chosen])


@pytest.mark.parametrize(("tokens", "reused"), [(710, 60), (711, 0)])
def test_a_plan_that_needs_the_room_takes_it_from_contexts(tokens: int, reused: int) -> None:
    # held: prefix 100, the running request's 70, the context's 60; B has 50 and needs 10 + tokens
    tasks = [
        ("A", 0.0, TWO),
        ("A", 5.0, (Round(10, 60),)),
        ("B", 15.0, (Round(tokens, 10),)),
    ]
    result = _run(_workload({"A": 100, "B": 50}, tasks), REUSE, Scripted(_admit_what_fits))
    assert result.counters.reused_tokens == reused


# ---- parts and sources


def _request(id_: int, **fields: Any) -> Request:
    return Request(id_, 1, 0, "s", "A", 0, 0, 0.0, 0.0, 100, 50, 10, 10, **fields)


def test_contexts_by_themselves() -> None:
    pool = KvPool(200, 8)
    contexts = Contexts(pool, enabled=True)
    assert contexts.keep(_request(1), 0) is None
    left = contexts.keep(_request(1), 60)
    assert left is not None
    assert (contexts.tokens, pool.used) == (64, 64)
    assert contexts.match(_request(1)) == 48  # its own: all but one token, in pages
    assert contexts.match(_request(2, shared_tokens=33)) == 32
    assert contexts.match(dataclasses.replace(_request(2), stage_index=1)) == 0
    assert not contexts.make_room(201)
    assert contexts.make_room(136)
    assert contexts.of(_request(1)) is left
    assert contexts.make_room(137)
    assert contexts.of(_request(1)) is None
    assert contexts.tokens == pool.used == 0
    contexts.keep(_request(1), 60)
    contexts.drop_agent("B")
    assert contexts.tokens == 64
    contexts.drop_agent("A")
    assert contexts.tokens == pool.used == 0
    assert Contexts(pool, enabled=False).keep(_request(1), 60) is None


def test_rounds_say_what_they_repeat() -> None:
    with pytest.raises(ConfigError, match="shared_tokens: at most the 10 of the input, got 11"):
        Round(10, 1, 0.0, 11)
    with pytest.raises(ConfigError, match="shared_tokens"):
        Round(10, 1, 0.0, -1)
    workload = make_workload("metagpt-sop", tasks=5, rate=0.1, seed=1)
    later = 0
    for task in workload.tasks:
        for rounds in task.stages:
            assert rounds[0].shared_tokens == 0
            for before, after in pairwise(rounds):
                assert after.shared_tokens == before.input_tokens + before.output_tokens
                later += 1
    assert later > 5


def test_traces_say_what_rounds_repeat(tmp_path: Path) -> None:
    common = {
        "session": "s",
        "stage": "a",
        "agent": "A",
        "api_s": 1.0,
        "tool_wait_s": 1.0,
        "after": [],
    }
    rows = [
        {"round": 0, "input_tokens": 150, "output_tokens": 20, "shared_tokens": 100, "t": 0.0},
        {"round": 1, "input_tokens": 300, "output_tokens": 20, "shared_tokens": 165, "t": 5.0},
        {"round": 2, "input_tokens": 350, "output_tokens": 20, "shared_tokens": 340, "t": 9.0},
        {"round": 3, "input_tokens": 200, "output_tokens": 20, "shared_tokens": 80, "t": 12.0},
    ]
    path = tmp_path / "trace.jsonl"
    with path.open("w") as file:
        for row in rows:
            file.write(json.dumps({**common, "static_prefix_tokens": 100, **row}) + "\n")
    workload = load_trace(path, scale=TraceScale(token_scale=1.0))
    shared = [item.shared_tokens for item in workload.tasks[0].stages[0]]
    assert shared == [0, 65, 220, 0]  # the third says 240, the round before has 200 + 20


# ---- whatever happens


@pytest.mark.parametrize("name", POLICY_NAMES)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    batching=st.sampled_from(BATCHINGS),
    reservation=st.sampled_from(["full", "estimated"]),
    page=st.sampled_from([1, 16]),
    redo=st.sampled_from(["decode", "prefill", "kept"]),
    host=st.sampled_from([0, 300, None]),
    in_batch=st.sampled_from(["shared", "deferred", "repeated"]),
)
def test_nothing_is_lost_and_tokens_add_up(
    name: str,
    seed: int,
    batching: Any,
    reservation: Any,
    page: int,
    redo: Any,
    host: int | None,
    in_batch: Any,
) -> None:
    workload = dense_workload(seed)
    options = EngineOptions(
        reuse_context=True,
        reservation=reservation,
        page_size=page,
        batching=batching,
        chunked_prefill_tokens=64,
        redo_model=redo,
        host_cache_tokens=host,
        in_batch_prefixes=in_batch,
    )
    runs = []
    for coalesce in (True, False):
        options = dataclasses.replace(options, coalesce=coalesce)
        policy = make_policy(name, config_fields(workload, COSTS, options))
        engine = Engine(workload, policy, COSTS, options)
        result = engine.run()
        assert not result.stopped
        assert set(result.finish_s) | set(result.cancelled) == {t.id for t in workload.tasks}
        assert result.peak_kv_tokens <= 1000
        contexts = sum(t for h, t in engine.pool.holders().items() if h not in workload.agents)
        assert contexts == engine.memory.contexts.tokens
        runs.append(result)
    at_once, single = runs
    assert at_once.counters == single.counters
    assert at_once.finish_s == pytest.approx(single.finish_s, rel=1e-9)
    counters = at_once.counters
    if counters.preemptions + counters.retractions + len(at_once.cancelled) == 0:
        _check_tokens(workload, counters)


def _check_tokens(workload: Workload, counters: Counters) -> None:
    """Each input token is prefilled once or reused, each prefix as often as is counted."""
    rounds = [r for task in workload.tasks for stage in task.stages for r in stage]
    shapes = [workload.workflows[task.workflow] for task in workload.tasks]
    used = {stage.agent for shape in shapes for stage in shape.stages}
    prefixes = sum(workload.agents[agent] for agent in used) + counters.recomputed_tokens
    assert counters.prefill_tokens + counters.reused_tokens == (
        sum(r.input_tokens for r in rounds) + prefixes + counters.repeated_prefix_tokens
    )
    assert counters.reused_tokens <= sum(r.shared_tokens for r in rounds)
    assert counters.decode_tokens == sum(r.output_tokens for r in rounds)
