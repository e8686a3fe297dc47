"""A KV pool of random bits, and a CPU backend that tests can stop, slow down and break."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="copies of prefixes need torch")

from topas.sglang.prefix_copy import KvBuffers, PrefixStore  # noqa: E402 - only where torch is
from topas.sglang.prefix_copy.arena import ALIGNMENT  # noqa: E402
from topas.sglang.prefix_copy.backends import CpuBackend  # noqa: E402

LAYERS, SLOTS, HEADS, DIM = 6, 128, 2, 8
TOKENS = 16
PATIENCE_S = 20.0
DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint8,  # as which SGLang stores fp8
]


def random_kv(*shape: int, dtype: Any = torch.bfloat16, seed: int = 0) -> Any:
    """Random bits: NaNs, infinities and denormals among them."""
    size = dtype.itemsize
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), generator=generator)
    return raw.to(torch.uint8).view(dtype)


def pool(kind: str = "mha", dtype: Any = torch.bfloat16, layers: int = LAYERS) -> list[Any]:
    """Tensors of a pool, K before V."""
    count, heads = (2 * layers, HEADS) if kind == "mha" else (layers, 1)
    return [random_kv(SLOTS, heads, DIM, dtype=dtype, seed=i) for i in range(count)]


def adapter(tensors: list[Any], kind: str = "mha") -> KvBuffers:
    if kind == "mla":
        return KvBuffers.mla(tensors)
    half = len(tensors) // 2
    return KvBuffers.mha(tensors[:half], tensors[half:])


def bits(tensors: list[Any], slots: Any) -> list[Any]:
    return [tensor.view(torch.uint8)[slots].clone() for tensor in tensors]


def equal(one: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def scribble(tensors: list[Any], slots: Any, seed: int = 99) -> None:
    """Somebody else uses the slots."""
    for index, tensor in enumerate(tensors):
        shape = (len(slots), *tensor.shape[1:])
        other = random_kv(*shape, dtype=tensor.dtype, seed=seed * 1000 + index)
        tensor.view(torch.uint8)[slots] = other.view(torch.uint8)


def slots_from(first: int, tokens: int = TOKENS) -> Any:
    """Scattered slots, in no order."""
    generator = torch.Generator().manual_seed(first)
    return first + torch.randperm(tokens, generator=generator)


class WrappedBackend(CpuBackend):
    """The CPU backend with something before each step of a lane: ``hook(direction, step)``."""

    def __init__(self, hook: Callable[[str, str], None]) -> None:
        self.hook = hook
        self.groups: list[tuple[str, int]] = []
        self.freed = 0

    def fence(self) -> None:
        self.hook("any", "fence")

    def free_host_memory(self, memory: Any) -> None:
        self.freed += memory.numel()

    def lane(self, direction: Any, buffers: KvBuffers) -> Any:
        inner, outer = super().lane(direction, buffers), self

        class Lane:
            def nbytes(self, job: Any) -> int:
                return inner.nbytes(job)

            def begin(self, job: Any, fence: Any) -> Any:
                outer.hook(direction, "begin")
                return inner.begin(job, fence)

            def copy_group(self, index: int) -> Any:
                outer.hook(direction, f"group {index}")
                outer.groups.append((direction, index))
                return inner.copy_group(index)

            def drain(self) -> None:
                outer.hook(direction, "drain")
                inner.drain()

            def seconds(self, first: Any, last: Any) -> float:
                outer.hook(direction, "seconds")
                return inner.seconds(first, last)

        return Lane()


class Gate:
    """A hook that lets through as many groups of loads and saves as the test says."""

    def __init__(self, direction: str) -> None:
        self.direction = direction
        self.permits = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)

    def __call__(self, direction: str, step: str) -> None:
        if direction == self.direction and step.startswith("group"):
            self.arrived.release()
            assert self.permits.acquire(timeout=PATIENCE_S), "the test has forgotten the gate"


def in_time(call: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """What a call returns or raises; a call that hangs fails the test."""
    result: dict[str, Any] = {}

    def run() -> None:
        try:
            result["value"] = call()
        except BaseException as error:
            result["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(patience_s)
    assert not thread.is_alive(), "hangs"
    if "error" in result:
        raise result["error"]
    return result["value"]


class Bench:
    """A pool and a store on it, one layer a group."""

    def __init__(
        self,
        backend: CpuBackend | None = None,
        *,
        copies: float = 4,
        kind: str = "mha",
        dtype: Any = torch.bfloat16,
        **options: Any,
    ) -> None:
        self.tensors = pool(kind, dtype)
        self.buffers = adapter(self.tensors, kind)
        groups = self.buffers.groups(TOKENS, options.get("group_bytes", 1))
        self.copy_bytes = sum(-(-g.nbytes // ALIGNMENT) * ALIGNMENT for g in groups)
        options = {"group_bytes": 1, "host_bytes": int(copies * self.copy_bytes), **options}
        self.store = PrefixStore(self.buffers, backend=backend, **options)

    def place(self, agent: str, first: int) -> list[Any]:
        slots = slots_from(first)
        assert self.store.place(agent, range(first, first + TOKENS), slots) == TOKENS
        return bits(self.tensors, slots)

    def on_host(self, agent: str, first: int) -> list[Any]:
        """Placed, evicted, its slots used by somebody else."""
        content = self.place(agent, first)
        in_time(self.store.evict(agent).wait)
        scribble(self.tensors, slots_from(first))
        return content


class Broken(RuntimeError):  # noqa: N818 - no error of ours
    """What the injected faults raise."""


def fault_at(direction: str, step: str) -> Callable[[str, str], None]:
    """A hook that fails at the first such step."""
    armed = [True]

    def hook(here: str, now: str) -> None:
        if armed[0] and (here, now) == (direction, step):
            armed[0] = False
            raise Broken(f"{direction}, {step}")

    return hook


def checked_close(bench: Bench) -> None:
    """Close the store of a bench: nothing may be left."""
    in_time(bench.store.close)
    assert bench.store.host_bytes_used == 0
    assert bench.store.agents() == {}
    assert not bench.store._slots._holders.any()


def benches() -> Iterator[Callable[..., Bench]]:
    """Make benches, and check each at the end: a fixture for whoever names it."""
    made: list[Bench] = []

    def make(*args: Any, **options: Any) -> Bench:
        made.append(Bench(*args, **options))
        return made[-1]

    yield make
    for one in made:
        checked_close(one)
