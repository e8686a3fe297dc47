"""Aborts at every moment: nothing is left in topas, the pool is whole, the others are answered."""

from __future__ import annotations

import random
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
    left_over,
    load,
    tokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from driving import Expected, Start
    from engine import InProcessEngine
    from topas.sglang.ledger import Ledger

VICTIM = Asked("victim", [*PREFIXES[0], *tokens(50, 9)], 40)
OTHERS = load(6, 20)


class Chosen(Decider):
    """Holds one request back, or throws it out once."""

    def __init__(self, patch: pytest.MonkeyPatch, engine: InProcessEngine) -> None:
        super().__init__(patch)
        self._engine = engine
        self.hold = False
        self.throw_out = False

    def decide(self, ledger: Ledger, now: float, *args: Any) -> Choice:
        decision = super().decide(ledger, now, *args)
        victim = entries(self._engine).get("victim")
        admit, preempt = list(decision.admit), list(decision.preempt)
        if victim is not None and self.hold and victim.id in admit:
            admit.remove(victim.id)
            ledger.stopped(now, victim.id)
        if victim is not None and self.throw_out and victim.running:
            self.throw_out, self.hold = False, True
            ledger.stopped(now, victim.id)
            preempt.append(victim.id)
        return Choice(admit, preempt)


def _queue(engine: InProcessEngine) -> list[str]:
    return [req.rid for req in engine.scheduler.waiting_queue]


def abort_when(
    engine: InProcessEngine,
    right: dict[str, list[int]],
    reached: Callable[[], bool],
    rid: str = "victim",
) -> None:
    """Abort the victim once ``reached``; look that nothing stays and the others are answered."""
    sent: list[int] = []
    wrong: list[str] = []

    def look(engine: InProcessEngine) -> None:
        if not sent and reached():
            engine.abort(rid)
            sent.append(engine.passes)
        wrong.extend(disagreements(engine))

    outputs = finish(engine, look)
    assert sent, "the moment never came"
    assert wrong == []
    assert engine.outputs["victim"].reason == "abort"
    assert {name: ids for name, ids in outputs.items() if name != "victim"} == right


@LOOPS
@pytest.mark.parametrize("moment", ["queued", "held", "planned", "running", "preempted", "late"])
def test_abort_of_a_request_that_is(
    drive: Start, expected: Expected, monkeypatch: pytest.MonkeyPatch, overlap: bool, moment: str
) -> None:
    right = expected(OTHERS)
    one_by_one = {"max_running_requests": 2} if moment == "queued" else {}
    engine = drive(disable_overlap_schedule=not overlap, **one_by_one)
    chosen = Chosen(monkeypatch, engine)
    chosen.hold = moment == "held"
    for one in [*OTHERS, VICTIM]:
        one.submit_to(engine)

    def entry() -> Any:
        return entries(engine).get("victim")

    def preempted() -> bool:
        if engine.passes == 6:
            assert entry().running
            chosen.throw_out = True
        if engine.passes >= 6:
            always_due(engine)
        return "victim" in _queue(engine) and entry().req.retraction_count == 1

    def planned() -> bool:
        bridge = bridge_of(engine)
        if engine.passes == 1:  # SGLang admits nobody
            monkeypatch.setattr(engine.scheduler, "get_num_allocatable_reqs", lambda *a, **k: 0)
        there = entry() is not None and entry().id in bridge._roster.planned
        if there:
            monkeypatch.undo()
        return there

    moments: dict[str, Callable[[], bool]] = {
        "queued": lambda: engine.passes == 4 and "victim" in _queue(engine),
        "held": lambda: engine.passes == 4 and "victim" in _queue(engine),
        "planned": planned,
        "running": lambda: engine.passes == 8 and entry().running,
        "preempted": preempted,
        "late": lambda: entry() is not None and len(entry().req.output_ids) >= 39,
    }
    if moment == "late":  # it may be done before the abort comes, or not
        engine.run(lambda engine: moments["late"]() and engine.abort("victim"))
        finish(engine)
        return
    abort_when(engine, right, moments[moment])
    assert (engine.outputs["victim"].retractions > 0) is False


@LOOPS
@pytest.mark.parametrize("at", [1, 2, 4])
def test_abort_chunk_by_chunk(drive: Start, expected: Expected, overlap: bool, at: int) -> None:
    right = expected(OTHERS)
    engine = drive(
        disable_overlap_schedule=not overlap, chunked_prefill_size=64, max_total_tokens=1200
    )
    for one in OTHERS:
        one.submit_to(engine)
    engine.submit("victim", tokens(9, 400), 10)
    first: list[int] = []

    def reached() -> bool:
        chunked = engine.scheduler.chunked_req
        if not first and chunked is not None and chunked.rid == "victim":
            first.append(engine.passes)
        return bool(first) and engine.passes == first[0] + at - 1

    abort_when(engine, right, reached)


