"""Random events on a small pool, thousands of passes; every decision is looked at."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from driving import (
    LOOPS,
    VERSION,
    Asked,
    Tyrant,
    bridge_of,
    disagreements,
    entries,
    left_over,
    token_ids,
    tokens,
)

if TYPE_CHECKING:
    import topas
    from driving import Expected, Start, Ticks
    from engine import InProcessEngine

PASSES = 1500 if VERSION >= (0, 5, 23) else 400  # in each loop
AGENTS = [tokens(900 + agent, 24 + 3 * agent) for agent in range(20)]
STAGES = [
    {"name": "a", "agent": "0"},
    {"name": "b", "agent": "1", "after": ["a"]},
    {"name": "c", "agent": "2", "after": ["a"]},
    {"name": "d", "agent": "0", "after": ["b", "c"]},
]
#: Prompts that are asked for again and again: stock SGLang has answered each of them once.
PROMPTS = [
    Asked(f"p{i}", AGENTS[i % 20] + tokens(i, 3 + i % 17), 3 + i % 11, {"agent": str(i % 20)})
    for i in range(60)
]


class Storm:
    """Random events on an engine, and what is wrong with what follows.

    Parameters
    ----------
    engine
        One that topas drives.
    seed
        Of the events.
    """

    def __init__(self, engine: InProcessEngine, seed: int) -> None:
        self.wrong: list[str] = []
        self.sent: dict[str, Asked] = {}
        self.answers: dict[str, list[int]] = {}
        self.reasons: list[str] = []
        self.decisions = 0
        self._draw = random.Random(seed)
        self._bridge = bridge_of(engine)
        self._engine = engine
        self._bridge.on_decision = self._decided
        self._stopping = False

    def _decided(self, decision: topas.Decision) -> None:
        """Case 16: the lists are disjoint, name nobody twice, and only who is there."""
        self.decisions += 1
        admit, preempt = list(decision.admit), list(decision.preempt)
        known = {entry.id for entry in entries(self._engine).values()}
        if len({*admit, *preempt}) != len(admit) + len(preempt):
            self.wrong.append(f"twice or in both: {admit} {preempt}")
        if not {*admit, *preempt} <= known:
            self.wrong.append(f"unknown: {admit} {preempt}")
        usage = self._bridge.core.usage()
        if usage.running + usage.waiting != len(known):
            self.wrong.append(f"{usage.running} + {usage.waiting} requests, not {len(known)}")

    def _params(self, one: Asked) -> dict[str, Any] | None:
        agent = one.fields["agent"]
        kind = self._draw.random()
        if kind < 0.3:
            return None
        if kind < 0.5:
            return {"agent_hints": {"agent_id": agent}}
        stage = self._draw.choice(STAGES)
        hints = {
            "workflow": self._draw.choice(["w", "w", "w", "no such"]),
            "workflow_id": f"t{self._draw.randrange(8)}",
            "step_id": stage["name"],
            "finish": self._draw.random() < 0.2,
        }
        return {"agent_hints": json.dumps(hints)}

    def on_pass(self, engine: InProcessEngine) -> bool:
        """One pass: collect what is done, look, and send something."""
        if engine.passes % 3 == 0:
            self.wrong.extend(disagreements(engine))
        for rid in [rid for rid, output in engine.outputs.items() if output.finish is not None]:
            output = engine.outputs.pop(rid)
            self.answers[rid] = output.token_ids
            self.reasons.append(str(output.reason))
        if engine.passes >= PASSES:
            return False
        live = [rid for rid, output in engine.outputs.items() if output.finish is None]
        for _ in range(self._draw.choice([0, 0, 0, 0, 1, 1, 3])):
            if len(live) > 30:
                break
            one = self._draw.choice(PROMPTS)
            rid = f"r{len(self.sent):05}"
            self.sent[rid] = one
            engine.submit(rid, one.prompt, one.new, self._params(one))
        if live and self._draw.random() < 0.05:
            engine.abort(self._draw.choice(live))
        if self._draw.random() < 0.002:
            engine.abort(everything=True)
        return True


@LOOPS
def test_thousands_of_passes_with_random_events(
    drive: Start,
    expected: Expected,
    ticks: Ticks,
    monkeypatch: pytest.MonkeyPatch,
    overlap: bool,
) -> None:
    right = expected([Asked(one.rid, one.prompt, one.new) for one in PROMPTS])
    engine = drive(
        {
            "workflows": [{"name": "w", "stages": STAGES}],
            "min_prefix_tokens": 16,
            "idle_expiry_s": 3.0,
            "policy": {"age_scale_s": 0.1, "action_cap": 4},
        },
        disable_overlap_schedule=not overlap,
        max_total_tokens=400,
        max_running_requests=5,
        chunked_prefill_size=48,
    )
    Tyrant(monkeypatch, seed=overlap, share=0.03)
    storm = Storm(engine, seed=10 + overlap)
    engine.run(storm.on_pass, pass_limit=PASSES + 2000)
    assert engine.passes >= PASSES
    ticks.now += 100.0  # the tasks that nobody finished expire
    engine.submit("end", tokens(1, 20), 2)
    engine.run()
    engine.check_idle()
    bridge = bridge_of(engine)
    assert storm.wrong == []
    assert left_over(engine) == {}
    assert bridge.counts.fallbacks == {}
    assert bridge.counts.preemptions > PASSES / 50
    assert storm.decisions > PASSES / 10
    assert not {rid for rid in storm.sent if rid not in {*storm.answers, *token_ids(engine)}}
    whole = 0
    for rid, ids in storm.answers.items():
        answer = right[storm.sent[rid].rid]
        assert ids == answer[: len(ids)], rid
        whole += ids == answer
    assert whole > 0.5 * len(storm.sent) > PASSES / 8
    assert storm.reasons.count("abort") > PASSES / 100
