"""What a copy can end with, beside success."""

from __future__ import annotations

from topas.errors import TopasError

__all__ = ["CopyCancelled", "CopyError"]


class CopyError(TopasError, RuntimeError):
    """A copy has failed; ``__cause__`` is the error of the backend, the message names the agent."""


class CopyCancelled(CopyError):  # noqa: N818 - an outcome somebody asked for
    """The copy that was waited for has been cancelled."""
