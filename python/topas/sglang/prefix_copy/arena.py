"""Host memory of fixed size for the copies of prefixes, handed out in pieces."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import torch  # type: ignore[import-not-found, unused-ignore]

from topas.sglang.prefix_copy.buffers import LayerGroup

__all__ = ["ALIGNMENT", "HostArena", "HostCopy", "padded"]

ALIGNMENT = 256  # bytes; every piece begins at a multiple


def padded(nbytes: int) -> int:
    """Bytes that a piece of so many takes."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _taken(groups: Sequence[LayerGroup]) -> int:
    return sum(padded(group.nbytes) for group in groups)


@dataclass(frozen=True)
class HostCopy:
    """The KV of a prefix in host memory: one contiguous piece a layer group.

    Parameters
    ----------
    groups : tuple of LayerGroup
        All layers, in order.
    offsets : tuple of int
        Where in the arena each piece begins.
    memory : tuple of torch.Tensor
        The pieces: bytes, shape [group.nbytes].
    """

    groups: tuple[LayerGroup, ...]
    offsets: tuple[int, ...]
    memory: tuple[torch.Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of KV."""
        return sum(group.nbytes for group in self.groups)

    @property
    def taken(self) -> int:
        """Bytes of the arena."""
        return _taken(self.groups)


class HostArena:
    """Pieces of one block of memory, first fit; freed neighbours become one hole again.

    The block is made (and pinned) once: pinning while the engine runs would stall it.

    Parameters
    ----------
    memory : torch.Tensor
        The block: bytes, shape [capacity].

    Attributes
    ----------
    used : int
        Bytes handed out, padding included.
    """

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self.capacity = int(memory.numel()) // ALIGNMENT * ALIGNMENT
        self.used = 0
        self._holes = [(0, self.capacity)] if self.capacity else []

    def allocate(self, groups: list[LayerGroup]) -> HostCopy | None:
        """Room for all groups, or None (and nothing is taken) where it is not there."""
        offsets: list[int] = []
        for group in groups:
            offset = self._take(padded(group.nbytes))
            if offset is None:
                for taken, earlier in zip(offsets, groups, strict=False):
                    self._give(taken, padded(earlier.nbytes))
                return None
            offsets.append(offset)
        pieces = [
            self._memory[offset : offset + group.nbytes]
            for offset, group in zip(offsets, groups, strict=True)
        ]
        return HostCopy(tuple(groups), tuple(offsets), tuple(pieces))

    def free(self, copy: HostCopy) -> None:
        """Take back what :meth:`allocate` gave."""
        for offset, group in zip(copy.offsets, copy.groups, strict=True):
            self._give(offset, padded(group.nbytes))

    def to_free(self, groups: list[LayerGroup], copies: Sequence[HostCopy]) -> int | None:
        """How many copies, from the first on, have to be freed before the groups have room.

        None where all of them are not enough. Tried on the holes alone: nothing is freed here.
        """
        trial = HostArena(self._memory)
        trial.used, trial._holes = self.used, list(self._holes)
        need = _taken(groups)
        for count in range(len(copies) + 1):
            if count:
                trial.free(copies[count - 1])
            if need <= trial.capacity - trial.used and trial.allocate(groups) is not None:
                return count
        return None

    def shortage(self, groups: list[LayerGroup], copies: Sequence[HostCopy]) -> str:
        """Why the groups have no room though all these copies may go."""
        need, free = _taken(groups), self.capacity - self.used
        can_go = sum(copy.taken for copy in copies)
        text = (
            f"a host copy takes {need} bytes of {self.capacity}; "
            f"{free} were free and {can_go} could go"
        )
        if need > free + can_go:
            return text
        largest = max(padded(group.nbytes) for group in groups)
        return (
            f"{text}, but what cannot go lies between: pieces of up to "
            f"{largest} bytes do not fit into the holes"
        )

    def _take(self, size: int) -> int | None:
        for index, (offset, room) in enumerate(self._holes):
            if room >= size:
                rest = [(offset + size, room - size)] if room > size else []
                self._holes[index : index + 1] = rest
                self.used += size
                return offset
        return None

    def _give(self, offset: int, size: int) -> None:
        self.used -= size
        insort(self._holes, (offset, size))
        merged: list[tuple[int, int]] = []
        for begin, room in self._holes:
            if merged and sum(merged[-1]) == begin:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((begin, room))
        self._holes = merged
