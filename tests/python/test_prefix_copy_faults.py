"""Copies of prefixes that fail or are cancelled: nothing leaks, nothing hangs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from topas.errors import ArgumentError, StateError

torch = pytest.importorskip("torch", reason="copies of prefixes need torch")

from prefix_pool import (  # noqa: E402 - only where torch is
    LAYERS,
    PATIENCE_S,
    Broken,
    Gate,
    WrappedBackend,
    benches,
    bits,
    equal,
    fault_at,
    in_time,
    scribble,
    slots_from,
)
from topas.sglang.prefix_copy import CopyCancelled, CopyError, Residency, transfers  # noqa: E402

bench = pytest.fixture(benches)


# ---- faults


STEPS = ["begin", *(f"group {index}" for index in range(LAYERS)), "drain", "seconds"]


@pytest.mark.parametrize("operation", ["save", "evict"])
@pytest.mark.parametrize("step", STEPS)
def test_a_fault_while_saving_leaves_the_prefix_resident(
    bench: Any, step: str, operation: str
) -> None:
    b = bench(WrappedBackend(fault_at("save", step)))
    content = b.place("a", 0)
    transfer = getattr(b.store, operation)("a")
    with pytest.raises(CopyError, match=f"agent 'a': the save failed: save, {step}") as caught:
        in_time(transfer.wait)
    assert isinstance(caught.value.__cause__, Broken)
    with pytest.raises(StateError, match=r"agent 'a': .*failed, as was reported"):
        in_time(transfer.wait)
    assert b.store.state("a") is Residency.RESIDENT
    assert b.store.host_bytes_used == 0
    assert b.store.counts().failures == 1
    assert b.store.measured_bandwidth("save") is None
    in_time(b.store.evict("a").wait)  # and all works after it
    scribble(b.tensors, slots_from(0))
    in_time(b.store.load("a", slots_from(0)).wait)
    assert equal(bits(b.tensors, slots_from(0)), content)


@pytest.mark.parametrize("step", STEPS)
def test_a_fault_while_loading_leaves_the_prefix_on_the_host(bench: Any, step: str) -> None:
    b = bench(WrappedBackend(fault_at("load", step)))
    content = b.on_host("a", 0)
    transfer = b.store.load("a", slots_from(40))

    def forward() -> None:
        for layer in range(LAYERS):
            b.store.wait_for_layer("a", layer)
        transfer.wait()

    with pytest.raises(CopyError, match=f"agent 'a': the load failed: load, {step}"):
        in_time(forward)
    assert b.store.state("a") is Residency.HOST
    with pytest.raises(StateError, match="as was reported"):
        in_time(lambda: b.store.wait_for_layer("a", 0))
    assert b.store.host_bytes_used == b.copy_bytes
    b.place("b", 40)  # the slots are free for others
    in_time(b.store.load("a", slots_from(64)).wait)
    assert equal(bits(b.tensors, slots_from(64)), content)


@pytest.mark.parametrize("operation", ["save", "evict", "load"])
def test_a_fault_before_anything_is_queued_changes_nothing(bench: Any, operation: str) -> None:
    armed = [False]

    def hook(direction: str, step: str) -> None:
        if armed[0] and step == "fence":
            raise Broken

    b = bench(WrappedBackend(hook))
    b.on_host("old", 0) if operation == "load" else b.place("old", 0)
    before, used = b.store.agents(), b.store.host_bytes_used
    armed[0] = True
    arguments = [slots_from(40)] if operation == "load" else []
    with pytest.raises(Broken):
        getattr(b.store, operation)("old", *arguments)
    armed[0] = False
    assert (b.store.agents(), b.store.host_bytes_used) == (before, used)
    in_time(getattr(b.store, operation)("old", *arguments).wait)


def test_an_error_is_reported_to_one_of_many_that_wait(bench: Any) -> None:
    gate, fault = Gate("load"), fault_at("load", "group 3")

    def hook(direction: str, step: str) -> None:
        gate(direction, step)
        fault(direction, step)

    b = bench(WrappedBackend(hook))
    b.on_host("a", 0)
    transfer = b.store.load("a", slots_from(40))
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            transfer.wait_for_layer(LAYERS - 1)
        except (CopyError, StateError) as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    gate.permits.release(LAYERS)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(type(error).__name__ for error in errors) == ["CopyError"] + 4 * ["StateError"]


def test_a_thread_survives_whatever_a_copy_raises(bench: Any) -> None:
    def hook(direction: str, step: str) -> None:
        if direction == "save" and step == "group 1":
            raise SystemExit

    b = bench(WrappedBackend(hook))
    b.place("a", 0)
    for _ in range(2):
        with pytest.raises(CopyError):
            in_time(b.store.save("a").wait)


# ---- cancelling


def test_cancelling_waits_for_the_copy_under_way(bench: Any) -> None:
    gate = Gate("load")
    b = bench(WrappedBackend(gate))
    content = b.on_host("a", 0)
    transfer = b.store.load("a", slots_from(40))
    gate.permits.release(2)
    for _ in range(3):
        assert gate.arrived.acquire(timeout=PATIENCE_S)  # the third group is under way
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(b.store.cancel("a")))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    assert b.store.state("a") is Residency.LOADING
    with pytest.raises(ArgumentError, match="belong to a prefix"):
        b.store._slots.check_free(slots_from(40))
    gate.permits.release(1)
    thread.join(PATIENCE_S)
    assert answers == [True]
    assert b.store.state("a") is Residency.HOST
    with pytest.raises(CopyCancelled, match="agent 'a': the load was cancelled"):
        in_time(transfer.wait)
    other = b.place("b", 40)
    gate.permits.release(LAYERS)
    in_time(b.store.load("a", slots_from(64)).wait)
    assert equal(bits(b.tensors, slots_from(64)), content)
    assert equal(bits(b.tensors, slots_from(40)), other)
    assert b.store.counts().cancellations == 1


def test_few_groups_are_queued_ahead_so_that_cancelling_is_quick(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "_AHEAD", 2)
    b = bench()
    b.on_host("a", 0)
    lane = b.store._workers["load"]._lane
    queued: list[int] = []
    reached = threading.Semaphore(0)

    class Mark:
        def wait(self) -> None:
            assert reached.acquire(timeout=PATIENCE_S)

        def hold_stream(self) -> None:
            pass

    monkeypatch.setattr(lane, "copy_group", lambda index: queued.append(index) or Mark())
    monkeypatch.setattr(lane, "seconds", lambda first, last: 1.0)
    transfer = b.store.load("a", slots_from(64))
    in_time(lambda: transfer.wait_for_layer(1))
    with pytest.raises(AssertionError, match="hangs"):
        in_time(lambda: transfer.wait_for_layer(2), patience_s=0.05)
    reached.release()
    in_time(lambda: transfer.wait_for_layer(2))
    cancelled = threading.Thread(target=b.store.cancel, args=("a",))
    cancelled.start()
    while not transfer.is_cancelling:
        cancelled.join(0.001)
    reached.release()
    cancelled.join(PATIENCE_S)
    assert queued == [0, 1, 2]
    assert b.store.state("a") is Residency.HOST


def test_cancelling_what_has_not_begun_does_not_wait_for_others(bench: Any) -> None:
    gate = Gate("load")
    b = bench(WrappedBackend(gate))
    b.on_host("a", 0)
    b.on_host("b", 16)
    first = b.store.load("a", slots_from(64))
    b.store.load("b", slots_from(96))
    assert in_time(lambda: b.store.cancel("b"))
    assert b.store.state("b") is Residency.HOST
    assert not first.is_over
    gate.permits.release(LAYERS)
    in_time(first.wait)


@pytest.mark.parametrize("operation", ["save", "evict"])
def test_a_cancelled_save_leaves_the_prefix_resident(bench: Any, operation: str) -> None:
    gate = Gate("save")
    b = bench(WrappedBackend(gate))
    b.place("a", 0)
    transfer = getattr(b.store, operation)("a")
    assert gate.arrived.acquire(timeout=PATIENCE_S)
    thread = threading.Thread(target=b.store.cancel, args=("a",))
    thread.start()
    while not transfer.is_cancelling:
        thread.join(0.001)
    gate.permits.release()
    thread.join(PATIENCE_S)
    assert b.store.state("a") is Residency.RESIDENT
    assert b.store.host_bytes_used == 0


def test_cancelling_what_is_not_under_way_is_refused(bench: Any) -> None:
    b = bench()
    b.place("a", 0)
    with pytest.raises(StateError, match="agent 'a' is resident: cannot cancel"):
        b.store.cancel("a")
    with pytest.raises(StateError, match="agent 'b' is absent: cannot cancel"):
        b.store.cancel("b")


def test_closing_stops_what_is_under_way(bench: Any) -> None:
    gate = Gate("load")
    b = bench(WrappedBackend(gate))
    for index, agent in enumerate("abc"):
        b.on_host(agent, 16 * index)
    loads = [b.store.load(agent, slots_from(64 + 16 * i)) for i, agent in enumerate("abc")]
    thread = threading.Thread(target=b.store.close)
    thread.start()
    while not loads[0].is_cancelling:
        thread.join(0.001)
    gate.permits.release()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    for load in loads:
        with pytest.raises(CopyCancelled):
            load.wait()
