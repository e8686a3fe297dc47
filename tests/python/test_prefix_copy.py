"""Prefixes between a KV pool and host memory, on the backend without a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from topas.errors import ArgumentError, CapacityError, ConfigError, StateError

torch = pytest.importorskip("torch", reason="copies of prefixes need torch")

from prefix_pool import (  # noqa: E402 - only where torch is
    ALIGNMENT,
    DIM,
    DTYPES,
    HEADS,
    LAYERS,
    PATIENCE_S,
    SLOTS,
    TOKENS,
    Gate,
    WrappedBackend,
    adapter,
    benches,
    bits,
    equal,
    in_time,
    pool,
    random_kv,
    scribble,
    slots_from,
)
from topas.sglang.prefix_copy import KvBuffers, PrefixStore, Residency  # noqa: E402
from topas.sglang.prefix_copy.arena import HostArena  # noqa: E402
from topas.sglang.prefix_copy.buffers import LayerGroup  # noqa: E402

bench = pytest.fixture(benches)


# ---- copies are exact


@pytest.mark.parametrize("group_bytes", [1, 3000, 1 << 30])
@pytest.mark.parametrize("kind", ["mha", "mla"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_prefix_returns_bit_for_bit(bench: Any, dtype: Any, kind: str, group_bytes: int) -> None:
    b = bench(dtype=dtype, kind=kind, group_bytes=group_bytes)
    content = b.on_host("a", 0)
    elsewhere = slots_from(40)
    others = torch.tensor([s for s in range(SLOTS) if s not in set(elsewhere.tolist())])
    before = bits(b.tensors, others)
    b.store.load("a", elsewhere).wait()
    assert equal(bits(b.tensors, elsewhere), content)
    assert equal(bits(b.tensors, others), before)
    assert b.store.state("a") is Residency.RESIDENT_AND_HOST


def test_rows_of_odd_sizes_and_buffers_that_begin_anywhere() -> None:
    k = random_kv(SLOTS * 3 + 1, 1, 1, dtype=torch.float16).flatten()[1:].view(SLOTS, 1, 3)
    v = random_kv(SLOTS, 1, 5, dtype=torch.float16)
    tensors = [k, v]
    content = [t[:TOKENS].clone() for t in tensors]
    with PrefixStore(KvBuffers.mha([k], [v]), host_bytes=4096) as store:
        store.place("a", range(TOKENS), torch.arange(TOKENS))
        store.evict("a").wait()
        store.load("a", torch.arange(64, 64 + TOKENS)).wait()
    for tensor, saved in zip(tensors, content, strict=True):
        assert torch.equal(tensor[64 : 64 + TOKENS].view(torch.int16), saved.view(torch.int16))


def test_buffers_made_under_inference_mode_and_a_caller_outside_of_it() -> None:
    with torch.inference_mode():
        tensors = pool()
        buffers = adapter(tensors)
        store = PrefixStore(buffers, host_bytes=1 << 20)
    with store:
        content = bits(tensors, slots_from(0))
        store.place("a", range(TOKENS), slots_from(0))
        store.evict("a").wait()
        store.load("a", slots_from(64)).wait()
        assert equal(bits(tensors, slots_from(64)), content)


def test_a_load_uses_the_copy_and_not_what_the_slots_hold_now(bench: Any) -> None:
    b = bench()
    content = b.on_host("a", 0)
    assert not equal(bits(b.tensors, slots_from(0)), content)
    b.store.load("a", slots_from(0)).wait()
    assert equal(bits(b.tensors, slots_from(0)), content)


# ---- layers


def test_layers_are_ready_one_by_one(bench: Any) -> None:
    gate = Gate("load")
    b = bench(WrappedBackend(gate))
    content = b.on_host("a", 0)
    transfer = b.store.load("a", slots_from(40))
    for layer in range(LAYERS):
        gate.permits.release()
        in_time(lambda layer=layer: b.store.wait_for_layer("a", layer))
        pair = [b.tensors[layer], b.tensors[LAYERS + layer]]
        assert equal(bits(pair, slots_from(40)), [content[layer], content[LAYERS + layer]])
        if layer < LAYERS - 1:
            assert not transfer.is_over
            assert b.store.state("a") is Residency.LOADING
    in_time(transfer.wait)
    assert b.store.state("a") is Residency.RESIDENT_AND_HOST


def test_a_layer_is_not_ready_before_its_group(bench: Any) -> None:
    gate = Gate("load")
    b = bench(WrappedBackend(gate))
    b.on_host("a", 0)
    transfer = b.store.load("a", slots_from(40))
    gate.permits.release()
    waited = threading.Event()
    thread = threading.Thread(target=lambda: (transfer.wait_for_layer(2), waited.set()))
    thread.start()
    in_time(lambda: transfer.wait_for_layer(0))
    assert gate.arrived.acquire(timeout=PATIENCE_S)
    assert gate.arrived.acquire(timeout=PATIENCE_S)
    assert not waited.wait(0.05)
    gate.permits.release(LAYERS)
    thread.join(PATIENCE_S)
    assert waited.is_set()


def test_layers_of_a_prefix_that_is_there_are_ready(bench: Any) -> None:
    gate = Gate("save")
    b = bench(WrappedBackend(gate))
    b.place("a", 0)
    b.store.wait_for_layer("a", LAYERS - 1)
    transfer = b.store.save("a")
    b.store.wait_for_layer("a", LAYERS - 1)
    b.store.evict("a")
    with pytest.raises(StateError, match="agent 'a' is evicting: cannot wait for layer 0"):
        b.store.wait_for_layer("a", 0)
    gate.permits.release(LAYERS)
    in_time(transfer.wait)
    with pytest.raises(StateError, match="agent 'a' is on host: cannot wait for layer 0"):
        b.store.wait_for_layer("a", 0)
    with pytest.raises(ArgumentError, match=r"layer: 6 is not in 0\.\.5"):
        b.store.wait_for_layer("a", LAYERS)


def test_saves_and_loads_go_on_side_by_side(bench: Any) -> None:
    gate = Gate("save")
    b = bench(WrappedBackend(gate))
    gate.permits.release(LAYERS)
    content = b.on_host("a", 0)
    b.place("b", 32)
    saving = b.store.evict("b")
    in_time(b.store.load("a", slots_from(64)).wait)
    assert equal(bits(b.tensors, slots_from(64)), content)
    assert not saving.is_over
    gate.permits.release(LAYERS)
    in_time(saving.wait)


# ---- copies are made once, and host memory has a budget


def test_a_second_eviction_copies_nothing(bench: Any) -> None:
    backend = WrappedBackend(lambda direction, step: None)
    b = bench(backend)
    b.on_host("a", 0)
    b.store.load("a", slots_from(40)).wait()
    saves = [group for group in backend.groups if group[0] == "save"]
    assert len(saves) == LAYERS
    again = b.store.evict("a")
    assert again.is_over
    assert again.nbytes == 0
    assert torch.equal(again.slots, slots_from(40))
    again.wait()
    assert b.store.state("a") is Residency.HOST
    assert [group for group in backend.groups if group[0] == "save"] == saves
    assert b.store.counts().saves == 1


def test_an_eviction_takes_over_a_save_under_way(bench: Any) -> None:
    gate = Gate("save")
    b = bench(WrappedBackend(gate))
    b.place("a", 0)
    save = b.store.save("a")
    assert b.store.evict("a") is save
    assert b.store.state("a") is Residency.EVICTING
    gate.permits.release(LAYERS)
    in_time(save.wait)
    assert b.store.state("a") is Residency.HOST


def test_the_least_recently_used_host_copy_goes_first(bench: Any) -> None:
    b = bench(copies=2)
    b.on_host("a", 0)
    b.on_host("b", 16)
    b.store.load("a", slots_from(64)).wait()  # now b is the one that was used least recently
    b.on_host("c", 32)
    assert b.store.state("b") is Residency.ABSENT
    assert b.store.state("a") is Residency.RESIDENT_AND_HOST
    b.on_host("d", 32)  # a keeps its slots, so it loses only the copy
    assert b.store.agents() == {
        "a": Residency.RESIDENT,
        "c": Residency.HOST,
        "d": Residency.HOST,
    }
    assert b.store.host_bytes_used == 2 * b.copy_bytes
    assert b.store.counts().host_evictions == 2


def test_a_copy_that_is_touched_goes_later(bench: Any) -> None:
    b = bench(copies=2)
    b.on_host("a", 0)
    b.on_host("b", 16)
    b.store.touch("a")
    b.store.touch("nobody")
    b.on_host("c", 32)
    assert b.store.agents() == {"a": Residency.HOST, "c": Residency.HOST}


def test_copies_in_flight_stay(bench: Any) -> None:
    gate = Gate("load")
    b = bench(WrappedBackend(gate), copies=2)
    content = b.on_host("a", 0)
    b.on_host("b", 16)
    load = b.store.load("a", slots_from(64))
    b.store.load("b", slots_from(96))
    b.place("c", 32)
    with pytest.raises(CapacityError, match=rf"'c': .* {b.copy_bytes} bytes of .*0 were free"):
        b.store.save("c")
    assert b.store.state("c") is Residency.RESIDENT
    gate.permits.release(2 * LAYERS)
    in_time(load.wait)
    assert equal(bits(b.tensors, slots_from(64)), content)
    in_time(b.store.save("c").wait)


def test_nothing_goes_for_a_copy_that_would_not_fit_anyway(bench: Any) -> None:
    b = bench(copies=1.5)
    b.on_host("a", 0)
    tokens = range(2 * TOKENS)
    b.store.place("long", tokens, torch.arange(32, 32 + len(tokens)))
    with pytest.raises(CapacityError, match="'long'"):
        b.store.evict("long")
    assert b.store.agents() == {"a": Residency.HOST, "long": Residency.RESIDENT}


def test_nothing_goes_where_a_copy_in_flight_splits_the_room(bench: Any) -> None:
    gate = Gate("load")
    b = bench(WrappedBackend(gate), copies=3, group_bytes=1 << 30)
    for index, agent in enumerate("abc"):
        b.on_host(agent, 16 * index)
    load = b.store.load("b", slots_from(100))  # its copy lies between the two others
    tokens = range(2 * TOKENS)
    b.store.place("long", tokens, torch.arange(64, 64 + len(tokens)))
    needed = 2 * b.copy_bytes
    with pytest.raises(
        CapacityError,
        match=rf"'long': .* {needed} bytes of .*0 were free and {needed} could go, but what cannot "
        rf"go lies between: pieces of up to {needed} bytes do not fit",
    ):
        b.store.save("long")
    assert b.store.state("a") is b.store.state("c") is Residency.HOST
    assert b.store.counts().host_evictions == 0
    gate.permits.release()
    in_time(load.wait)
    in_time(b.store.save("long").wait)  # now b may go as well
    assert b.store.counts().host_evictions == 3


def test_copies_go_in_order_until_the_pieces_fit(bench: Any) -> None:
    gate = Gate("load")
    b = bench(WrappedBackend(gate), copies=4, group_bytes=1 << 30)
    for index, agent in enumerate("abcd"):
        b.on_host(agent, 16 * index)
    b.store.load("b", slots_from(110))
    b.store.touch("a")
    tokens = range(2 * TOKENS)
    b.store.place("long", tokens, torch.arange(64, 64 + len(tokens)))
    gate.permits.release()
    in_time(b.store.save("long").wait)
    assert "a" in b.store.agents(), "c and d were used before it, and are neighbours"
    assert b.store.counts().host_evictions == 2


@given(st.randoms(use_true_random=False))
def test_the_arena_says_how_many_copies_have_to_go(random: Random) -> None:
    arena = HostArena(torch.empty(24 * ALIGNMENT, dtype=torch.uint8))

    def groups() -> list[LayerGroup]:
        sizes = [random.randint(1, 5 * ALIGNMENT) for _ in range(random.randint(1, 3))]
        return [LayerGroup(range(1), size) for size in sizes]

    made = [arena.allocate(groups()) for _ in range(12)]
    copies = [copy for copy in made if copy is not None]
    may_go = random.sample(copies, random.randint(0, len(copies)))
    wanted, used = groups(), arena.used
    count = arena.to_free(wanted, may_go)
    assert arena.used == used
    for copy in may_go[:count]:
        assert arena.allocate(wanted) is None, "fewer would have done"
        arena.free(copy)
    assert (arena.allocate(wanted) is not None) == (count is not None)


def test_the_arena_joins_its_holes() -> None:
    arena = HostArena(torch.empty(8 * ALIGNMENT, dtype=torch.uint8))
    one = [LayerGroup(range(1), ALIGNMENT - 1)]
    copies = [arena.allocate(one) for _ in range(8)]
    assert arena.allocate(one) is None
    for index in (1, 3, 2, 6):
        arena.free(copies[index])
    three = [LayerGroup(range(1), 3 * ALIGNMENT)]
    assert arena.allocate(three * 2) is None
    assert arena.used == 4 * ALIGNMENT
    joined = arena.allocate(three)
    assert joined is not None
    assert joined.offsets == (ALIGNMENT,)


# ---- what is refused


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        (lambda: KvBuffers.mla([]), "buffers: at least one layer"),
        (lambda: KvBuffers.mha(pool()[:2], pool()[:1]), "v_buffers: 1 layers, .* has 2"),
        (lambda: KvBuffers.mla([torch.zeros(4, 8)]), r"buffers\[0\]: shape .* \[4, 8\]"),
        (lambda: KvBuffers.mla([[1]]), r"buffers\[0\]: a tensor is needed, got list"),
        (
            lambda: KvBuffers.mla([torch.zeros(4, 1, 8, dtype=torch.int64)]),
            r"buffers\[0\]: dtype torch.int64",
        ),
        (
            lambda: KvBuffers.mla([torch.zeros(4, 8, 2).transpose(1, 2)]),
            r"buffers\[0\]: not contiguous",
        ),
        (
            lambda: KvBuffers.mla([torch.zeros(4, 1, 8), torch.zeros(5, 1, 8)]),
            r"buffers\[1\]: 5 slots, buffers\[0\] has 4",
        ),
        (
            lambda: KvBuffers.mha([torch.zeros(4, 1, 8)], [torch.zeros(4, 1, 8).half()]),
            r"v_buffers\[0\]: dtype torch.float16, but k_buffers\[0\]",
        ),
        (
            lambda: KvBuffers.mla([torch.zeros(4, 1, 8), torch.zeros(4, 1, 8, device="meta")]),
            r"buffers\[1\]: device meta",
        ),
        (
            lambda: PrefixStore(
                KvBuffers.mla([torch.zeros(4, 1, 8, device="meta")]), host_bytes=100
            ),
            "no backend for device meta",
        ),
        (lambda: PrefixStore(adapter(pool()), host_bytes=0), "host_bytes: .* got 0"),
        (lambda: PrefixStore(adapter(pool()), host_bytes=1, page_size=-1), "page_size: .* -1"),
    ],
)
def test_buffers_that_are_refused(buffers: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        buffers()


def test_pools_of_the_engine() -> None:
    tensors = pool()
    k, v = tensors[:LAYERS], tensors[LAYERS:]
    pointers = torch.zeros(LAYERS)
    mha = SimpleNamespace(k_buffer=k, v_buffer=v, data_ptrs=pointers, k_scale_buffer=None, size=9)
    assert KvBuffers.of_pool(mha).bytes_per_token == 2 * LAYERS * HEADS * DIM * 2
    assert KvBuffers.of_pool(SimpleNamespace(kv_buffer=k)).layers == LAYERS
    for other in (
        SimpleNamespace(k_buffer=k, v_buffer=v, k_scale_buffer=k, v_scale_buffer=v),
        SimpleNamespace(kv_buffer=k, index_k_with_scale_buffer=v),
        SimpleNamespace(full_kv_pool=mha, swa_kv_pool=mha),
        SimpleNamespace(k_buffer=k),
    ):
        with pytest.raises(ConfigError, match="SimpleNamespace is not supported"):
            KvBuffers.of_pool(other)


@pytest.mark.parametrize(
    ("tokens", "slots", "message"),
    [
        (3, torch.arange(8), "tokens: 3 are less than a page of 4"),
        (8, torch.arange(7), "slots: 7 for 8 tokens"),
        (8, torch.arange(8).int(), "slots: int64"),
        (8, torch.arange(8).view(2, 4), r"slots: .*\[2, 4\]"),
        (8, torch.arange(SLOTS - 4, SLOTS + 4), r"slots: 128 is not in 0\.\.127"),
        (8, torch.arange(-4, 4), "slots: -4 is not in"),
        (8, torch.arange(2, 10), "slots: 2 is not in its place in a page of 4"),
        (8, torch.tensor([0, 1, 2, 3, 4, 6, 5, 7]), "slots: 6 is not in its place"),
        (8, torch.tensor([4, 5, 6, 7, 4, 5, 6, 7]), "slots: 4 of them come twice"),
    ],
)
def test_slots_that_are_refused(bench: Any, tokens: int, slots: Any, message: str) -> None:
    b = bench(page_size=4)
    with pytest.raises(ArgumentError, match=message):
        b.store.place("a", range(tokens), slots)
    assert b.store.agents() == {}


def test_prefixes_are_rounded_down_to_whole_pages(bench: Any) -> None:
    b = bench(page_size=4)
    slots = torch.tensor([8, 9, 10, 11, 0, 1, 2, 3, 40])
    content = bits(b.tensors, slots[:8])
    assert b.store.place("a", range(9), slots) == 8
    assert b.store.length("a") == 8
    b.store.evict("a").wait()
    scribble(b.tensors, slots[:8])
    b.store.load("a", torch.arange(64, 72)).wait()
    assert equal(bits(b.tensors, torch.arange(64, 72)), content)


def test_a_load_does_not_overwrite_another_prefix(bench: Any) -> None:
    b = bench()
    b.on_host("a", 0)
    content = b.place("b", 16)
    with pytest.raises(ArgumentError, match="slots: 1 of them belong to a prefix, the first is 16"):
        b.store.load("a", torch.arange(1, 1 + TOKENS))
    with pytest.raises(ArgumentError, match="slots: 15 for the 16 tokens of 'a'"):
        b.store.load("a", torch.arange(40, 55))
    assert b.store.state("a") is Residency.HOST
    assert equal(bits(b.tensors, slots_from(16)), content)
    assert torch.equal(b.store.release("b").sort().values, torch.arange(16, 32))
    in_time(b.store.load("a", torch.arange(1, 1 + TOKENS)).wait)


def test_another_prefix_under_the_same_name_is_refused(bench: Any) -> None:
    b = bench()
    b.on_host("a", 0)
    with pytest.raises(ArgumentError, match="agent 'a' has another prefix of 16 tokens"):
        b.store.place("a", range(1, 17), slots_from(0))
    b.store.forget("a")
    b.store.place("a", range(1, 17), slots_from(0))
    assert b.store.state("a") is Residency.RESIDENT


def test_a_prefix_that_was_computed_again_keeps_its_copy(bench: Any) -> None:
    b = bench()
    b.on_host("a", 0)
    b.place("a", 0)
    assert b.store.state("a") is Residency.RESIDENT_AND_HOST
    assert b.store.evict("a").nbytes == 0


def test_operations_on_a_closed_store_are_refused(bench: Any) -> None:
    backend = WrappedBackend(lambda direction, step: None)
    b = bench(backend)
    b.on_host("a", 0)
    b.store.close()
    b.store.close()
    assert backend.freed == 4 * b.copy_bytes
    with pytest.raises(StateError, match="agent 'a': cannot place: the store is closed"):
        b.store.place("a", range(TOKENS), slots_from(0))


# ---- figures


def test_bandwidth_is_that_of_the_latest_copies(bench: Any, monkeypatch: Any) -> None:
    backend = WrappedBackend(lambda direction, step: None)
    b = bench(backend)
    for lane in (b.store._workers["load"]._lane, b.store._workers["save"]._lane):
        monkeypatch.setattr(lane, "seconds", lambda first, last: 0.5)
    nbytes = TOKENS * b.buffers.bytes_per_token
    assert b.store.measured_bandwidth() is None
    b.on_host("a", 0)
    assert b.store.measured_bandwidth() is None
    assert b.store.measured_bandwidth("save") == pytest.approx(nbytes / 0.5)
    b.store.load("a", slots_from(40)).wait()
    monkeypatch.setattr(b.store._workers["load"]._lane, "seconds", lambda first, last: 0.05)
    b.store.evict("a")
    b.store.load("a", slots_from(40)).wait()
    assert b.store.measured_bandwidth() == pytest.approx(1.9 * nbytes / 0.5)
    counts = b.store.counts()
    assert (counts.saves, counts.loads) == (1, 2)
    assert (counts.save_bytes, counts.load_bytes) == (nbytes, 2 * nbytes)
    assert (counts.save_s, counts.load_s) == pytest.approx((0.5, 0.55))
