"""Copies under way, and which of them are over: on every rank the same ones, in the same pass.

Each rank copies its own shard, at its own speed. What a rank schedules must not hang on that: the
first rank's word on which copies are over, and how fast they are, travels with the clock; the
others wait for theirs, and a copy counts as done if it went well on all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from topas.sglang.clock import RankClock, Word

if TYPE_CHECKING:
    from topas.sglang.prefix_copy import Transfer

__all__ = ["Flights"]


class Flights:
    """Copies by the key of their prefix, one for each.

    Parameters
    ----------
    clock : RankClock
        Carries the first rank's word.
    all_well : callable or None
        Given whether each of some copies went well here, tells whether it did on all ranks; every
        rank calls it in the same pass. ``None``: there is one rank, which needs no word.
    rate : callable
        Bytes a second of loads as measured here, or None.
    """

    def __init__(
        self,
        clock: RankClock,
        all_well: Callable[[Sequence[bool]], Sequence[bool]] | None,
        rate: Callable[[], float | None],
    ) -> None:
        self._clock = clock
        self._all_well = all_well
        self._rate = rate
        self._last_rate: float | None = None
        self._number = 0
        self._flying: dict[int, tuple[str, Transfer]] = {}
        if all_well is not None:
            clock.word = self._say

    def __len__(self) -> int:
        return len(self._flying)

    def __contains__(self, key: str) -> bool:
        return any(key == one for one, _ in self._flying.values())

    def add(self, key: str, transfer: Transfer) -> None:
        """A copy has begun."""
        self._number += 1
        self._flying[self._number] = (key, transfer)

    def forget(self, key: str) -> None:
        """A copy was called off, if there is one."""
        self._flying = {n: flight for n, flight in self._flying.items() if flight[0] != key}

    def clear(self) -> None:
        """All were called off."""
        self._flying.clear()

    def settle(self) -> None:
        """Wait until all are over here, where there are several ranks.

        What the store may drop from host memory hangs on what is under way: the same on all ranks
        only when nothing is.
        """
        if self._all_well is not None:
            for _, transfer in self._flying.values():
                transfer.settle()

    def over(self) -> list[tuple[str, bool]]:
        """Those that are over now, in the order they were begun, and whether they went well."""
        word = self._say() if self._all_well is None else self._clock.take_word()
        if word is None:
            return []
        self._last_rate = word.rate
        ended = [self._flying.pop(number) for number in word.over if number in self._flying]
        if not ended:
            return []
        well = [transfer.settle().value == "done" for _, transfer in ended]
        if self._all_well is not None:
            well = list(self._all_well(well))
        return [(key, fine) for (key, _), fine in zip(ended, well, strict=True)]

    @property
    def rate(self) -> float | None:
        """Bytes a second of loads, as the first rank had measured when a copy was over last."""
        return self._last_rate

    def _say(self) -> Word | None:
        over = tuple(number for number, (_, t) in self._flying.items() if t.is_over)
        return Word(over, self._rate()) if over else None
