"""What the tests of residency share: loads that return to their prefixes, and copies on a leash."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import driving
import numpy as np
from driving import Asked, bridge_of, tokens
from topas.sglang.cache import PrefixCache
from topas.sglang.prefix_copy.backends import CpuLane

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    from engine import InProcessEngine
    from topas.sglang.residency import Residency

#: Two moves in each decision, asked for often, nothing to redo: prefixes come and go.
RESTLESS = {
    "preset": "paper",
    "policy": {"redo_weight": 0.0, "action_cap": 2, "age_scale_s": 0.05},
    "reask_s": 0.02,
}
COPIES: dict[str, Any] = {"prefix_copies": {"host_bytes": 64 << 20}}
WHOLE: dict[str, Any] = {"prefix_copies": {"host_bytes": 64 << 20, "layer_wise": "never"}}
EARLY: dict[str, Any] = {"prefix_copies": {"host_bytes": 64 << 20, "layer_wise": "always"}}
LENGTH = 192
PREFIXES = [tokens(40 + seed, LENGTH) for seed in range(4)]
_SLOTS = PrefixCache.slots  # tests may let it fail
POOL = 560  # tokens: two prefixes and what runs on them


def residency_of(engine: InProcessEngine) -> Residency:
    """Return what carries out residency in an engine."""
    residency: Any = bridge_of(engine).residency
    return residency


def load(rounds: int = 3, each: int = 3, new: int = 8, **fields: Any) -> list[Asked]:
    """Return requests that come back to each of the prefixes in turn, ``each`` at a time."""
    count = rounds * each * len(PREFIXES)
    return [
        Asked(
            f"r{i:03}",
            PREFIXES[i // each % len(PREFIXES)] + tokens(900 + i, 4 + i % 9),
            new + i % 3,
            fields,
        )
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


def all_of(*steps: Callable[[InProcessEngine], object]) -> Callable[[InProcessEngine], bool]:
    """Return one ``on_pass`` made of several."""

    def on_pass(engine: InProcessEngine) -> bool:
        more = [step(engine) for step in steps]  # each of them takes its turn
        return any(more)

    return on_pass


class Leash:
    """Holds copies of one direction back, lets them fail, or spoils what they copy.

    Parameters
    ----------
    patch
        Takes the place of the lane's copying.
    direction
        ``load`` or ``save``.
    """

    def __init__(self, patch: pytest.MonkeyPatch, direction: str) -> None:
        self.go = threading.Event()
        self.go.set()
        self.fails = 0
        self.spoils = False
        self.delay_s = 0.0
        copy_group = CpuLane.copy_group
        leash = self

        def copied(lane: Any, index: int) -> Any:
            if lane._job.direction != direction:
                return copy_group(lane, index)
            time.sleep(leash.delay_s)
            assert leash.go.wait(60), "the test has forgotten to let go"
            if leash.fails > 0:
                leash.fails -= 1
                raise OSError("the bus is gone")
            if leash.spoils:
                lane._job.host.memory[index].zero_()
            return copy_group(lane, index)

        patch.setattr(CpuLane, "copy_group", copied)


def inconsistencies(engine: InProcessEngine) -> list[str]:
    """Return where pins, store, tree and core disagree; for ``on_pass``, between passes."""
    residency = residency_of(engine)
    cache, store = residency._cache, residency.store
    wrong = []
    coming = 0
    for key, held in residency.holdings.held.items():
        prefix, state = held.prefix, store.state(key).value
        if held.lock is None:
            coming += len(prefix.tokens)
            if state not in ("loading", "resident and on host", "on host"):
                wrong.append(f"a prefix that comes is {state}")
            continue
        match = cache.match(prefix.tokens, prefix.namespace)
        if match.length != len(prefix.tokens):
            wrong.append(f"{match.length} of {len(prefix.tokens)} pinned tokens are in the tree")
        elif state in ("absent", "on host") or (
            state in ("loading", "torn") and key not in residency._layers
        ):
            wrong.append(f"a pinned prefix is {state}")
        elif _SLOTS(cache, match).tolist() != store._prefixes[key].slots.tolist():
            wrong.append("store and tree have different slots for a pinned prefix")
    on_device = [
        key
        for key, state in store.agents().items()
        if state.value not in ("on host",) and key not in residency.holdings
    ]
    if on_device:
        wrong.append(f"{len(on_device)} prefixes on the device that nobody holds")
    if cache.in_transit != coming:
        wrong.append(f"{cache.in_transit} slots in transit, {coming} wanted")
    return wrong + _unknown_to_core(engine)


def _unknown_to_core(engine: InProcessEngine) -> list[str]:
    """What is held counts in the core's sums, once a decision was taken on all that happened."""
    bridge, residency = bridge_of(engine), residency_of(engine)
    if bridge._due or bridge._look_around or bridge._broken:
        return []
    known = {str(agent) for agent in bridge.core.snapshot(1e9).to_dict()["resident"]}
    counted = {p.key for agent, p in residency._prefixes.items() if agent in known}
    held = {key for key, held in residency.holdings.held.items() if not held.is_leaving}
    return [f"{len(held - counted)} prefixes are held, unknown to the core"] * (not held <= counted)


def at_rest(engine: InProcessEngine) -> None:
    """Check that nothing is left of pins and copies but copies on the host, and the pool exact."""
    residency = residency_of(engine)
    scheduler = engine.scheduler
    assert inconsistencies(engine) == []
    assert residency.loading == (0, 0)
    assert residency._cache.in_transit == 0
    assert not residency._no_room
    tree, free = scheduler.tree_cache, scheduler.token_to_kv_pool_allocator
    assert tree.protected_size() == residency.pinned[1]
    sizes = free.available_size() + tree.evictable_size() + tree.protected_size()
    assert sizes == scheduler.max_total_num_tokens


def array(prefix: list[int]) -> Any:
    """Return token ids as topas has them."""
    return np.asarray(prefix, dtype=np.int64)


def agree(engine: InProcessEngine) -> None:
    """Check that topas, SGLang, store and core see things alike; for ``on_pass``."""
    assert driving.disagreements(engine) == []
    assert inconsistencies(engine) == []


def serve(
    engine: InProcessEngine, asked: list[Asked], at_once: int = 6, *steps: Any
) -> dict[str, list[int]]:
    """Run requests to the end, looking at every pass, and return the outputs."""
    outputs = driving.finish(engine, all_of(trickle(asked, at_once), agree, *steps))
    settle(engine)
    at_rest(engine)
    return outputs


def warm(engine: InProcessEngine, prefix: list[int], name: str) -> None:
    """Have a prefix known, computed and copied."""
    for i in range(2):
        engine.submit(f"{name}{i}", prefix + tokens(i, 4), 4)
        engine.run()
    settle(engine)


def settle(engine: InProcessEngine) -> None:
    """Run until no copy is under way."""

    def is_copying(engine: InProcessEngine) -> bool:
        under_way = len(residency_of(engine)._flights) > 0
        time.sleep(0.002 * under_way)
        return under_way

    engine.run(is_copying, pass_limit=driving.PASSES)


def push_out(engine: InProcessEngine, size: int = POOL - 60) -> None:
    """Fill the pool with something else."""
    engine.submit("other", tokens(77, size), 4)
    engine.run()
