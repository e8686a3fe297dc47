"""Loads into slots that others may read before they are over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from topas.errors import ArgumentError, CapacityError, StateError

torch = pytest.importorskip("torch", reason="copies of prefixes need torch")

from prefix_pool import (  # noqa: E402 - only where torch is
    LAYERS,
    TOKENS,
    Gate,
    WrappedBackend,
    benches,
    bits,
    equal,
    fault_at,
    in_time,
    slots_from,
)
from topas.sglang.layers import Arrival, LayerWaits  # noqa: E402
from topas.sglang.prefix_copy import CopyError, Residency  # noqa: E402

bench = pytest.fixture(benches)

PROMPT = range(TOKENS)
SKIP = 5


def arrive(b: Any, *, skip: int = 0) -> LayerWaits:
    """The prefix of agent a is being copied into slots from 40 on."""
    waits = LayerWaits(LAYERS, b.store)
    transfer = b.store.load("a", slots_from(40), skip=skip, is_shared=True)
    tokens = torch.arange(TOKENS).numpy()
    waits.begin(Arrival("a", tokens, skip, transfer))
    return waits


def run(waits: LayerWaits, prompt: Any = PROMPT, *, is_decode: bool = False) -> int:
    """Launch a batch with one request; return its index."""
    batch = SimpleNamespace(hicache_consumer_index=7)
    waits.launch(batch, [list(prompt)], is_decode)
    in_time(lambda: waits.set_consumer(batch.hicache_consumer_index))
    return batch.hicache_consumer_index


def copied(waits: LayerWaits) -> int:
    """Layers that were copied so far."""
    return len(waits._arriving["a"].transfer._marks)


def read_all(waits: LayerWaits) -> None:
    for layer in range(LAYERS):
        in_time(lambda layer=layer: waits.wait_until(layer))


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_tokens_that_are_skipped_keep_what_they_had(bench: Any, kind: str) -> None:
    b = bench(kind=kind)
    content = b.on_host("a", 0)
    slots = slots_from(40)
    before = bits(b.tensors, slots[:SKIP])
    b.store.load("a", slots, skip=SKIP).wait()
    assert equal(bits(b.tensors, slots[:SKIP]), before)
    assert equal(bits(b.tensors, slots[SKIP:]), [part[SKIP:] for part in content])


def test_tokens_that_are_skipped_do_not_count_as_copied(bench: Any) -> None:
    b = bench(WrappedBackend(lambda direction, step: None))
    b.store._workers["load"]._lane.seconds = lambda first, last: 0.5
    b.on_host("a", 0)
    transfer = b.store.load("a", slots_from(40), skip=SKIP, is_shared=True)
    in_time(transfer.wait)
    copied = (TOKENS - SKIP) * b.buffers.bytes_per_token
    assert transfer.nbytes == b.store.counts().load_bytes == copied
    assert b.store.counts().save_bytes == TOKENS * b.buffers.bytes_per_token
    assert b.store.measured_bandwidth() == pytest.approx(copied / 0.5)


def test_skipped_slots_may_be_another_prefix_s(bench: Any) -> None:
    b = bench()
    b.on_host("a", 0)
    b.place("b", 40)
    with pytest.raises(ArgumentError, match="belong to a prefix"):
        b.store.load("a", slots_from(40), skip=TOKENS - 1)
    slots = torch.cat([slots_from(40)[:SKIP], slots_from(64)[SKIP:]])
    in_time(b.store.load("a", slots, skip=SKIP).wait)


@pytest.mark.parametrize("skip", [0, SKIP])
@pytest.mark.parametrize("step", ["begin", "group 0", f"group {LAYERS - 1}", "drain", "seconds"])
def test_a_copy_that_fails_is_torn_until_it_is_mended(bench: Any, step: str, skip: int) -> None:
    b = bench(WrappedBackend(fault_at("load", step)), copies=1)
    content = b.on_host("a", 0)
    slots = slots_from(40)
    transfer = b.store.load("a", slots, skip=skip, is_shared=True)
    with pytest.raises(CopyError):
        in_time(transfer.wait)
    assert b.store.state("a") is Residency.TORN
    for operation in ("release", "evict", "save"):
        with pytest.raises(StateError, match="agent 'a' is torn"):
            getattr(b.store, operation)("a")
    b.place("b", 64)
    with pytest.raises(CapacityError):
        b.store.save("b")  # what is needed to mend it does not go
    b.store.mend("a")
    assert b.store.state("a") is Residency.RESIDENT_AND_HOST
    assert equal(bits(b.tensors, slots[skip:]), [part[skip:] for part in content])
    with pytest.raises(StateError, match="cannot mend"):
        b.store.mend("a")
    in_time(b.store.save("b").wait)


def test_a_torn_prefix_can_be_flushed(bench: Any) -> None:
    b = bench(WrappedBackend(fault_at("load", "group 1")))
    b.on_host("a", 0)
    in_time(b.store.load("a", slots_from(40), is_shared=True).settle)
    b.store.flush()
    assert b.store.agents() == {}
    b.place("b", 40)


def test_layers_are_waited_for_one_by_one_once_attention_has_asked_for_all(bench: Any) -> None:
    gate = Gate("load")
    b = bench(WrappedBackend(gate))
    b.on_host("a", 0)
    waits = arrive(b)
    gate.permits.release(LAYERS)
    assert run(waits) >= 0
    assert copied(waits) == LAYERS, "the first pass waits for the whole"
    read_all(waits)
    waits.reset()
    assert waits.is_proven
    waits.finish("a")
    b.store.release("a")
    waits2 = arrive(b)
    waits2.is_proven = True
    run(waits2)
    for layer in range(LAYERS):
        gate.permits.release()
        in_time(lambda layer=layer: waits2.wait_until(layer))
    assert waits2.overtaken >= LAYERS - 2
    waits2.reset()


@pytest.mark.parametrize("is_decode", [False, True])
def test_a_pass_that_does_not_ask_is_made_to_wait(bench: Any, is_decode: bool) -> None:
    """Decodes before they begin, others when they end, for those that run after them."""
    gate = Gate("load")
    b = bench(WrappedBackend(gate))
    b.on_host("a", 0)
    waits = arrive(b)
    waits.is_proven = True
    if is_decode:
        gate.permits.release(LAYERS)
    run(waits, is_decode=is_decode)
    assert copied(waits) == LAYERS * is_decode
    gate.permits.release(LAYERS)
    in_time(waits.reset)
    assert copied(waits) == LAYERS


@pytest.mark.parametrize(
    ("prompt", "waits_for_it"),
    [
        (range(TOKENS + 3), True),
        (range(SKIP + 1), True),
        (range(SKIP), True),  # what it generates may go on like the prefix
        ([], True),
        ([*range(SKIP), 999], False),  # no more in common than was there
        ([999, *range(1, TOKENS)], False),
    ],
)
def test_who_may_read_a_prefix(bench: Any, prompt: Any, waits_for_it: bool) -> None:
    gate = Gate("load")
    b = bench(WrappedBackend(gate))
    b.on_host("a", 0)
    waits = arrive(b, skip=SKIP)
    waits.is_proven = True
    assert (run(waits, prompt) >= 0) is waits_for_it
    gate.permits.release(LAYERS)
    waits.finish("a")
    assert run(waits) == -1
    waits.wait_until(0)  # nothing to wait for


def test_a_failed_copy_is_mended_once_where_it_is_read(bench: Any) -> None:
    b = bench(WrappedBackend(fault_at("load", "group 1")))
    content = b.on_host("a", 0)
    waits = arrive(b)
    waits.is_proven = True
    run(waits)
    read_all(waits)
    assert equal(bits(b.tensors, slots_from(40)), content)
    assert b.store.state("a") is Residency.RESIDENT_AND_HOST
    waits.reset()
    waits.finish("a")
    assert "a" not in waits
