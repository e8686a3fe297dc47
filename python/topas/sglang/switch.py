"""The switch: ``TOPAS_ENABLE``, else whether ``TOPAS_CONFIG`` names a file. Cheap to import."""

from __future__ import annotations

from collections.abc import Mapping

from topas.errors import ConfigError

__all__ = ["is_enabled"]

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off", "")


def is_enabled(environment: Mapping[str, str]) -> bool:
    """Whether the plugin is switched on: by ``TOPAS_ENABLE``, else by ``TOPAS_CONFIG``.

    Raises
    ------
    ConfigError
        ``TOPAS_ENABLE`` is neither yes nor no.
    """
    switch = environment.get("TOPAS_ENABLE")
    if switch is None:
        return bool(environment.get("TOPAS_CONFIG"))
    if switch.strip().lower() in _ON:
        return True
    if switch.strip().lower() in _OFF:
        return False
    raise ConfigError(f"TOPAS_ENABLE: must be one of {', '.join(_ON + _OFF[:-1])}, got {switch!r}")
