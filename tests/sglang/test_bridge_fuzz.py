"""Random events on a small pool, thousands of passes; every decision is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driving import LOOPS, VERSION, Asked, Tyrant, bridge_of, token_ids, tokens
from storm import CONFIG, ENGINE, PROMPTS, Storm

if TYPE_CHECKING:
    import pytest
    from driving import Expected, Start, Ticks

PASSES = 1500 if VERSION >= (0, 5, 23) else 400  # in each loop


@LOOPS
def test_thousands_of_passes_with_random_events(
    drive: Start,
    expected: Expected,
    ticks: Ticks,
    monkeypatch: pytest.MonkeyPatch,
    overlap: bool,
) -> None:
    right = expected([Asked(one.rid, one.prompt, one.new) for one in PROMPTS])
    engine = drive(CONFIG, disable_overlap_schedule=not overlap, **ENGINE)
    Tyrant(monkeypatch, seed=overlap, share=0.03)
    storm = Storm(engine, seed=10 + overlap, passes=PASSES)
    engine.run(storm.on_pass, pass_limit=PASSES + 2000)
    assert engine.passes >= PASSES
    ticks.now += 100.0  # the tasks that nobody finished expire
    engine.submit("end", tokens(1, 20), 2)
    engine.run()
    engine.check_idle()
    bridge = bridge_of(engine)
    storm.check(right)
    assert bridge.counts.fallbacks == {}
    assert bridge.counts.preemptions > PASSES / 50
    assert storm.decisions > PASSES / 10
    assert not {rid for rid in storm.sent if rid not in {*storm.answers, *token_ids(engine)}}
    whole = sum(ids == right[storm.sent[rid].rid] for rid, ids in storm.answers.items())
    assert whole > 0.5 * len(storm.sent) > PASSES / 8
    assert storm.reasons.count("abort") > PASSES / 100
