"""Scheduling policies with one interface: baselines and topas."""

from topas.policies.base import (
    Id,
    Plan,
    Policy,
    PrefixAdvice,
    QueueView,
    RequestView,
    Setup,
    StageProfile,
)
from topas.policies.continuum import Continuum
from topas.policies.fcfs import Fcfs
from topas.policies.kvflow import KvFlow
from topas.policies.las import AutellixLas
from topas.policies.lpm import Lpm
from topas.policies.parrot import ParrotFcfs
from topas.policies.registry import (
    BASELINE_NAMES,
    POLICY_NAMES,
    PRESET_POLICIES,
    PolicyName,
    both_ways,
    make_policy,
    parse_policies,
)
from topas.policies.spf import Spf
from topas.policies.srpt import Srpt

__all__ = [
    "BASELINE_NAMES",
    "POLICY_NAMES",
    "PRESET_POLICIES",
    "AutellixLas",
    "Continuum",
    "Fcfs",
    "Id",
    "KvFlow",
    "Lpm",
    "ParrotFcfs",
    "Plan",
    "Policy",
    "PolicyName",
    "PrefixAdvice",
    "QueueView",
    "RequestView",
    "Setup",
    "Spf",
    "Srpt",
    "StageProfile",
    "both_ways",
    "make_policy",
    "parse_policies",
]
