"""Checks of settings and of files, shared by the simulator's modules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path

from topas.errors import ConfigError, TopasError

__all__ = ["check_choice", "check_int", "check_number", "file_errors"]


def check_int(name: str, value: object, *, minimum: int) -> None:
    """Refuse anything but an integer of at least ``minimum``.

    Raises
    ------
    ConfigError
        Names the field and the value (``bool`` is not an integer here).
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise ConfigError(f"{name}: must be an integer of at least {minimum}, got {value!r}")


def check_number(name: str, value: object, *, minimum: float = 0.0, above: bool = False) -> None:
    """Refuse anything but a finite real number of at least (or, with ``above``, above) ``minimum``.

    Raises
    ------
    ConfigError
        Names the field and the value.
    """
    legal = not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    if not legal or value < minimum or (above and value == minimum):  # type: ignore[operator]
        bound = "above" if above else "of at least"
        raise ConfigError(f"{name}: must be a finite number {bound} {minimum:g}, got {value!r}")


def check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    """Refuse anything but one of the ``known`` words.

    Raises
    ------
    ConfigError
        Names the field, the value and what is known.
    """
    if value not in known:
        raise ConfigError(f"{name}: unknown {value!r}, known are {', '.join(known)}")


@contextmanager
def file_errors(file: str | Path, kind: type[TopasError] = ConfigError) -> Iterator[None]:
    """Turn what goes wrong with a file into an error of ours that names it and the reason.

    Parameters
    ----------
    file : str or Path
        What the message calls the file: its path, with or without the setting that gave it.
    kind : type
        Of the error.

    Raises
    ------
    TopasError
        Of ``kind``: the system refused to read or write, or a text is no UTF-8.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{file}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise kind(f"{file}: not UTF-8: {error.reason} at byte {error.start}") from None
