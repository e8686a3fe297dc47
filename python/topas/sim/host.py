"""Host memory for prefixes: which of them have a copy there."""

from __future__ import annotations

from collections.abc import Collection

from topas.sim.prefix import Prefix

__all__ = ["HostCache"]


class HostCache:
    """Copies of prefixes in host memory, least recently used ones making room.

    Parameters
    ----------
    capacity : int or None
        Room for copies, tokens; 0: there is no host cache, ``None``: there is always room.
    """

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.used = 0
        self._copies: dict[str, int] = {}  # tokens by agent, least recently used first

    @property
    def enabled(self) -> bool:
        """Whether there is a host cache at all."""
        return self.capacity != 0

    def __contains__(self, agent: object) -> bool:
        return agent in self._copies

    def touch(self, agent: str) -> None:
        """The agent's prefix is used: its copy, if there is one, is the most recent now."""
        if agent in self._copies:
            self._copies[agent] = self._copies.pop(agent)

    def store(self, prefix: Prefix, busy: Collection[str] = ()) -> bool:
        """Keep a copy, at the cost of the least recently used ones.

        Parameters
        ----------
        prefix : Prefix
            A computed prefix.
        busy : collection of str
            Agents whose copies are being read and cannot go.

        Returns
        -------
        bool
            Whether the host has a copy now; without room for it nothing is given up.
        """
        if not self.enabled:
            return False
        if prefix.agent in self._copies:
            self.touch(prefix.agent)
            return True
        victims = self._victims(prefix.tokens, busy)
        if victims is None:
            return False
        for victim in victims:
            self.used -= self._copies.pop(victim)
        self._copies[prefix.agent] = prefix.tokens
        self.used += prefix.tokens
        return True

    def _victims(self, tokens: int, busy: Collection[str]) -> list[str] | None:
        if self.capacity is None:
            return []
        missing = self.used + tokens - self.capacity
        victims = []
        for agent, held in self._copies.items():
            if missing <= 0:
                break
            if agent not in busy:
                victims.append(agent)
                missing -= held
        return victims if missing <= 0 else None

    def copies(self) -> dict[str, int]:
        """Tokens by agent, least recently used first; a copy."""
        return dict(self._copies)
