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
        Size of the pool, tokens; what does not make a whole page is lost.
    page_size : int
        Tokens of a page; each holder has whole pages.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        self.page_size = page_size
        self.capacity = capacity // page_size * page_size
        self.used = 0
        self.peak = 0
        self._held: dict[Hashable, int] = {}

    @property
    def free(self) -> int:
        """Tokens nobody holds."""
        return self.capacity - self.used

    def __contains__(self, holder: object) -> bool:
        return holder in self._held

    def rounded(self, tokens: int) -> int:
        """``tokens`` in whole pages, rounded up."""
        return -(-tokens // self.page_size) * self.page_size

    def charge(self, holder: Hashable, tokens: int) -> None:
        """Give ``tokens``, in whole pages, to ``holder``.

        Raises
        ------
        CapacityError
            There are not so many free; whoever asked should have looked.
        StateError
            The holder has tokens already.
        """
        if holder in self._held:
            raise StateError(f"KV pool: {holder!r} is charged twice")
        self._set(holder, self.rounded(tokens))

    def resize(self, holder: Hashable, tokens: int) -> None:
        """Let ``holder`` have ``tokens``, in whole pages, from now on.

        Raises
        ------
        CapacityError
            It needs more than there is.
        StateError
            It has nothing so far.
        """
        if holder not in self._held:
            raise StateError(f"KV pool: {holder!r} holds nothing")
        self._set(holder, self.rounded(tokens))

    def _set(self, holder: Hashable, tokens: int) -> None:
        more = tokens - self._held.get(holder, 0)
        if self.used + more > self.capacity:
            raise CapacityError(
                f"KV pool: {holder!r} needs {more} tokens, {self.used} of {self.capacity} "
                "are in use"
            )
        self._held[holder] = tokens
        self.used += more
        self.peak = max(self.peak, self.used)

    def held(self, holder: Hashable) -> int:
        """Tokens of ``holder``; 0 if it has none."""
        return self._held.get(holder, 0)

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
