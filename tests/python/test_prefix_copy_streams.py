"""The CUDA backend without a GPU: what its streams order, by clocks, and what a wrong order shows.

Streams and events are stand-ins that keep vector clocks; tensor operations run at once, on the
CPU, and a dispatch mode notes which bytes each reads and writes on which stream. Two operations on
the same bytes, one of them a write, must be ordered by events, or the copy would race on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="copies of prefixes need torch")

from prefix_pool import (  # noqa: E402 - only where torch is
    LAYERS,
    SLOTS,
    TOKENS,
    adapter,
    bits,
    equal,
    in_time,
    pool,
    scribble,
    slots_from,
)
from topas.sglang.prefix_copy import PrefixStore  # noqa: E402
from topas.sglang.prefix_copy.arena import HostArena  # noqa: E402
from topas.sglang.prefix_copy.backends import CopyJob  # noqa: E402
from topas.sglang.prefix_copy.cuda import CudaBackend  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

CPU = torch.device("cpu")
Clock = dict[int, int]


class Stream:
    """A stream that runs at once and knows what it comes after."""

    made = 0

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        Stream.made += 1
        self.number = Stream.made
        self.clock: Clock = {self.number: 0}

    def tick(self) -> Clock:
        self.clock[self.number] += 1
        return dict(self.clock)

    def wait_event(self, event: Event) -> None:
        for number, time in event.clock.items():
            self.clock[number] = max(self.clock.get(number, 0), time)


class Event:
    """A point in a stream."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.clock: Clock = {}

    def record(self, stream: Stream | None = None) -> None:
        self.clock = (stream or CURRENT[-1]).tick()

    def synchronize(self) -> None:
        HOST.wait_event(self)

    def elapsed_time(self, other: Event) -> float:
        assert self.options["enable_timing"]
        assert other.options["enable_timing"]
        return 250.0


WAITS = 4 + LAYERS + (LAYERS - 2)
#: Waits of a copy, by number: both streams for the compute stream, then one for each group, and one
#: more from the third group on for its staging buffer. (The first two are for a stream that has
#: nothing queued.)
NEEDED_WAITS = [{3, 4}, *({number} for number in range(5, WAITS + 1))]

HOST = Stream()
CURRENT = [Stream()]
PINNED: dict[int, int] = {}


class Runtime:
    """The part of the CUDA runtime that pins memory."""

    @staticmethod
    def cudaHostRegister(pointer: int, nbytes: int, flags: int) -> int:  # noqa: N802
        PINNED[pointer] = nbytes
        return 0

    @staticmethod
    def cudaHostUnregister(pointer: int) -> int:  # noqa: N802
        return 0 if PINNED.pop(pointer, None) else 1


def check_error(code: int) -> None:
    assert code == 0


@contextlib.contextmanager
def on(stream: Stream) -> Iterator[None]:
    CURRENT.append(stream)
    try:
        yield
    finally:
        CURRENT.pop()


@pytest.fixture(autouse=True)
def _streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: CURRENT[-1])
    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    monkeypatch.setattr(torch.cuda, "check_error", check_error)
    PINNED.clear()


