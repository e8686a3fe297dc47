"""Prefixes pinned, copied out and copied back on the real engine: the answers stay the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import driving
from driving import Asked, bridge_of, tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine import InProcessEngine
    from topas.sglang.residency import Residency

PREFIXES = [tokens(40 + seed, 192) for seed in range(4)]
COPIES = {"prefix_copies": {"host_bytes": 64 << 20}}


def residency_of(engine: InProcessEngine) -> Residency:
    residency: Any = bridge_of(engine).residency
    return residency


def load(rounds: int = 3, each: int = 3, new: int = 8) -> list[Asked]:
    """Return requests that come back to each of the prefixes in turn."""
    count = rounds * each * len(PREFIXES)
    return [
        Asked(f"r{i:03}", PREFIXES[i // each % len(PREFIXES)] + tokens(900 + i, 4 + i % 9), new)
        for i in range(count)
    ]


def trickle(asked: list[Asked], at_once: int = 6) -> Callable[[InProcessEngine], bool]:
    """Return what keeps so many requests in an engine until all are sent (for ``on_pass``)."""
    left = list(asked)

    def on_pass(engine: InProcessEngine) -> bool:
        open_ = sum(output.finish is None for output in engine.outputs.values())
        for _ in range(at_once - open_):
            if left:
                left.pop(0).submit_to(engine)
        return bool(left)

    return on_pass


@driving.LOOPS
def test_restored_prefixes_give_the_same_answers(
    drive: driving.Start, expected: driving.Expected, overlap: bool
) -> None:
    asked = load()
    answers = expected(asked)
    engine = drive(COPIES, max_total_tokens=560, disable_overlap_schedule=not overlap)
    assert driving.finish(engine, trickle(asked)) == answers
    residency = residency_of(engine)
    counts = residency.store.counts()
    print(counts, residency.failures, residency.gave_way, residency.pinned)
    assert counts.saves >= len(PREFIXES)
    assert counts.loads >= len(PREFIXES)
    assert not residency.failures
