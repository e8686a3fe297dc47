"""One clock for all ranks: read on the rank that receives the requests, carried with them.

Every rank must decide alike, so no rank may read a clock of its own. SGLang broadcasts what the
first rank has received; the reading travels at the end of that list.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

__all__ = ["RankClock", "Reading"]


@dataclass(frozen=True)
class Reading:
    """A time on its way to the other ranks.

    Parameters
    ----------
    now : float
        Seconds of the first rank's monotonic clock.
    """

    now: float


class RankClock:
    """The time of the latest pass, the same on every rank.

    Attributes
    ----------
    now : float
        Seconds; stands still between passes.
    busy : bool
        Whether the time is wanted on passes without messages too.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.busy = False

    def attach(self, messages: list[Any]) -> list[Any]:
        """Add a reading to what the first rank has received, if anybody needs the time."""
        if messages or self.busy:
            return [*messages, Reading(time.monotonic())]
        return messages

    def detach(self, messages: list[Any]) -> list[Any]:
        """Take the reading out of what was broadcast, and set the clock by it."""
        readings = [message.now for message in messages if isinstance(message, Reading)]
        if not readings:
            return messages
        self.now = max(self.now, *readings)
        return [message for message in messages if not isinstance(message, Reading)]