class Accesses(TorchDispatchMode):
    """Notes the bytes that operations read and write, with the clock of their stream."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, int, int, int, Clock]] = []
        self.races: list[str] = []

    def note(self, name: str, tensor: Any, is_write: bool, clock: Clock) -> None:
        begin = tensor.data_ptr()
        end = begin + tensor.numel() * tensor.element_size()
        number = CURRENT[-1].number
        for wrote, other_begin, other_end, other, then in self.seen:
            overlap = begin < other_end and other_begin < end
            is_ordered = clock.get(other, 0) >= then[other]
            if overlap and (wrote or is_write) and not is_ordered:
                self.races.append(f"{name} on stream {number} against stream {other}")
        self.seen.append((is_write, begin, end, number, clock))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        reads, writes = {
            "copy_.default": ([1], [0]),
            "index_copy_.default": ([2, 3], [0]),
            "index_select.out": ([0, 2], []),
        }.get(name, ([], []))
        clock = CURRENT[-1].tick() if reads else {}
        for index in reads:
            self.note(name, args[index], False, clock)
        for tensor in [
            *(args[index] for index in writes),
            *([kwargs["out"]] if "out" in kwargs else []),
        ]:
            self.note(name, tensor, True, clock)
        return func(*args, **kwargs)


def run(
    backend: CudaBackend, direction: Any, after: Stream | None = None, skip: int = 0
) -> tuple[Accesses, Any]:
    """One copy of a prefix, one layer a group, in this thread; what it did, and its lane."""
    tensors = pool()
    buffers = adapter(tensors)
    host = HostArena(backend.host_memory(1 << 16)).allocate(buffers.groups(TOKENS, 1))
    assert host is not None
    lane = backend.lane(direction, buffers)
    accesses = Accesses()
    slots = slots_from(0)
    with accesses:
        if after is not None:  # a forward pass has just written the KV, or still reads it
            with on(after):
                for tensor in tensors:
                    tensor.view(torch.uint8).view(SLOTS, -1).index_copy_(
                        0, slots, torch.zeros(TOKENS, 32, dtype=torch.uint8)
                    )
        lane.begin(CopyJob(direction, slots, host, skip), backend.fence())
        marks = [lane.copy_group(index) for index in range(len(host.groups))]
    return accesses, (lane, marks, tensors)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("direction", ["save", "load"])
def test_copies_are_ordered_among_themselves(direction: str, depth: int) -> None:
    accesses, _ = run(CudaBackend(CPU, depth=depth), direction)
    assert len({number for _, _, _, number, _ in accesses.seen}) == 2
    assert accesses.races == []


@pytest.mark.parametrize(("direction", "skip"), [("save", 0), ("load", 0), ("load", 5)])
def test_what_crosses_the_bus_is_what_counts(direction: str, skip: int) -> None:
    accesses, (lane, _, _) = run(CudaBackend(CPU), direction, skip=skip)
    crossed = [
        end - begin
        for is_write, begin, end, number, _ in accesses.seen
        if is_write and number == lane._bus.number
    ]
    assert sum(crossed) == lane.nbytes(lane._job) == TOKENS * adapter(pool()).bytes_per_token


@pytest.mark.parametrize("direction", ["save", "load"])
def test_copies_come_after_what_the_compute_stream_has_queued(direction: str) -> None:
    stream = Stream()
    accesses, _ = run(CudaBackend(CPU, compute_stream=stream), direction, after=stream)
    assert accesses.races == []
    accesses, _ = run(CudaBackend(CPU), direction, after=CURRENT[-1])
    assert accesses.races == []
    accesses, _ = run(CudaBackend(CPU), direction, after=Stream())  # nobody told of this one
    assert accesses.races


@pytest.mark.parametrize("direction", ["save", "load"])
@pytest.mark.parametrize("skipped", NEEDED_WAITS, ids=str)
def test_a_missing_wait_would_show(
    direction: str, skipped: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [0]
    honest = Stream.wait_event

    def forgetful(stream: Stream, event: Event) -> None:
        waits[0] += 1
        if waits[0] not in skipped:
            honest(stream, event)

    stream = Stream()
    backend = CudaBackend(CPU, compute_stream=stream)
    monkeypatch.setattr(Stream, "wait_event", forgetful)
    accesses, _ = run(backend, direction, after=stream)
    assert waits[0] == WAITS
    assert accesses.races


def test_a_mark_holds_the_reader_until_its_layer_is_there_and_no_longer() -> None:
    accesses, (_, marks, tensors) = run(CudaBackend(CPU), "load")
    reader = Stream()
    rows = [tensor.view(torch.uint8).view(SLOTS, -1) for tensor in tensors]
    with accesses, on(reader):
        for layer, mark in enumerate(marks):
            mark.hold_stream()
            for row in (rows[layer], rows[LAYERS + layer]):
                torch.index_select(row, 0, slots_from(0), out=torch.empty_like(row[:TOKENS]))
            assert accesses.races == []
            if layer < LAYERS - 1:
                later = marks[layer + 1].event.clock
                assert any(time > reader.clock.get(number, 0) for number, time in later.items())
    with accesses, on(Stream()):
        torch.index_select(rows[0], 0, slots_from(0), out=torch.empty_like(rows[0][:TOKENS]))
    assert accesses.races


def test_draining_waits_for_both_streams() -> None:
    _, (lane, _, _) = run(CudaBackend(CPU), "load")
    for stream in (lane._kernels, lane._bus):
        stream.tick()
    queued = [(stream.number, stream.clock[stream.number]) for stream in (lane._kernels, lane._bus)]
    lane.drain()
    for number, time in queued:
        assert HOST.clock[number] >= time


def test_a_store_on_it_copies_bit_for_bit() -> None:
    tensors = pool()
    backend = CudaBackend(CPU)
    with PrefixStore(adapter(tensors), host_bytes=1 << 20, backend=backend, group_bytes=1) as store:
        assert list(PINNED.values()) == [1 << 20]
        for turn, first in enumerate((0, 40, 64)):  # the second prefix is longer: staging grows
            tokens = TOKENS + turn % 2 * 4
            slots = slots_from(first, tokens)
            content = bits(tensors, slots)
            agent = str(turn)
            store.place(agent, range(tokens), slots)
            in_time(store.evict(agent).wait)
            scribble(tensors, slots)
            load = store.load(agent, slots)
            store.wait_for_layer(agent, LAYERS - 1)
            in_time(load.wait)
            assert equal(bits(tensors, slots), content)
        assert store.measured_bandwidth() == pytest.approx(
            sum(0.9**age * size for age, size in enumerate((16, 20, 16)))
            * (load.nbytes / 16)
            / (0.25 * (1 + 0.9 + 0.81))
        )
    assert not PINNED
