"""How groups of layers are copied: what a backend must do, and the one without a GPU.

A worker thread drives one lane a direction: ``begin``, ``copy_group`` for each group in order,
``drain``. ``copy_group`` may return before the copy is over; its mark tells.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

import torch  # type: ignore[import-not-found, unused-ignore]

from topas.sglang.copy_counts import Direction
from topas.sglang.prefix_copy.arena import HostCopy
from topas.sglang.prefix_copy.buffers import KvBuffers

__all__ = ["Backend", "CopyJob", "CpuBackend", "Lane", "Mark", "copy_rows"]

_STEP = 1024  # tokens that are copied at a time where there may be little memory


@dataclass(frozen=True)
class CopyJob:
    """What is to be copied.

    Parameters
    ----------
    direction : str
        ``save`` (device to host) or ``load``.
    slots : torch.Tensor
        Device slots of the prefix, int64, shape [tokens], on the host or on the device.
    host : HostCopy
        The other end.
    skip : int
        Tokens at the beginning that a load leaves alone: their slots hold their KV.
    is_shared : bool
        Whether others may use the slots of a load before it is over.
    """

    direction: Direction
    slots: torch.Tensor
    host: HostCopy
    skip: int = 0
    is_shared: bool = False

    @property
    def filled(self) -> torch.Tensor:
        """The slots that a load fills, int64, shape [tokens - skip]."""
        return self.slots[self.skip :]


class Mark(Protocol):
    """A point in a lane: all that was given to it before is copied when the mark is reached."""

    def wait(self) -> None:
        """Return when it is reached."""

    def hold_stream(self) -> None:
        """Make what the caller queues from now on wait for the mark; the caller goes on."""


class Lane(Protocol):
    """Copies in one direction; used by one thread at a time, ``nbytes`` by any."""

    def nbytes(self, job: CopyJob) -> int:
        """Bytes that are copied for a job."""

    def begin(self, job: CopyJob, fence: Any) -> Mark:
        """Start a job: nothing of it is copied before the fence is reached."""

    def copy_group(self, index: int) -> Mark:
        """Copy a group of the job, or queue the copy."""

    def drain(self) -> None:
        """Return when nothing is under way; legal at any time."""

    def seconds(self, first: Mark, last: Mark) -> float:
        """Time between two marks that have been reached."""


class Backend(Protocol):
    """Memory and lanes of a device."""

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """Bytes of host memory, shape [nbytes], as the device copies fastest."""

    def free_host_memory(self, memory: torch.Tensor) -> None:
        """Undo :meth:`host_memory`."""

    def fence(self) -> Any:
        """What the caller has queued on the device so far."""

    def lane(self, direction: Direction, buffers: KvBuffers) -> Lane:
        """A lane between the buffers and host memory."""


@dataclass(frozen=True)
class CpuMark:
    """A point that has been reached already.

    Parameters
    ----------
    time_s : float
        When, on the process's performance counter.
    """

    time_s: float

    def wait(self) -> None:
        """Nothing to wait for."""

    def hold_stream(self) -> None:
        """Nothing to wait for."""


class CpuBackend:
    """Buffers in host memory: the lane copies at once, in the worker's thread."""

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """Plain memory."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def free_host_memory(self, memory: torch.Tensor) -> None:
        """Python frees it."""

    def fence(self) -> None:
        """What the caller has done is done."""

    def lane(self, direction: Direction, buffers: KvBuffers) -> CpuLane:
        """A lane; both directions are alike."""
        return CpuLane(buffers)


class CpuLane:
    """See :class:`Lane`."""

    def __init__(self, buffers: KvBuffers) -> None:
        self._buffers = buffers
        self._job: CopyJob | None = None

    def nbytes(self, job: CopyJob) -> int:
        """See :class:`Lane`: the rows that are not skipped."""
        return job.host.nbytes // len(job.slots) * len(job.filled)

    def begin(self, job: CopyJob, fence: Any) -> CpuMark:
        """See :class:`Lane`."""
        self._job = job
        return CpuMark(time.perf_counter())

    def copy_group(self, index: int) -> CpuMark:
        """See :class:`Lane`."""
        job = self._job
        assert job is not None
        parts = self._buffers.parts(job.host.groups[index], job.host.memory[index])
        for rows, part in parts:
            if job.direction == "save":
                torch.index_select(rows, 0, job.slots, out=part)
            else:
                rows.index_copy_(0, job.filled, part[job.skip :])
        return CpuMark(time.perf_counter())

    def drain(self) -> None:
        """Nothing is ever under way between two calls."""
        self._job = None

    def seconds(self, first: Mark, last: Mark) -> float:
        """See :class:`Lane`."""
        assert isinstance(first, CpuMark)
        assert isinstance(last, CpuMark)
        return last.time_s - first.time_s


def copy_rows(buffers: KvBuffers, job: CopyJob) -> None:
    """Do all that a load has to do, at once and on the current stream."""
    with torch.inference_mode():
        for index, group in enumerate(job.host.groups):
            for rows, part in buffers.parts(group, job.host.memory[index]):
                for begin in range(job.skip, len(job.slots), _STEP):
                    some = slice(begin, begin + _STEP)
                    slots = job.slots[some].to(rows.device)
                    rows.index_copy_(0, slots, part[some].to(rows.device))
