"""What copies have moved and how fast: for the cost model and for metrics. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["CopyCounts", "CopyMeter", "Direction"]

Direction = Literal["save", "load"]

_KEEP = 0.9  # of what is known, at every new copy


@dataclass
class CopyCounts:
    """Totals since the start; bytes and seconds are those of copies that ended well.

    Parameters
    ----------
    saves, loads : int
        Copies to and from the host.
    save_bytes, load_bytes : int
        Bytes that were copied; of a load that skips tokens, on a CPU only those of the others.
    save_s, load_s : float
        Seconds from the first copy of a prefix to its last, waiting in the queue excluded.
    failures : int
        Copies that have failed.
    cancellations : int
        Copies that were cancelled.
    host_evictions : int
        Host copies given up to make room for others.
    """

    saves: int = 0
    loads: int = 0
    save_bytes: int = 0
    load_bytes: int = 0
    save_s: float = 0.0
    load_s: float = 0.0
    failures: int = 0
    cancellations: int = 0
    host_evictions: int = 0


class CopyMeter:
    """Counts copies and remembers how fast the latest were."""

    def __init__(self) -> None:
        self.counts = CopyCounts()
        self._recent: dict[str, tuple[float, float]] = {}

    def copied(self, direction: Direction, nbytes: int, seconds: float) -> None:
        """A copy of so many bytes took so long."""
        counts = self.counts
        if direction == "save":
            counts.saves += 1
            counts.save_bytes += nbytes
            counts.save_s += seconds
        else:
            counts.loads += 1
            counts.load_bytes += nbytes
            counts.load_s += seconds
        moved, took = self._recent.get(direction, (0.0, 0.0))
        self._recent[direction] = (_KEEP * moved + nbytes, _KEEP * took + seconds)

    def bandwidth(self, direction: Direction) -> float | None:
        """Bytes a second over the latest copies (each next weighs 1 / 0.9), or None before any."""
        moved, took = self._recent.get(direction, (0.0, 0.0))
        return moved / took if took > 0.0 else None

    def snapshot(self) -> CopyCounts:
        """A copy of the totals."""
        return replace(self.counts)
