"""Scheduling policies with one interface: five baselines and topas."""

from topas.policies.base import Id, Plan, Policy, QueueView, RequestView, Setup, StageProfile
from topas.policies.fcfs import Fcfs
from topas.policies.las import AutellixLas
from topas.policies.lpm import Lpm
from topas.policies.parrot import ParrotFcfs
from topas.policies.registry import POLICY_NAMES, make_policy, parse_policies
from topas.policies.spf import Spf

__all__ = [
    "POLICY_NAMES",
    "AutellixLas",
    "Fcfs",
    "Id",
    "Lpm",
    "ParrotFcfs",
    "Plan",
    "Policy",
    "QueueView",
    "RequestView",
    "Setup",
    "Spf",
    "StageProfile",
    "make_policy",
    "parse_policies",
]
