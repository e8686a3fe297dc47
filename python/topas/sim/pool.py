"""The KV pool, counted in tokens: every holder by name, never above the capacity."""

from __future__ import annotations

from collections.abc import Hashable

from topas.errors import CapacityError, StateError

__all__ = ["KvPool"]


class KvPool:
    """Tokens in use by holder.

    Parameters
    ----------
    capacity : int
        Size of the pool, tokens.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.peak = 0
        self._held: dict[Hashable, int] = {}

    @property
    def free(self) -> int:
        """Tokens nobody holds."""
        return self.capacity - self.used

    def charge(self, holder: Hashable, tokens: int) -> None:
        """Give ``tokens`` to ``holder``.

        Raises
        ------
        CapacityError
            There are not so many free; whoever asked should have looked.
        StateError
            The holder has tokens already.
        """
        if holder in self._held:
            raise StateError(f"KV pool: {holder!r} is charged twice")
        if self.used + tokens > self.capacity:
            raise CapacityError(
                f"KV pool: {holder!r} needs {tokens} tokens, {self.used} of {self.capacity} "
                "are in use"
            )
        self._held[holder] = tokens
        self.used += tokens
        self.peak = max(self.peak, self.used)

    def release(self, holder: Hashable) -> None:
        """Take back what ``holder`` has.

        Raises
        ------
        StateError
            It has nothing.
        """
        if holder not in self._held:
            raise StateError(f"KV pool: {holder!r} holds nothing")
        self.used -= self._held.pop(holder)

    def holders(self) -> dict[Hashable, int]:
        """Tokens by holder, a copy."""
        return dict(self._held)
