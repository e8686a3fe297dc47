"""Two ranks with copies of different speed decide alike; a failure on one counts for both."""

from __future__ import annotations

import json
import time
from functools import partial, partialmethod
from typing import TYPE_CHECKING, Any

import driving
import pytest
from driving import Asked, bridge_of, left_over, token_ids
from ranks import run_ranks
from residents import COPIES, POOL, at_rest, inconsistencies, load, residency_of, trickle
from topas.sglang.prefix_copy import KvBuffers
from topas.sglang.prefix_copy.backends import CpuLane

if TYPE_CHECKING:
    from pathlib import Path

    from engine import InProcessEngine


def one_layer_a_group(buffers: KvBuffers, groups: Any, tokens: int, group_bytes: int) -> Any:
    """Take the place of ``KvBuffers.groups``."""
    return groups(buffers, tokens, 1)


def disturb(delay_s: dict[str, float], fails: dict[str, int]) -> None:
    """Slow this process's copies down, let one of each direction fail, take layers one by one."""
    KvBuffers.groups = partialmethod(one_layer_a_group, KvBuffers.groups)
    copy_group = CpuLane.copy_group
    counts = {"load": 0, "save": 0}

    def copied(lane: Any, index: int) -> Any:
        direction = lane._job.direction
        counts[direction] += 1
        time.sleep(delay_s.get(direction, 0.0))
        if counts[direction] == fails.get(direction):
            raise OSError("the bus is gone")
        return copy_group(lane, index)

    CpuLane.copy_group = copied


def serve(engine: InProcessEngine, asked: list[Asked], slow: int, fails: int) -> dict[str, Any]:
    """Serve the requests; return what this rank has done, and what came of it."""
    disturb(
        {"load": 0.02, "save": 0.01} if engine.rank == slow else {},
        {"load": 2, "save": 3} if engine.rank == fails else {},
    )
    bridge, residency = bridge_of(engine), residency_of(engine)
    steps: list[Any] = []
    bridge.on_decision = lambda decision: steps.append(
        (list(decision.admit), list(decision.preempt), list(decision.resident), residency.pinned)
    )
    client = trickle(asked)

    def on_pass(engine: InProcessEngine) -> bool:
        assert inconsistencies(engine) == []
        return client(engine) or len(residency._flights) > 0

    engine.run(on_pass if engine.rank == 0 else None, pass_limit=driving.PASSES)
    engine.check_idle()
    at_rest(engine)
    counts = residency.store.counts()
    return {
        "steps": steps,
        "copies": (counts.saves, counts.loads),
        "failed here": counts.failures,
        "overtaken": residency._layers.overtaken if residency._layers else 0,
        "failures": dict(residency.failures),
        "host": {key: state.value for key, state in residency.store.agents().items()},
        "rate": residency.load_bytes_per_s,
        "costs": bridge._costs.config_fields(),
        "profile": bridge.counts.profile,
        "gave way": residency.gave_way,
        "fallbacks": dict(bridge.counts.fallbacks),
        "left": left_over(engine),
        "outputs": token_ids(engine),
    }


@pytest.mark.parametrize(
    ("overlap", "slow", "fails", "layer_wise"),
    [(False, 1, -1, "always"), (True, 0, 1, "never"), (True, 1, 0, "always")],
)
def test_two_ranks_pin_and_copy_alike(
    model: Path,
    expected: driving.Expected,
    tmp_path: Path,
    overlap: bool,
    slow: int,
    fails: int,
    layer_wise: str,
) -> None:
    path = tmp_path / "topas.json"
    copies = {**COPIES["prefix_copies"], "layer_wise": layer_wise}
    path.write_text(json.dumps({"prefix_copies": copies}))
    asked = load()
    answers = expected(asked)
    first, second = run_ranks(
        partial(serve, asked=asked, slow=slow, fails=fails),
        environment={"TOPAS_ENABLE": "1", "TOPAS_CONFIG": str(path)},
        model_path=str(model),
        disable_overlap_schedule=not overlap,
        max_total_tokens=POOL,
    )
    assert first["outputs"] == answers
    here = [first.pop("failed here"), second.pop("failed here")]
    assert here == [2 * (fails == rank) for rank in (0, 1)]
    copies = [first.pop("copies"), second.pop("copies")]
    assert min(min(copies)) >= 3
    overtaken = [first.pop("overtaken"), second.pop("overtaken")]
    assert (max(overtaken) > 0) is (layer_wise == "always")
    assert first == second
    assert first["rate"] > 0.0
    assert first["costs"]["swap_bytes_per_s"] == first["rate"]
    assert first["failures"] == ({} if fails < 0 else {"CopyError": 2})
    assert first["fallbacks"] == {}
