"""Policies by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topas.errors import ConfigError
from topas.policies.base import Policy
from topas.policies.continuum import Continuum
from topas.policies.fcfs import Fcfs
from topas.policies.kvflow import KvFlow
from topas.policies.las import AutellixLas
from topas.policies.lpm import Lpm
from topas.policies.parrot import ParrotFcfs
from topas.policies.spf import Spf
from topas.policies.srpt import Srpt

__all__ = [
    "BASELINE_NAMES",
    "POLICY_NAMES",
    "PRESET_POLICIES",
    "PolicyName",
    "both_ways",
    "make_policy",
    "parse_policies",
]

_KINDS: tuple[type[Policy], ...] = (
    Fcfs,
    Lpm,
    ParrotFcfs,
    AutellixLas,
    Spf,
    Srpt,
    KvFlow,
    Continuum,
)
_BASELINES: Mapping[str, type[Policy]] = {kind.name: kind for kind in _KINDS}
_PRESETS: Mapping[str, str] = {
    "topas-paper": "paper",
    "topas-guarded": "guarded",
    "topas": "default",
    "topas-rollout": "rollout",
}

#: The policy of each preset of :class:`topas.Config`.
PRESET_POLICIES: Mapping[str, str] = {preset: name for name, preset in _PRESETS.items()}

#: The baselines: all policies but those of topas.
BASELINE_NAMES: tuple[str, ...] = tuple(_BASELINES)

#: All known policies, in the order of reports, without suffixes.
POLICY_NAMES: tuple[str, ...] = (*_BASELINES, *_PRESETS)

_HOST = "+host"
_BOTH = "all+host"


@dataclass(frozen=True)
class PolicyName:
    """A policy and the host cache of its engine, as one name: ``lpm``, ``lpm+host``.

    The suffix ``+host`` asks for an engine with an unlimited host cache, ``+host:TOKENS`` for one
    of that size; without it the engine is as its options say. ``kvflow`` has the suffix in itself;
    the topas policies take none, since their prefixes always have host copies.

    Parameters
    ----------
    base : str
        One of :data:`POLICY_NAMES`.
    host_cache_tokens : int or None
        What the suffix asks for: tokens, or ``None`` for an unlimited one; 0: there is no suffix.
    """

    base: str
    host_cache_tokens: int | None = 0

    @property
    def is_baseline(self) -> bool:
        """Whether it is none of topas's."""
        return self.base in _BASELINES

    @property
    def has_host_cache(self) -> bool:
        """Whether the name alone tells that its engine's cache has host copies."""
        needs = self.is_baseline and _BASELINES[self.base].needs_host_cache
        return needs or self.host_cache_tokens != 0

    @classmethod
    def parse(cls, name: str) -> PolicyName:
        """Take a name apart.

        Raises
        ------
        ConfigError
            The policy is unknown, takes no suffix, or the suffix is none; the message names it.
        """
        base, plus, suffix = name.partition("+")
        if base not in POLICY_NAMES:
            raise ConfigError(f"policy: unknown {name!r}, known are {', '.join(POLICY_NAMES)}")
        if not plus:
            return cls(base)
        word, colon, size = suffix.partition(":")
        if word != "host" or (colon and not size.isdecimal()) or (colon and int(size) == 0):
            raise ConfigError(f"policy: {name!r}: the suffix must be +host or +host:TOKENS")
        if not cls(base).is_baseline:
            raise ConfigError(f"policy: {name!r}: prefixes of {base} always have host copies")
        if not colon and cls(base).has_host_cache:
            raise ConfigError(f"policy: {name!r}: {base} always has a host cache")
        return cls(base, int(size) if colon else None)


def make_policy(name: str, config_fields: Mapping[str, Any]) -> Policy:
    """A fresh policy; its ``name`` is the one given, with its suffix.

    Parameters
    ----------
    name : str
        One of :data:`POLICY_NAMES`, with or without a suffix (:class:`PolicyName`); the suffix
        concerns the engine, which has to be given it apart (:func:`topas.sim.run_policy` does).
    config_fields : mapping
        Fields of :class:`topas.Config` for the topas policies (on top of their preset); the
        baselines have no settings.

    Raises
    ------
    ConfigError
        The name or a field is unknown, or a value is not legal.
    """
    base = PolicyName.parse(name).base
    if base in _BASELINES:
        policy = _BASELINES[base]()
        policy.name = name
        return policy
    from topas.config import Config
    from topas.policies.topas import TopasPolicy

    return TopasPolicy(Config.preset(_PRESETS[base], **config_fields), name)


def both_ways(names: Sequence[str] = BASELINE_NAMES) -> tuple[str, ...]:
    """Baselines without and with a host cache, as policy names.

    Parameters
    ----------
    names : sequence of str
        Of :data:`BASELINE_NAMES`, without suffixes.

    Raises
    ------
    ConfigError
        A name is none of these.
    """
    found: list[str] = []
    for name in names:
        if name not in BASELINE_NAMES:
            raise ConfigError(f"baselines: {name!r} is none of {', '.join(BASELINE_NAMES)}")
        found.append(name)
        if not PolicyName(name).has_host_cache:
            found.append(name + _HOST)
    return tuple(found)


def parse_policies(text: str) -> list[str]:
    """Names from a list with commas; ``all`` stands for every policy.

    ``all+host`` stands for every policy, each baseline without and with a host cache.

    Raises
    ------
    ConfigError
        A name is unknown or given twice, or there is none.
    """
    groups = {"all": list(POLICY_NAMES), _BOTH: [*both_ways(), *_PRESETS]}
    names: list[str] = []
    for item in (part.strip() for part in text.split(",")):
        names.extend(groups.get(item, [item]))
    for name in names:
        if name.partition("+")[0] not in POLICY_NAMES:
            known = ", ".join((*POLICY_NAMES, *groups))
            raise ConfigError(f"policies: unknown {name!r}, known are {known}")
        PolicyName.parse(name)
        if names.count(name) > 1:
            raise ConfigError(f"policies: {name!r} is given twice")
    return names
