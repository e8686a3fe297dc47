"""Copies on CUDA streams of their own.

Each direction has two streams, so that one group of layers is gathered (or scattered) while
another crosses the bus. Between them is a ring of staging buffers on the device::

    save:  index_select, KV -> staging   |event|   staging -> pinned memory
    load:  pinned memory -> staging      |event|   index_copy_, staging -> KV   |event| = the mark

The device is never synchronised; the host waits for single events, in the worker's thread.

What the copies read and write outlives them without ``record_stream``: slots, staging buffers and
host memory are held by the job or the lane until the host has seen the last event of the job.
"""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from topas.errors import ArgumentError
from topas.sglang.copy_counts import Direction
from topas.sglang.prefix_copy.backends import Backend, CopyJob, CpuBackend, Mark
from topas.sglang.prefix_copy.buffers import KvBuffers

__all__ = ["CudaBackend", "backend_of"]


class CudaMark:
    """An event on a stream of the copies."""

    def __init__(self, device: torch.device, stream: Any) -> None:
        self._device = device
        self.event: Any = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call, unused-ignore]
        self.event.record(stream)

    def wait(self) -> None:
        """See :class:`~topas.sglang.prefix_copy.backends.Mark`."""
        self.event.synchronize()

    def hold_stream(self) -> None:
        """See :class:`~topas.sglang.prefix_copy.backends.Mark`."""
        torch.cuda.current_stream(self._device).wait_event(self.event)


class CudaBackend:
    """Streams, events and pinned memory of one GPU.

    Parameters
    ----------
    device : torch.device
        Where the KV buffers are.
    compute_stream : torch.cuda.Stream, optional
        Where forward passes run, if that is not the current stream of whoever calls the store:
        copies wait for what both have queued.
    depth : int
        Staging buffers of each direction; two let gathering and the bus overlap.
    """

    def __init__(self, device: torch.device, *, compute_stream: Any = None, depth: int = 2) -> None:
        self._device = device
        self._compute_stream = compute_stream
        self._depth = depth

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """Pinned memory of exactly this size; torch's own would be rounded up to a power of two."""
        memory = torch.empty(nbytes, dtype=torch.uint8)
        with torch.cuda.device(self._device):
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call, unused-ignore]
            torch.cuda.check_error(runtime.cudaHostRegister(memory.data_ptr(), nbytes, 0))
        return memory

    def free_host_memory(self, memory: torch.Tensor) -> None:
        """Unpin it."""
        with torch.cuda.device(self._device):
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call, unused-ignore]
            torch.cuda.check_error(runtime.cudaHostUnregister(memory.data_ptr()))

    def fence(self) -> list[Any]:
        """Events after what the caller's stream and the compute stream have queued."""
        streams = [torch.cuda.current_stream(self._device)]
        if self._compute_stream is not None:
            streams.append(self._compute_stream)
        return [CudaMark(self._device, stream).event for stream in streams]

    def lane(self, direction: Direction, buffers: KvBuffers) -> CudaLane:
        """A lane with streams of its own."""
        return CudaLane(buffers, self._device, self._depth)


class CudaLane:
    """See :class:`~topas.sglang.prefix_copy.backends.Lane`."""

    def __init__(self, buffers: KvBuffers, device: torch.device, depth: int) -> None:
        self._buffers = buffers
        self._device = device
        # gathers are short: let them in between the blocks of a long kernel
        self._kernels: Any = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call, unused-ignore]
        self._bus: Any = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call, unused-ignore]
        self._staging: list[torch.Tensor | None] = [None] * depth
        self._free: list[Any] = [None] * depth  # event after which a staging buffer may be reused
        self._job: CopyJob | None = None
        self._slots: torch.Tensor | None = None
        self._pinned_slots: torch.Tensor | None = None

    def nbytes(self, job: CopyJob) -> int:
        """See :class:`~topas.sglang.prefix_copy.backends.Lane`: skipped rows cross the bus too."""
        return job.host.nbytes

    def begin(self, job: CopyJob, fence: list[Any]) -> CudaMark:
        """See :class:`~topas.sglang.prefix_copy.backends.Lane`; nothing of the last job is left."""
        self._job = job
        self._free = [None] * len(self._staging)
        for event in fence:
            self._kernels.wait_event(event)
            self._bus.wait_event(event)
        self._grow(max(group.nbytes for group in job.host.groups))
        with torch.cuda.stream(self._kernels):
            if job.slots.device == self._device:
                self._slots = job.slots
            else:
                self._pinned_slots = job.slots.pin_memory()
                self._slots = self._pinned_slots.to(self._device, non_blocking=True)
        return CudaMark(self._device, self._bus if job.direction == "load" else self._kernels)

    def copy_group(self, index: int) -> CudaMark:
        """Queue the copy of a group; returns at once."""
        job, slots = self._job, self._slots
        assert job is not None
        assert slots is not None
        group, memory = job.host.groups[index], job.host.memory[index]
        place = index % len(self._staging)
        whole = self._staging[place]
        assert whole is not None
        staging = whole[: group.nbytes]
        first, second = (
            (self._bus, self._kernels) if job.direction == "load" else (self._kernels, self._bus)
        )
        if self._free[place] is not None:
            first.wait_event(self._free[place])
        with torch.cuda.stream(first):
            if job.direction == "load":
                staging.copy_(memory, non_blocking=True)
            else:
                for rows, part in self._buffers.parts(group, staging):
                    torch.index_select(rows, 0, slots, out=part)
        second.wait_event(CudaMark(self._device, first).event)
        with torch.cuda.stream(second):
            if job.direction == "load":
                for rows, part in self._buffers.parts(group, staging):
                    rows.index_copy_(0, slots[job.skip :], part[job.skip :])
            else:
                memory.copy_(staging, non_blocking=True)
        mark = CudaMark(self._device, second)
        self._free[place] = mark.event
        return mark

    def drain(self) -> None:
        """Wait for both streams, whatever was queued; then let go of what the job needed."""
        for stream in (self._kernels, self._bus):
            CudaMark(self._device, stream).event.synchronize()
        self._job = self._slots = self._pinned_slots = None

    def seconds(self, first: Mark, last: Mark) -> float:
        """See :class:`~topas.sglang.prefix_copy.backends.Lane`."""
        assert isinstance(first, CudaMark)
        assert isinstance(last, CudaMark)
        return float(first.event.elapsed_time(last.event)) / 1e3

    def _grow(self, nbytes: int) -> None:
        """Staging buffers of at least this size; the lane is idle, so the old ones can go."""
        for place, staging in enumerate(self._staging):
            if staging is None or staging.numel() < nbytes:
                self._staging[place] = None
                with torch.cuda.stream(self._kernels):
                    self._staging[place] = torch.empty(
                        nbytes, dtype=torch.uint8, device=self._device
                    )


def backend_of(buffers: KvBuffers) -> Backend:
    """The backend that goes with the device of the buffers.

    Raises
    ------
    ArgumentError
        There is none.
    """
    if buffers.device.type == "cpu":
        return CpuBackend()
    if buffers.device.type == "cuda":
        return CudaBackend(buffers.device)
    raise ArgumentError(f"buffers: there is no backend for device {buffers.device}")
