"""Checks of settings, shared by the simulator's dataclasses."""

from __future__ import annotations

import math
from numbers import Integral, Real

from topas.errors import ConfigError

__all__ = ["check_choice", "check_int", "check_number"]


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
