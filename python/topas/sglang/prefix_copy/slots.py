"""Which device slots prefixes have: checked before anything is copied to or from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]

from topas.errors import ArgumentError

__all__ = ["SlotChecks"]


class SlotChecks:
    """Checks of slots, and who has them, for those that are given on the host.

    Slots on a GPU are checked by dtype and number alone.

    Parameters
    ----------
    slots : int
        Of the pool.
    page_size : int
        Tokens a page.
    """

    def __init__(self, slots: int, page_size: int) -> None:
        self._pool = slots
        self._page_size = page_size
        self._holders = np.zeros(slots, dtype=np.int32)
        self._last_place = np.zeros(slots, dtype=np.int64)  # scratch

    def checked(self, slots: torch.Tensor, length: int) -> torch.Tensor:
        """The first ``length`` slots, if they are whole pages of the pool.

        Raises
        ------
        ArgumentError
            Else; the message gives the first slot at fault.
        """
        if slots.dtype != torch.int64 or slots.dim() != 1:
            raise ArgumentError(
                f"slots: int64 of shape [tokens] needed, got {slots.dtype} {list(slots.shape)}"
            )
        if len(slots) < length:
            raise ArgumentError(f"slots: {len(slots)} for {length} tokens")
        own = slots[:length].clone()
        if own.device.type != "cpu":
            return own
        self._check(own.numpy())
        return own

    def _check(self, slots: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        outside = slots[(slots < 0) | (slots >= self._pool)]
        if len(outside):
            raise ArgumentError(f"slots: {outside[0]} is not in 0..{self._pool - 1}")
        pages = slots.reshape(-1, self._page_size)
        first = pages[:, :1]
        torn = (pages - np.arange(self._page_size) != first) | (first % self._page_size != 0)
        if torn.any():
            raise ArgumentError(
                f"slots: {pages[torn][0]} is not in its place in a page of {self._page_size} tokens"
            )
        places = np.arange(len(slots))
        self._last_place[slots] = places
        twice = np.count_nonzero(self._last_place[slots] != places)
        if twice:
            raise ArgumentError(f"slots: {twice} of them come twice")

    def check_free(self, slots: torch.Tensor) -> None:
        """Raise :class:`ArgumentError` if a prefix has one of them."""
        if slots.device.type != "cpu":
            return
        taken = slots.numpy()[self._holders[slots.numpy()] > 0]
        if len(taken):
            raise ArgumentError(
                f"slots: {len(taken)} of them belong to a prefix, the first is {int(taken[0])}"
            )

    def hold(self, slots: torch.Tensor) -> None:
        """A prefix has these slots; several may share some."""
        if slots.device.type == "cpu":
            self._holders[slots.numpy()] += 1

    def let_go(self, slots: torch.Tensor) -> None:
        """A prefix has them no longer."""
        if slots.device.type == "cpu":
            self._holders[slots.numpy()] -= 1
