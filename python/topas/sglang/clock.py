"""One clock for all ranks: read on the rank that receives the requests, carried with them.

Every rank must decide alike, so no rank may read a clock of its own. SGLang broadcasts what the
first rank has received; the reading travels at the end of that list, and with it the word of the
first rank on the copies that are over (:mod:`topas.sglang.flights`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["RankClock", "Reading", "Word"]


@dataclass(frozen=True)
class Word:
    """What the first rank knows of its copies.

    Parameters
    ----------
    over : tuple of int
        Those that are over, by number.
    rate : float or None
        Bytes a second of loads.
    """

    over: tuple[int, ...]
    rate: float | None


@dataclass(frozen=True)
class Reading:
    """A time on its way to the other ranks, and what was measured by then.

    Parameters
    ----------
    now : float
        Seconds of the first rank's monotonic clock.
    word : Word or None
        What the first rank knows of its copies, if any is over.
    """

    now: float
    word: Word | None = None


class RankClock:
    """The time of the latest pass, the same on every rank.

    Attributes
    ----------
    now : float
        Seconds; stands still between passes.
    busy : bool
        Whether the time is wanted on passes without messages too.
    word : callable
        What the first rank knows of its copies; nothing by default.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.busy = False
        self.word: Callable[[], Word | None] = lambda: None
        self._heard: Word | None = None

    def attach(self, messages: list[Any]) -> list[Any]:
        """Add a reading to what the first rank has received, if anybody needs it."""
        word = self.word()
        if messages or self.busy or word is not None:
            return [*messages, Reading(time.monotonic(), word)]
        return messages

    def detach(self, messages: list[Any]) -> list[Any]:
        """Take the reading out of what was broadcast, and set the clock by it."""
        readings = [message for message in messages if isinstance(message, Reading)]
        if not readings:
            return messages
        self.now = max(self.now, *(reading.now for reading in readings))
        self._heard = readings[-1].word
        return [message for message in messages if not isinstance(message, Reading)]

    def take_word(self) -> Word | None:
        """The first rank's latest word, once."""
        word, self._heard = self._heard, None
        return word