@pytest.mark.skipif(OLD, reason="on a CPU, grammars need SGLang 0.5.22 or later")
@LOOPS
def test_abort_in_the_grammar_queue(
    drive: Start, expected: Expected, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    right = expected(OTHERS)
    engine = drive(
        disable_overlap_schedule=not overlap, grammar_backend="xgrammar", skip_tokenizer_init=False
    )
    manager = engine.scheduler.grammar_manager
    # the compiler is slow
    monkeypatch.setattr(manager, "get_ready_grammar_requests", list, raising=True)
    for one in OTHERS:
        one.submit_to(engine)
    engine.submit(VICTIM.rid, VICTIM.prompt, 12, sampling={"regex": "[0-9]{6}"})

    def reached() -> bool:
        if engine.passes < 5 or not manager.grammar_queue:
            return False
        monkeypatch.undo()
        return True

    abort_when(engine, right, reached)


@LOOPS
def test_abort_of_everything_in_every_state(
    drive: Start, expected: Expected, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    engine = drive(
        disable_overlap_schedule=not overlap,
        max_total_tokens=600,
        chunked_prefill_size=64,
        max_running_requests=4,
    )
    Tyrant(monkeypatch, share=0.1)
    for round_ in range(6):
        for one in load(10):
            one.submit_to(engine)

        def look(engine: InProcessEngine, at: int = engine.passes + 2 * round_ + 1) -> None:
            always_due(engine)
            if engine.passes == at:
                engine.abort(everything=True)

        finish(engine, look)
        assert {output.reason for output in engine.outputs.values()} == {"abort"}


def test_abort_of_the_dead_and_the_unknown(drive: Start, expected: Expected) -> None:
    right = expected(OTHERS)
    engine = drive()
    for one in OTHERS:
        one.submit_to(engine)

    def look(engine: InProcessEngine) -> None:
        engine.abort("nobody")
        engine.abort("r00x")
        for rid, output in engine.outputs.items():
            if output.finish is not None:
                engine.abort(rid)

    # each pass brings an abort: stop them when all is answered
    engine.run(lambda e: look(e) if any(o.finish is None for o in e.outputs.values()) else None)
    outputs = finish(engine)
    assert {rid: outputs[rid] for rid in right} == right
    assert all(engine.outputs[rid].reason == "length" for rid in right)


@LOOPS
def test_aborts_go_by_prefix_of_the_id(drive: Start, expected: Expected, overlap: bool) -> None:
    asked = [Asked(rid, tokens(at, 30), 20) for at, rid in enumerate(["r1", "r10", "r11", "r2"])]
    right = expected(asked)
    engine = drive(disable_overlap_schedule=not overlap, max_running_requests=2)
    for one in asked:
        one.submit_to(engine)
    outputs = finish(engine, lambda e: e.abort("r1") if e.passes == 5 else None)
    assert outputs["r2"] == right["r2"]
    assert [engine.outputs[rid].reason for rid in right] == ["abort", "abort", "abort", "length"]


@LOOPS
def test_after_an_abort_the_agent_leaves_and_comes_back(
    drive: Start, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    """Case 15: the only request of an agent is aborted before it has computed the prefix."""
    engine = drive(disable_overlap_schedule=not overlap)
    bridge = bridge_of(engine)
    hints = {"agent_hints": {"agent_id": "a"}}
    key = bridge.ledger.agents.key((None, None, None), "a")
    resident: list[bool] = []
    bridge.on_decision = lambda decision: resident.append(key in decision.resident)
    monkeypatch.setattr(engine.scheduler, "get_num_allocatable_reqs", lambda *a, **k: 0)
    engine.submit("first", PREFIXES[0] + tokens(1, 5), 4, hints)

    def look(engine: InProcessEngine) -> bool:
        if engine.passes == 3:
            engine.abort("first")
        return engine.passes < 6

    engine.run(look)
    assert resident[0]
    assert left_over(engine) == {}
    monkeypatch.undo()
    engine.submit("other", tokens(3, 30), 4)
    engine.run()
    assert not resident[-1]
    engine.submit("again", PREFIXES[0] + tokens(1, 5), 4, hints)
    finish(engine)
    assert resident[-1] or resident[-2]
    assert engine.outputs["again"].cached_tokens == 0


@LOOPS
def test_random_aborts_leave_nothing(
    drive: Start, expected: Expected, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    asked = load(30, 16)
    right = expected(asked)
    engine = drive(
        disable_overlap_schedule=not overlap, max_total_tokens=600, chunked_prefill_size=64
    )
    Tyrant(monkeypatch, seed=3, share=0.05)
    draw = random.Random(4)
    wrong: list[str] = []

    def look(engine: InProcessEngine) -> bool:
        wrong.extend(disagreements(engine))
        always_due(engine)
        if len(engine.outputs) < len(asked) and draw.random() < 0.4:
            asked[len(engine.outputs)].submit_to(engine)
        live = [rid for rid, output in engine.outputs.items() if output.finish is None]
        if live and draw.random() < 0.08:
            engine.abort(draw.choice(live))
        return len(engine.outputs) < len(asked)

    outputs = finish(engine, look)
    reasons = [output.reason for output in engine.outputs.values()]
    assert 4 < reasons.count("abort") < 25
    assert wrong == []
    for rid, ids in outputs.items():
        assert ids == right[rid][: len(ids)], rid
        assert engine.outputs[rid].reason == "abort" or ids == right[rid]
