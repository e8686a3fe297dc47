"""Host memory for prefixes and contexts: which of them have a copy there."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from topas.sim.memory.prefix import Context, Prefix

__all__ = ["HostCache"]


class HostCache:
    """Copies in host memory, least recently used ones making room; each under its holder's name.

    Parameters
    ----------
    capacity : int or None
        Room for copies, tokens; 0: there is no host cache, ``None``: there is always room.
    """

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.used = 0
        self._copies: dict[Hashable, int] = {}  # tokens by holder, least recently used first

    @property
    def enabled(self) -> bool:
        """Whether there is a host cache at all."""
        return self.capacity != 0

    def __contains__(self, holder: object) -> bool:
        return holder in self._copies

    def touch(self, holder: Hashable) -> None:
        """It is used: its copy, if there is one, is the most recent now."""
        if holder in self._copies:
            self._copies[holder] = self._copies.pop(holder)

    def store(self, item: Prefix | Context, busy: Collection[Hashable] = ()) -> bool:
        """Keep a copy, at the cost of the least recently used ones; a shorter one is replaced.

        Parameters
        ----------
        item : Prefix or Context
            What is in the pool, computed.
        busy : collection of hashable
            Holders whose copies are being read and cannot go.

        Returns
        -------
        bool
            Whether the host has a copy now; without room for it nothing is given up.
        """
        if not self.enabled:
            return False
        old = self._copies.get(item.holder, -1)
        if old >= item.tokens:
            self.touch(item.holder)
            return True
        more = item.tokens - max(old, 0)
        victims = self._victims(more, {*busy, item.holder})
        if victims is None:
            return False
        for victim in victims:
            self.used -= self._copies.pop(victim)
        self._copies.pop(item.holder, None)
        self._copies[item.holder] = item.tokens
        self.used += more
        return True

    def _victims(self, tokens: int, busy: Collection[Hashable]) -> list[Hashable] | None:
        if self.capacity is None:
            return []
        missing = self.used + tokens - self.capacity
        victims = []
        for holder, held in self._copies.items():
            if missing <= 0:
                break
            if holder not in busy:
                victims.append(holder)
                missing -= held
        return victims if missing <= 0 else None

    def tokens_of(self, holder: Hashable) -> int:
        """Length of a copy; 0 if there is none."""
        return self._copies.get(holder, 0)

    def copies(self) -> dict[Hashable, int]:
        """Tokens by holder, least recently used first; a copy."""
        return dict(self._copies)
