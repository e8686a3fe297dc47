"""Policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from topas.errors import ConfigError
from topas.policies.base import Policy
from topas.policies.fcfs import Fcfs
from topas.policies.las import AutellixLas
from topas.policies.lpm import Lpm
from topas.policies.parrot import ParrotFcfs
from topas.policies.spf import Spf

__all__ = ["POLICY_NAMES", "make_policy", "parse_policies"]

_BASELINES: Mapping[str, Callable[[], Policy]] = {
    policy.name: policy for policy in (Fcfs, Lpm, ParrotFcfs, AutellixLas, Spf)
}
_PRESETS: Mapping[str, str] = {"topas-paper": "paper", "topas": "default"}

#: All known policies, in the order of reports.
POLICY_NAMES: tuple[str, ...] = (*_BASELINES, *_PRESETS)


def make_policy(name: str, config_fields: Mapping[str, Any]) -> Policy:
    """A fresh policy.

    Parameters
    ----------
    name : str
        One of :data:`POLICY_NAMES`.
    config_fields : mapping
        Fields of :class:`topas.Config` for the topas policies (on top of their preset); the
        baselines have no settings.

    Raises
    ------
    ConfigError
        The name or a field is unknown, or a value is not legal.
    """
    if name in _BASELINES:
        return _BASELINES[name]()
    if name not in _PRESETS:
        raise ConfigError(f"policy: unknown {name!r}, known are {', '.join(POLICY_NAMES)}")
    from topas.config import Config
    from topas.policies.topas import TopasPolicy

    return TopasPolicy(Config.preset(_PRESETS[name], **config_fields), name)


def parse_policies(text: str) -> list[str]:
    """Names from a list with commas; ``all`` stands for every known policy.

    Raises
    ------
    ConfigError
        A name is unknown or given twice, or there is none.
    """
    names: list[str] = []
    for item in (part.strip() for part in text.split(",")):
        names.extend(POLICY_NAMES if item == "all" else [item])
    for name in names:
        if name not in POLICY_NAMES:
            known = ", ".join((*POLICY_NAMES, "all"))
            raise ConfigError(f"policies: unknown {name!r}, known are {known}")
        if names.count(name) > 1:
            raise ConfigError(f"policies: {name!r} is given twice")
    return names
