"""Whatever goes wrong in topas: the server lives, every request is answered, and it is said."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pytest
from driving import (
    LOOPS,
    PASSES,
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
    left_over,
    load,
    token_ids,
    tokens,
)
from topas.sglang import bridge as bridge_module
from topas.sglang.bridge import Bridge
from topas.sglang.ledger import Ledger
from topas.sglang.metrics import Counts
from topas.sglang.roster import Roster
from topas.sglang.view import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from driving import Expected, Start
    from engine import InProcessEngine
    from topas.sglang.ledger import Ledger as LedgerType

TIGHT = {"max_total_tokens": 600}


class BrokenError(RuntimeError):
    """What the tests raise."""


def failing(
    patch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[[int], bool]
) -> list[int]:
    """Have a method raise at some of its calls; the list grows by their numbers."""
    method = getattr(owner, name)
    calls, failed = [0], []

    def called(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if when(calls[0]):
            failed.append(calls[0])
            raise BrokenError(f"{name} is broken")
        return method(*args, **kwargs)

    patch.setattr(owner, name, called)
    return failed


def errors(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [r for r in caplog.records if r.name.startswith("topas") and r.levelno >= logging.ERROR]


# ---- exceptions ----

POINTS = {
    "arrival": (Ledger, "arrived"),
    "hints": (View, "carriers"),
    "reserve": (View, "reserve_tokens"),
    "decision": (Ledger, "decide"),
    "cache": (View, "holds"),
    "progress": (Ledger, "progress"),
    "start": (Ledger, "started"),
    "stop": (Ledger, "stopped"),
    "end": (Ledger, "completed"),
    "service": (Roster, "leave"),
    "victims": (View, "can_be_preempted"),
    "queue": (Bridge, "_shown"),
    "notes": (Bridge, "_note"),
    "metrics": (Counts, "decided"),
    "gauges": (Counts, "set_gauges"),
}


#: All of them with overlap, some in the normal loop.
WHERE = [(point, True) for point in POINTS]
WHERE += [(point, False) for point in ("arrival", "decision", "end", "notes", "metrics")]


@pytest.mark.parametrize(("point", "overlap"), WHERE)
def test_an_exception_costs_a_pass(
    drive: Start,
    expected: Expected,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    overlap: bool,
    point: str,
) -> None:
    asked = load(8, 8)
    right = expected(asked)
    engine = drive(disable_overlap_schedule=not overlap, **TIGHT)
    Tyrant(monkeypatch, share=0.1)
    owner, name = POINTS[point]
    failed = failing(monkeypatch, owner, name, lambda call: call % 5 == 3)

    def trickle(engine: InProcessEngine) -> bool:
        always_due(engine)
        if len(engine.outputs) < len(asked):
            asked[len(engine.outputs)].submit_to(engine)
        return len(engine.outputs) < len(asked)

    with caplog.at_level(logging.ERROR, "topas"):
        engine.run(trickle, pass_limit=PASSES)
    assert failed, "it was never called"
    monkeypatch.undo()  # what follows is to show that topas is back
    engine.submit("after", tokens(1, 20), 4)
    engine.run()
    engine.check_idle()
    assert {rid: ids for rid, ids in token_ids(engine).items() if rid != "after"} == right
    counts = bridge_of(engine).counts
    assert 1 <= counts.fallbacks["BrokenError"] <= len(failed)
    assert not bridge_of(engine)._off
    assert left_over(engine) == {}
    broken = [r for r in errors(caplog) if r.exc_info and r.exc_info[0] is BrokenError]
    assert len(broken) == 1, "logged once a kind"
    assert "SGLang's own policy" in broken[0].getMessage()


def test_after_an_exception_the_running_requests_are_known_again(
    drive: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = drive()
    for one in load(6, 30):
        one.submit_to(engine)
    for _ in range(4):
        engine.step()
    assert sum(entry.running for entry in entries(engine).values()) == 6
    failed = failing(monkeypatch, Ledger, "decide", lambda call: call == 1)
    always_due(engine)
    engine.step()
    assert failed
    assert disagreements(engine) == []
    assert bridge_of(engine).core.usage().running == 6
    finish(engine, fallbacks=True)


# ---- impossible answers ----


class Liar(Decider):
    """Answers what is impossible, now and then."""

    def __init__(self, patch: pytest.MonkeyPatch, lie: Callable[[Choice, LedgerType], None]):
        super().__init__(patch)
        self._lie = lie

    def decide(self, ledger: Ledger, now: float, *args: Any) -> Choice:
        decision = super().decide(ledger, now, *args)
        choice = Choice(list(decision.admit), list(decision.preempt))
        if self.decisions % 3 == 2:
            self._lie(choice, ledger)
        return choice


def unknown_admitted(choice: Choice, _: Ledger) -> None:
    choice.admit.append(10**6)


def unknown_preempted(choice: Choice, _: Ledger) -> None:
    choice.preempt.append(10**6)


def nonsense(choice: Choice, _: Ledger) -> None:
    choice.admit.append("x")  # type: ignore[arg-type]


def waiting_preempted(choice: Choice, ledger: Ledger) -> None:
    choice.preempt += [rid for rid, live in ledger._live.items() if not live.running][:2]  # type: ignore[misc]


def running_admitted(choice: Choice, ledger: Ledger) -> None:
    choice.admit += [rid for rid, live in ledger._live.items() if live.running][:2]  # type: ignore[misc]


def both(choice: Choice, ledger: Ledger) -> None:
    victims = [rid for rid, live in ledger._live.items() if live.running][:2]
    choice.admit += victims  # type: ignore[arg-type]
    choice.preempt += victims  # type: ignore[arg-type]


def twice(choice: Choice, ledger: Ledger) -> None:
    victims = [rid for rid, live in ledger._live.items() if live.running][:1]
    choice.preempt += [*victims, *victims]  # type: ignore[list-item]
    choice.admit += choice.admit


@pytest.mark.parametrize(
    "lie",
    [
        unknown_admitted,
        unknown_preempted,
        nonsense,
        waiting_preempted,
        running_admitted,
        both,
        twice,
    ],
)
def test_an_impossible_answer_hurts_nobody(
    drive: Start,
    expected: Expected,
    monkeypatch: pytest.MonkeyPatch,
    lie: Callable[[Choice, LedgerType], None],
) -> None:
    asked = load(8, 8)
    right = expected(asked)
    engine = drive(disable_overlap_schedule=False, max_running_requests=4, **TIGHT)
    Liar(monkeypatch, lie)
    for one in asked:
        one.submit_to(engine)
    engine.run(always_due, pass_limit=PASSES)
    monkeypatch.undo()
    engine.submit("after", tokens(1, 20), 4)
    engine.run()
    engine.check_idle()
    assert {rid: ids for rid, ids in token_ids(engine).items() if rid != "after"} == right
    assert left_over(engine) == {}
    assert sum(bridge_of(engine).counts.fallbacks.values()) > 0


class Idler(Decider):
    """Admits nobody, and throws out whoever runs."""

    def decide(self, ledger: Ledger, now: float, *args: Any) -> Choice:
        running = [rid for rid, live in ledger._live.items() if live.running]
        decision = super().decide(ledger, now, *args)
        for rid in [*running, *decision.admit]:
            ledger.stopped(now, rid)
        return Choice([], running)  # type: ignore[arg-type]


@LOOPS
def test_a_policy_that_admits_nobody_is_overruled(
    drive: Start, expected: Expected, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    asked = load(6)
    right = expected(asked)
    engine = drive(disable_overlap_schedule=not overlap)
    Idler(monkeypatch)
    for one in asked:
        one.submit_to(engine)
    assert finish(engine, fallbacks=True) == right
    assert set(bridge_of(engine).counts.fallbacks) == {"_NothingAdmitted"}


def test_holding_everything_does_not_spin(drive: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = drive()
    engine.submit("a", tokens(1, 20), 4)
    with monkeypatch.context() as patch:
        patch.setattr(Bridge, "_plan", lambda *_: [])
        begin = time.perf_counter()
        for _ in range(100):
            assert not engine.step()
        passes_a_second = 100 / (time.perf_counter() - begin)
    assert passes_a_second < 1000
    assert [req.rid for req in engine.scheduler.waiting_queue] == ["a"]
    bridge_of(engine)._due = True
    finish(engine)
    assert engine.outputs["a"].reason == "length"


# ---- when even falling back fails ----


@LOOPS
def test_a_broken_fallback_switches_topas_off_for_good(
    drive: Start,
    expected: Expected,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    overlap: bool,
) -> None:
    asked = load(12)
    right = expected(asked)
    engine = drive(disable_overlap_schedule=not overlap, **TIGHT)
    bridge = bridge_of(engine)
    failing(monkeypatch, Ledger, "decide", lambda call: call == 3)
    failing(monkeypatch, Bridge, "_new_core", lambda call: True)

    def trickle(engine: InProcessEngine) -> bool:
        if len(engine.outputs) < len(asked):
            asked[len(engine.outputs)].submit_to(engine)
        return len(engine.outputs) < len(asked)

    with caplog.at_level(logging.ERROR, "topas"):
        engine.run(trickle, pass_limit=PASSES)
    assert bridge._off
    decisions = bridge.counts.decisions
    for one in load(18)[12:]:
        one.submit_to(engine)
    engine.abort("r17")
    engine.run()
    engine.check_idle()
    assert {rid: token_ids(engine)[rid] for rid in right} == right
    assert bridge.counts.decisions == decisions
    assert sum(bridge.counts.fallbacks.values()) == 1
    assert len([r for r in errors(caplog) if r.levelno == logging.CRITICAL]) == 1
    assert len(errors(caplog)) == 2


# ---- requests that must pass whatever the policy says ----


class HoldFirst(Decider):
    """Admits nobody in its first decisions."""

    def decide(self, ledger: Ledger, now: float, *args: Any) -> Choice:
        decision = super().decide(ledger, now, *args)
        if self.decisions > 4:
            return Choice(list(decision.admit), list(decision.preempt))
        for rid in decision.admit:
            ledger.stopped(now, rid)
        return Choice([], list(decision.preempt))


@LOOPS
def test_health_checks_and_dead_requests_pass(
    drive: Start, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    engine = drive(disable_overlap_schedule=not overlap)
    HoldFirst(monkeypatch)
    # only an idle server makes a request of a health check
    engine.submit("HEALTH_CHECK_1", [7, 8], 9)
    engine.submit("too long", tokens(3, 9000), 4)
    engine.submit("held", tokens(2, 20), 20)
    done: dict[str, int] = {}
    known: set[str] = set()
    waiting: list[list[str]] = []

    def look(engine: InProcessEngine) -> None:
        if engine.passes > 1:
            always_due(engine)
        known.update(entries(engine))
        waiting.append([req.rid for req in engine.scheduler.waiting_queue])
        for rid, output in engine.outputs.items():
            if output.finish is not None:
                done.setdefault(rid, engine.passes)

    outputs = finish(engine, look)
    assert waiting[1] == waiting[2] == ["held"]
    assert done["too long"] <= done["HEALTH_CHECK_1"] < done["held"]
    assert engine.outputs["too long"].reason == "abort"
    assert len(outputs["HEALTH_CHECK_1"]) == 9
    assert known == {"held"}


@LOOPS
def test_a_request_larger_than_the_pool_blocks_nobody(
    drive: Start, expected: Expected, overlap: bool
) -> None:
    """Case 5."""
    asked = load(6)
    right = expected(asked)
    engine = drive(disable_overlap_schedule=not overlap, max_total_tokens=300)
    engine.submit("huge", tokens(1, 700), 4)
    engine.submit("big prefix", [*tokens(2, 350), 5], 4, {"agent_hints": {"agent_id": "z"}})
    engine.submit("all of it", tokens(3, 20), 5000)
    for one in asked:
        one.submit_to(engine)
    done: list[str] = []

    def look(engine: InProcessEngine) -> None:
        for rid, output in engine.outputs.items():
            if output.finish is not None and rid not in done:
                done.append(rid)

    outputs = finish(engine, look)
    assert {rid: outputs[rid] for rid in right} == right
    for rid in ("huge", "big prefix"):
        finish_reason = engine.outputs[rid].finish
        assert finish_reason is not None
        assert finish_reason["type"] == "abort"
        assert "maximum allowed length" in finish_reason["message"]
    assert len(outputs["all of it"]) > 250
    assert set(done[:2]) == {"huge", "big prefix"}


@LOOPS
def test_a_full_queue_never_aborts_a_preempted_request(
    drive: Start, expected: Expected, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    asked = load(24)
    right = expected(asked)
    engine = drive(
        disable_overlap_schedule=not overlap, max_queued_requests=8, max_running_requests=8
    )
    Tyrant(monkeypatch, share=0.4)
    sent: list[str] = []

    def trickle(engine: InProcessEngine) -> bool:
        always_due(engine)
        for one in asked[len(sent) :]:
            if len(engine.scheduler.waiting_queue) >= 6 or engine.passes % 2:
                break
            one.submit_to(engine)
            sent.append(one.rid)
            if len(sent) % 2 == 0:
                break
        return len(sent) < len(asked)

    assert finish(engine, trickle) == right
    assert sum(output.retractions for output in engine.outputs.values()) > 20


@LOOPS
def test_a_finished_victim_is_not_freed_twice(
    drive: Start, expected: Expected, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    """All that run are thrown out at every chance, those that are done or dying too."""
    asked = load(16, 6)
    right = expected(asked)
    engine = drive(disable_overlap_schedule=not overlap)
    Tyrant(monkeypatch, share=1.0)
    dead: dict[str, int] = {}

    def look(engine: InProcessEngine) -> bool:
        if engine.passes % 4 == 0:
            always_due(engine)
        running = [rid for rid, entry in entries(engine).items() if entry.running]
        if engine.passes % 7 == 0 and running and len(dead) < 4:
            dead[running[0]] = entries(engine)[running[0]].req.retraction_count
            engine.abort(running[0])
            always_due(engine)
        if engine.passes % 3 == 1 and len(engine.outputs) < len(asked):
            asked[len(engine.outputs)].submit_to(engine)
        return len(engine.outputs) < len(asked)

    outputs = finish(engine, look)
    assert {rid: engine.outputs[rid].retractions for rid in dead} == dead, "the dying stay"
    assert dead
    for rid, ids in outputs.items():
        assert ids == right[rid] or (rid in dead and ids == right[rid][: len(ids)]), rid


@LOOPS
def test_a_stub_from_the_grammar_queue_is_answered(drive: Start, overlap: bool) -> None:
    engine = drive(disable_overlap_schedule=not overlap)
    engine.submit("no grammar here", tokens(1, 20), 4, sampling={"regex": "[0-9]+"})
    engine.submit("plain", tokens(2, 20), 4)
    finish(engine)
    assert engine.outputs["plain"].reason == "length"
    assert engine.outputs["no grammar here"].reason == "abort"


def test_the_prefixes_in_use_are_never_thrown_away_with_a_victim(
    drive: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = drive(max_total_tokens=900)
    Tyrant(monkeypatch, share=0.3)
    for one in load(12, 12, PREFIXES[:1]):
        one.submit_to(engine)
    held: list[int] = []

    def look(engine: InProcessEngine) -> None:
        always_due(engine)
        held.append(engine.cached_slots(PREFIXES[0]).numel())

    finish(engine, look)
    assert min(held[3:]) == 96


def test_the_nap_is_short() -> None:
    assert 0 < bridge_module._NAP_S <= 0.005


def test_pausing_and_flushing_go_through(drive: Start, expected: Expected) -> None:
    from sglang.srt.managers import io_struct

    asked = load(6, 20)
    right = expected(asked)
    engine = drive()
    for one in asked:
        one.submit_to(engine)

    def look(engine: InProcessEngine) -> bool:
        if engine.passes == 5:
            engine.send(io_struct.PauseGenerationReqInput(mode="retract"))
        if engine.passes == 9:
            assert disagreements(engine) == []
            assert len(engine.scheduler.waiting_queue) == 6
            engine.send(io_struct.ContinueGenerationReqInput())
        return engine.passes < 9

    assert finish(engine, look) == right
    engine.send(io_struct.FlushCacheReqInput())
    Asked("again", asked[0].prompt, asked[0].new).submit_to(engine)
    assert finish(engine)["again"] == right["r00"]
    assert engine.outputs["again"].cached_tokens == 0
