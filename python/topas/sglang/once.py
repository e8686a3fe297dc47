"""A log that tells of each kind of error once."""

from __future__ import annotations

import logging

__all__ = ["OnceLog"]


class OnceLog:
    """Logs the first error of each kind, with its traceback.

    Parameters
    ----------
    logger : logging.Logger
        Where to.
    consequence : str
        What becomes of it, for whoever reads the line.
    """

    def __init__(self, logger: logging.Logger, consequence: str) -> None:
        self._logger = logger
        self._consequence = consequence
        self._known: set[str] = set()

    def __call__(self, error: Exception) -> str:
        """Log an error unless its kind is known; return the kind."""
        kind = type(error).__name__
        if kind not in self._known:
            self._known.add(kind)
            self._logger.error("topas: %s", self._consequence, exc_info=error)
        return kind
