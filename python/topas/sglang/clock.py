"""One clock for all ranks: read on the rank that receives the requests, carried with them.

Every rank must decide alike, so no rank may read a clock of its own. SGLang broadcasts what the
first rank has received; the reading travels at the end of that list. So does what else the first
rank alone measures: the bandwidth of copies.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["RankClock", "Reading"]


@dataclass(frozen=True)
class Reading:
    """A time on its way to the other ranks, and what was measured by then.

    Parameters
    ----------
    now : float
        Seconds of the first rank's monotonic clock.
    load_bytes_per_s : float or None
        Bandwidth of loads to the first rank, to two digits; ``None`` before the first.
    """

    now: float
    load_bytes_per_s: float | None = None


class RankClock:
    """The time of the latest pass, the same on every rank.

    Attributes
    ----------
    now : float
        Seconds; stands still between passes.
    busy : bool
        Whether the time is wanted on passes without messages too.
    load_bytes_per_s : float or None
        The latest bandwidth that has come with a reading; ``None`` before the first.
    measure : callable or None
        Returns the bandwidth of loads on this rank (``PrefixStore.measured_bandwidth``); asked on
        the rank that reads the time only.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.busy = False
        self.load_bytes_per_s: float | None = None
        self.measure: Callable[[], float | None] | None = None

    def attach(self, messages: list[Any]) -> list[Any]:
        """Add a reading to what the first rank has received, if anybody needs the time."""
        if messages or self.busy:
            return [*messages, Reading(time.monotonic(), self._measured())]
        return messages

    def detach(self, messages: list[Any]) -> list[Any]:
        """Take the reading out of what was broadcast, and set the clock by it."""
        readings = [message for message in messages if isinstance(message, Reading)]
        if not readings:
            return messages
        self.now = max(self.now, *(reading.now for reading in readings))
        for reading in readings:
            if reading.load_bytes_per_s is not None:
                self.load_bytes_per_s = reading.load_bytes_per_s
        return [message for message in messages if not isinstance(message, Reading)]

    def _measured(self) -> float | None:
        """Two digits: what is below the noise changes no decision."""
        found = None if self.measure is None else self.measure()
        return None if found is None else float(f"{found:.2g}")
