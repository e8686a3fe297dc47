"""What the bridge tells the core and when it asks; what SGLang then does is what was decided."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest
from driving import (
    LOOPS,
    OLD,
    PREFIXES,
    Asked,
    Choice,
    Decider,
    Tyrant,
    always_due,
    bridge_of,
    disagreements,
    entries,
    finish,
    load,
    spy,
    tokens,
)
from topas.sglang.ledger import Ledger
from topas.sglang.roster import Roster

if TYPE_CHECKING:
    from driving import Expected, Start, Ticks
    from engine import InProcessEngine

PAGE = pytest.param(16, marks=pytest.mark.skipif(OLD, reason="page_size > 1 needs SGLang 0.5.22"))


def alone(count: int, new: int = 8) -> list[Asked]:
    """Return requests that share nothing."""
    return [Asked(f"r{i:02}", tokens(500 + i, 20), new) for i in range(count)]


# ---- the decision is what happens ----


class Backwards(Decider):
    """Admits the newest first."""

    def decide(self, ledger: Ledger, now: float, *args: Any) -> Choice:
        decision = super().decide(ledger, now, *args)
        return Choice(sorted(decision.admit, reverse=True), list(decision.preempt))


@LOOPS
def test_requests_start_in_the_order_of_the_decision(
    drive: Start, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    engine = drive(disable_overlap_schedule=not overlap, max_running_requests=4)
    Backwards(monkeypatch)
    starts = spy(monkeypatch, Roster, "start")
    for one in alone(4) + alone(12)[4:]:
        one.submit_to(engine)
    finish(engine)
    order = [entry.id for (entry,) in starts]
    assert sorted(order) == list(range(1, 13))
    assert order[:4] == [4, 3, 2, 1]
    assert order != sorted(order, reverse=True), "four at a time, the oldest four first"


class EvenOnly(Decider):
    """Holds odd requests back while there are even ones."""

    def decide(self, ledger: Ledger, now: float, *args: Any) -> Choice:
        decision = super().decide(ledger, now, *args)
        even = any(rid % 2 == 0 for rid in ledger.live_requests)
        held = [rid for rid in decision.admit if even and rid % 2]
        for rid in held:
            ledger.stopped(now, rid)
        return Choice([rid for rid in decision.admit if rid not in held], list(decision.preempt))


@LOOPS
def test_held_requests_wait_in_their_order_although_there_is_room(
    drive: Start, expected: Expected, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    asked = alone(8, 12)
    right = expected(asked)
    engine = drive(disable_overlap_schedule=not overlap)
    EvenOnly(monkeypatch)
    seen: list[tuple[list[str], set[str]]] = []

    def look(engine: InProcessEngine) -> None:
        waiting = [req.rid for req in engine.scheduler.waiting_queue]
        seen.append((waiting, {rid for rid, e in entries(engine).items() if e.running}))

    for one in asked:
        one.submit_to(engine)
    assert finish(engine, look) == right
    # ids count from 1: r00 is 1
    assert (["r00", "r02", "r04", "r06"], {"r01", "r03", "r05", "r07"}) in seen
    assert ([], {"r00", "r02", "r04", "r06"}) in seen


# ---- when the core is asked ----


@LOOPS
def test_decode_steps_ask_nobody(drive: Start, ticks: Ticks, overlap: bool) -> None:
    engine = drive(disable_overlap_schedule=not overlap)
    ticks.step = 0.1  # long passes: it is not for want of time
    bridge = bridge_of(engine)
    asked_in: list[int] = []
    bridge.on_decision = lambda _: asked_in.append(bridge.counts.passes)
    engine.submit("a", tokens(1, 20), 100)
    came: list[int] = []

    def late(engine: InProcessEngine) -> bool:
        if engine.passes == 50:
            engine.submit("b", tokens(2, 20), 10)
            came.append(bridge.counts.passes + 1)
        return engine.passes < 50

    finish(engine, late)
    assert bridge.counts.passes > 100
    first, second, *ends = asked_in
    assert (first, second) == (1, came[0])
    assert 1 <= len(ends) <= 2, "once for each end"
    assert second + 9 <= ends[0] <= second + 13
    assert bridge.counts.decisions == len(asked_in)


def test_while_requests_wait_the_core_is_asked_now_and_then(drive: Start, ticks: Ticks) -> None:
    engine = drive({"reask_s": 2.0}, max_running_requests=1)
    ticks.step = 0.1
    bridge = bridge_of(engine)
    when: list[float] = []
    bridge.on_decision = lambda decision: when.append(decision.now)
    engine.submit("runs", tokens(1, 20), 100)
    engine.submit("waits", tokens(2, 20), 100)
    finish(engine)
    first = [now for now in when if now < 9.5]
    assert len(first) == 5
    assert all(2.0 < b - a < 2.2 for a, b in itertools.pairwise(first))
    assert len([now for now in when if now > 10.5]) <= 1, "nobody waits any more"


# ---- what is measured ----


@LOOPS
def test_service_is_the_time_of_running(
    drive: Start, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    engine = drive(disable_overlap_schedule=not overlap, max_running_requests=2)
    Tyrant(monkeypatch, share=0.1)
    completed = spy(monkeypatch, Ledger, "completed")
    ran: dict[int, int] = {}
    spells: dict[int, int] = {}

    def look(engine: InProcessEngine) -> None:
        always_due(engine)
        for entry in entries(engine).values():
            ran[entry.id] = ran.get(entry.id, 0) + entry.running
            spells[entry.id] = entry.req.retraction_count + 1

    for one in alone(6, 30):
        one.submit_to(engine)
    finish(engine, look)
    assert {rid for _, rid, _ in completed} == set(range(1, 7))
    assert max(spells.values()) > 2
    for now, rid, service_s in completed:
        assert service_s == pytest.approx(0.01 * ran[rid], abs=1e-6)
        assert service_s < now - 0.1 or rid <= 2, "the others have waited"


def test_waiting_for_a_tool_is_no_service(drive: Start, ticks: Ticks) -> None:
    stage = {"name": "think", "agent": "coder"}
    workflow = {
        "name": "react",
        "stages": [stage, {"name": "end", "agent": "b", "after": ["think"]}],
    }
    engine = drive({"workflows": [workflow]})
    bridge = bridge_of(engine)
    hints = {"workflow": "react", "workflow_id": "t", "step_id": "think"}
    for round_ in range(3):
        engine.submit(f"r{round_}", tokens(1, 30 + 20 * round_), 20, {"agent_hints": hints})
        engine.run()
        ticks.now += 100.0  # a tool runs
    engine.submit("end", tokens(2, 30), 4, {"agent_hints": {**hints, "step_id": "end"}})
    engine.step()
    totals = {
        total
        for profile in bridge.core.snapshot(1e9).to_dict()["profiles"]
        for total in profile["totals_s"]
        if total > 0
    }
    assert len(totals) == 1
    assert totals.pop() == pytest.approx(3 * 20 * 0.01, abs=0.05)


# ---- room ----


@LOOPS
@pytest.mark.parametrize("page_size", [1, PAGE])
def test_the_core_counts_what_sglang_takes_in_whole_pages(
    drive: Start, overlap: bool, page_size: int
) -> None:
    capacity = 320
    engine = drive(
        {"min_prefix_tokens": 16},
        max_total_tokens=capacity,
        page_size=page_size,
        disable_overlap_schedule=not overlap,
    )
    bridge, scheduler = bridge_of(engine), engine.scheduler
    seen: list[tuple[int, int]] = []

    def look(engine: InProcessEngine) -> None:
        taken = capacity - scheduler.token_to_kv_pool_allocator.available_size()
        counted = bridge.core.usage().kv_tokens
        seen.append((taken - scheduler.tree_cache.evictable_size(), counted))

    for one in load(18, 12, [tokens(seed, 42) for seed in range(3)]):
        one.submit_to(engine)
    finish(engine, look)
    assert max(counted for _, counted in seen) > capacity * 0.8
    assert all(counted <= capacity for _, counted in seen)
    if page_size > 1:
        assert all(counted % page_size == 0 for _, counted in seen)
    # what overlap has launched ahead (a token, so perhaps a page, each) is nobody's reservation
    ahead = 8 * page_size if overlap else 0
    assert all(taken <= counted + ahead for taken, counted in seen)
    assert max(taken for taken, _ in seen) > capacity * 0.6


@pytest.mark.skipif(OLD, reason="on a CPU, page_size > 1 needs SGLang 0.5.22 or later")
def test_short_requests_take_a_page_each(drive: Start) -> None:
    """Eight requests of a page each, beside a prefix of two pages, are all that ten pages hold."""
    engine = drive({"min_prefix_tokens": 32}, page_size=16, max_total_tokens=160)
    bridge = bridge_of(engine)
    head = tokens(1, 32)
    for i in range(2):  # two make it known
        engine.submit(f"first{i}", [*head, 900 + i], 1)
        engine.run()
    for i in range(9):
        engine.submit(f"r{i}", [*head, 500 + i], 2)
    first: list[int] = []
    bridge.on_decision = lambda decision: first.append(len(decision.admit))
    engine.run()
    assert first[0] == 8
    assert bridge.core.usage().running == 0


def test_what_is_reserved_is_what_a_request_may_take(
    drive: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = drive(max_total_tokens=600)
    share = engine.scheduler.new_token_ratio_tracker.current
    assert 0 < share < 1
    asked = {
        (20, 8, True): 8,
        (20, 0, True): 1,
        (20, 500, True): 500,
        (20, 100, False): int(100 * share) + 1,  # it may stop early
        (20, 100_000, True): 578,  # what SGLang lets it have
        (590, 100, True): 8,
    }
    for number, (prompt, new, ignore_eos) in enumerate(asked):
        engine.submit(f"r{number}", tokens(1, prompt), new, sampling={"ignore_eos": ignore_eos})
    arrived = spy(monkeypatch, Ledger, "arrived")
    engine.step()
    assert [arrival.max_new_tokens for _, arrival in arrived] == list(asked.values())
    engine.abort(everything=True)
    finish(engine)


@LOOPS
def test_what_sglang_retracts_by_itself_waits_in_the_core_too(
    drive: Start, expected: Expected, overlap: bool
) -> None:
    asked = [Asked(f"r{i}", tokens(i, 30), 60) for i in range(5)]
    right = expected(asked)
    engine = drive(
        max_total_tokens=300,
        schedule_conservativeness=0.05,
        disable_overlap_schedule=not overlap,
    )
    wrong: list[str] = []

    def trickle(engine: InProcessEngine) -> bool:
        wrong.extend(disagreements(engine))
        at = engine.passes - 1
        if at % 3 == 0 and at < 15:
            one = asked[at // 3]
            engine.submit(one.rid, one.prompt, one.new, sampling={"ignore_eos": False})
        return at < 15

    assert finish(engine, trickle) == right
    retracted = sum(output.retractions for output in engine.outputs.values())
    assert retracted > bridge_of(engine).counts.preemptions
    assert wrong == []


@LOOPS
def test_what_sglang_has_no_room_for_waits_and_costs_little(
    drive: Start, expected: Expected, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    asked = load(6)
    right = expected(asked)
    engine = drive(disable_overlap_schedule=not overlap)
    counts = bridge_of(engine).counts
    began: list[float] = []

    def look(engine: InProcessEngine) -> None:
        if engine.passes == 1:
            monkeypatch.setattr(engine.scheduler, "get_num_allocatable_reqs", lambda *a, **k: 0)
            began.append(time.perf_counter())
        if engine.passes == 150:
            began.append(time.perf_counter())
            assert all(not entry.running for entry in entries(engine).values())
            assert len(engine.scheduler.waiting_queue) == 6
            monkeypatch.undo()

    for one in asked:
        one.submit_to(engine)
    assert finish(engine, look) == right
    assert counts.refusals >= 100
    assert 149 / (began[1] - began[0]) < 1100, "passes in a second"


def test_prefixes_that_the_engine_dropped_are_not_resident(drive: Start) -> None:
    """The core is told what the cache has: it neither pins what is gone nor loads what is there."""
    engine = drive(max_total_tokens=600, max_running_requests=1)
    bridge = bridge_of(engine)

    def loads(rid: str) -> set[Any]:
        found: set[Any] = set()
        bridge.on_decision = lambda decision: found.update(decision.load)
        engine.submit(rid, [*PREFIXES[0], *tokens(len(rid), 3)], 4)
        engine.run()
        return found

    loads("a")
    loads("bb")  # two make a head known
    agent = list(bridge.ledger.agents._agents)[-1]
    assert bridge.ledger.agents.tokens(agent) == 96
    assert agent not in loads("ccc"), "it is in the cache"
    for i in range(2):  # they take the whole pool, one after the other
        engine.submit(f"big{i}", tokens(700 + i, 500), 40)
    engine.run()
    assert engine.cached_slots(PREFIXES[0]).numel() < 96
    assert agent in loads("dddd"), "it has to be computed again"
    assert engine.outputs["dddd"].cached_tokens < 96
    finish(engine)
