"""Every rank takes the same decisions, to the last bit, whatever its own clocks say."""

from __future__ import annotations

import hashlib
import json
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from driving import PREFIXES, Asked, bridge_of, left_over, token_ids, tokens
from ranks import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from engine import InProcessEngine
    from topas import Decision

    Expected = Callable[[list[Asked]], dict[str, list[int]]]

ON = {"TOPAS_ENABLE": "1"}
#: Many decisions, of which many preempt: two moves in each, asked for often, nothing to redo.
RESTLESS = {
    "preset": "paper",
    "policy": {"redo_weight": 0.0, "action_cap": 2, "age_scale_s": 0.05},
    "reask_s": 0.02,
}
STAGES = ("plan", "code", "test")
GRAPH = {
    "name": "chain",
    "stages": [
        {"name": name, "agent": name, "after": list(STAGES[at - 1 : at]) if at else []}
        for at, name in enumerate(STAGES)
    ],
}
TASKS, AT_ONCE = 64, 16  # tasks that come in one pass differ in nothing but their prompts' ends


def stage_of(task: int, at: int) -> Asked:
    """Return the request of a stage of a task."""
    fields = {
        "workflow_id": f"t{task}",
        "workflow_graph": GRAPH,
        "step_id": STAGES[at],
        "finish": at == len(STAGES) - 1,
    }
    return Asked(
        f"t{task:02}-{at}-",
        PREFIXES[at] + tokens(1000 + 10 * task + at, 12),
        6 + (task + 3 * at) % 7,
        {"custom_params": {"agent_hints": json.dumps(fields)}},
    )


REQUESTS = {(task, at): stage_of(task, at) for task in range(TASKS) for at in range(len(STAGES))}


class Client:
    """Sends the next stage of a task when the one before is answered; gives up some."""

    def __init__(self) -> None:
        self._draw = random.Random(5)
        self._open: dict[int, int] = {}
        self._next = 0
        self.aborted: set[str] = set()

    def __call__(self, engine: InProcessEngine) -> bool:
        """Look and send, before each pass."""
        for task, at in list(self._open.items()):
            rid = REQUESTS[task, at].rid
            if engine.outputs[rid].reason is not None:
                del self._open[task]
                if rid not in self.aborted and at + 1 < len(STAGES):
                    self._send(engine, task, at + 1)
            elif self._draw.random() < 0.002:
                self.aborted.add(rid)
                engine.abort(rid)
        if self._next < TASKS and len(self._open) < 6:
            for task in range(self._next, self._next + AT_ONCE):
                self._send(engine, task, 0)
            self._next += AT_ONCE
        return bool(self._open)

    def _send(self, engine: InProcessEngine, task: int, at: int) -> None:
        self._open[task] = at
        REQUESTS[task, at].submit_to(engine)


def exactly(value: Any) -> Any:
    """Return a value with its floats bit by bit."""
    if isinstance(value, float):
        return value.hex()
    return [exactly(each) for each in value] if isinstance(value, list | tuple) else value


def shift_clocks(seconds: float) -> None:
    """Put every clock of this process forward."""
    for name in ("monotonic", "perf_counter", "time"):
        clock = getattr(time, name)
        setattr(time, name, lambda clock=clock: clock() + seconds)


def decide_on_rank(engine: InProcessEngine, apart_s: float) -> dict[str, Any]:
    """Serve the tasks; return what this rank has decided, and what came of it."""
    if engine.rank == 1:
        shift_clocks(apart_s)
    bridge = bridge_of(engine)
    hashes: list[str] = []

    def note(decision: Decision) -> None:
        state = repr(exactly(decision.__getstate__()))
        hashes.append(hashlib.sha256(state.encode()).hexdigest())

    bridge.on_decision = note
    client = Client()
    engine.run(client if engine.rank == 0 else None)
    engine.check_idle()
    counts = bridge.counts
    return {
        "rank": engine.scheduler.tp_group.rank_in_group,
        "hashes": hashes,
        "now": bridge._clock.now.hex(),
        "costs": exactly(list(bridge._config().to_dict().values())),
        "preemptions": counts.preemptions,
        "fallbacks": dict(counts.fallbacks),
        "hint errors": dict(counts.hint_errors),
        "tasks": counts.tasks,
        "left": left_over(engine),
        "aborted": sorted(client.aborted),
        "outputs": token_ids(engine),
    }


@pytest.mark.parametrize(("overlap", "apart_s"), [(False, 0.0007), (True, 5.0)])
def test_two_ranks_take_the_same_decisions(
    model: Path, expected: Expected, tmp_path: Path, overlap: bool, apart_s: float
) -> None:
    path = tmp_path / "topas.json"
    path.write_text(json.dumps(RESTLESS))
    first, second = run_ranks(
        partial(decide_on_rank, apart_s=apart_s),
        environment={**ON, "TOPAS_CONFIG": str(path)},
        model_path=str(model),
        disable_overlap_schedule=not overlap,
        max_total_tokens=500,
        max_running_requests=6,
    )
    assert (first.pop("rank"), second.pop("rank")) == (0, 1)
    aborted, none = first.pop("aborted"), second.pop("aborted")
    assert first == second
    assert len(set(first["hashes"])) == len(first["hashes"]) > 200
    assert first["preemptions"] > 5
    assert first["fallbacks"] == first["hint errors"] == {}
    assert len(aborted) > 3
    assert none == []
    # a task whose request was given up has not said that it ends
    assert first["left"] == {"tasks": len(aborted), "ledger tasks": len(aborted)}

    answered = [one for one in REQUESTS.values() if one.rid in first["outputs"]]
    assert len(answered) > TASKS * 2
    stock = expected(answered)
    for rid, got in first["outputs"].items():
        want = stock[rid]
        assert got == (want[: len(got)] if rid in aborted else want), rid


# ---- what the clock costs


def count_collectives(engine: InProcessEngine) -> tuple[list[int], list[int]]:
    """Return the broadcasts in each pass: those with a request running, and idle ones."""
    calls = 0
    broadcast = torch.distributed.broadcast

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return broadcast(*args, **kwargs)

    torch.distributed.broadcast = counted
    busy: list[int] = []
    idle: list[int] = []
    last = [0, 0]  # broadcasts, and where those of the pass under way belong
    passes = 0

    def on_pass(engine: InProcessEngine) -> bool:
        nonlocal passes
        passes += 1
        (idle if last[1] else busy).append(calls - last[0])
        last[:] = calls, int(engine.idle)
        if passes == 5:
            engine.submit("a", PREFIXES[0], 8)
            last[1] = 0
        return passes < 60

    engine.run(on_pass if engine.rank == 0 else None)
    return busy, idle


def test_the_clock_costs_no_broadcast_while_idle(model: Path) -> None:
    (busy, idle), _ = run_ranks(count_collectives, environment=ON, model_path=str(model))
    assert len(idle) > 40
    assert set(idle) == {1}, "the one that says that nothing came"
    assert max(busy) == 2, "with the time there is something to send"
