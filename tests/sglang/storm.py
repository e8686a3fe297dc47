"""What the fuzz tests share: random events on a small pool; every decision is looked at."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from driving import Asked, bridge_of, disagreements, entries, left_over, tokens

if TYPE_CHECKING:
    import topas
    from engine import InProcessEngine

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


#: What topas is told, and an engine on which hardly anything fits.
CONFIG: dict[str, Any] = {
    "workflows": [{"name": "w", "stages": STAGES}],
    "min_prefix_tokens": 16,
    "idle_expiry_s": 3.0,
    "policy": {"age_scale_s": 0.1, "action_cap": 4},
}
ENGINE = {"max_total_tokens": 400, "max_running_requests": 5, "chunked_prefill_size": 48}


class Storm:
    """Random events on an engine, and what is wrong with what follows.

    Parameters
    ----------
    engine
        One that topas drives.
    seed
        Of the events.
    passes
        No request is sent after so many.
    """

    def __init__(self, engine: InProcessEngine, seed: int, passes: int) -> None:
        self.wrong: list[str] = []
        self.sent: dict[str, Asked] = {}
        self.answers: dict[str, list[int]] = {}
        self.reasons: list[str] = []
        self.decisions = 0
        self._draw = random.Random(seed)
        self._passes = passes
        self._bridge = bridge_of(engine)
        self._engine = engine
        self._bridge.on_decision = self._decided

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
        if engine.passes >= self._passes:
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

    def check(self, right: dict[str, list[int]]) -> None:
        """Check that nothing was wrong, nobody is left, and that answers are SGLang's, or begin so.

        Parameters
        ----------
        right
            What stock SGLang answers to each of ``PROMPTS``.
        """
        assert self.wrong == []
        assert left_over(self._engine) == {}
        for rid, ids in self.answers.items():
            assert ids == right[self.sent[rid].rid][: len(ids)], rid
