"""What of a prompt can be in the KV pool before its request comes: prefixes and contexts."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

from topas.policies.base import Id

__all__ = ["Context", "Place", "Prefix", "context_holder"]


class Place(Enum):
    """Where the KV of a prefix is, or is going."""

    ABSENT = "absent"
    INCOMING = "incoming"  # memory not yet taken, or being copied in
    RESIDENT = "resident"
    LEAVING = "leaving"  # memory held until its copy to the host is done


@dataclass(slots=True, eq=False)
class Prefix:
    """State of one prefix.

    ``computed`` tells whether the KV in the pool is there (a resident prefix that is not computed
    has its memory, and the next prefill of the agent computes it); ``known`` whether it was ever
    computed; ``copied`` whether the host has a copy (explicit residency only); ``users`` counts the
    admitted requests (LRU cache only); ``prefilled_tokens`` how much of it the request that is
    being prefilled has computed.
    """

    agent: str
    tokens: int
    place: Place = Place.ABSENT
    computed: bool = False
    known: bool = False
    copied: bool = False
    users: int = 0
    prefilled_tokens: int = 0

    @property
    def holder(self) -> Hashable:
        """Its name in the KV pool."""
        return self.agent


@dataclass(slots=True, eq=False)
class Context:
    """KV that the last request of a stage left in the pool, behind the agent's prefix.

    ``request`` is the one that left it, ``tokens`` the length: input and output of a request that
    ended, what was prefilled of one that was stopped.
    """

    task: Id
    stage_index: int
    stage: str
    agent: str
    request: int
    tokens: int

    @property
    def holder(self) -> Hashable:
        """Its name in the KV pool."""
        return context_holder(self.task, self.stage_index)


def context_holder(task: Id, stage_index: int) -> Hashable:
    """Name of a stage's context in the KV pool and on the host."""
    return ("context", task, stage_index)
