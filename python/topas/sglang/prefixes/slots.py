"""Which device slots prefixes have: checked before anything is copied to or from them."""

from __future__ import annotations

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
        outside = own[(own < 0) | (own >= self._pool)]
        if len(outside):
            raise ArgumentError(f"slots: {int(outside[0])} is not in 0..{self._pool - 1}")
        pages = own.view(-1, self._page_size)
        within = torch.arange(self._page_size)
        torn = ((pages - within) != pages[:, :1]) | (pages[:, :1] % self._page_size != 0)
        if bool(torn.any()):
            raise ArgumentError(
                f"slots: {int(pages[torn][0])} is not in its place in a page of "
                f"{self._page_size} tokens"
            )
        if len(torch.unique(own)) < length:
            raise ArgumentError(f"slots: {length - len(torch.unique(own))} of them come twice")
        return own

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
