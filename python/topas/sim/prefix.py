"""The static prefix of an agent, as the engine holds it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Place", "Prefix"]


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
    computed, so that a host copy can exist; ``users`` counts the admitted requests (LRU cache
    only); ``prefilled_tokens`` how much of it the request that is being prefilled has computed.
    """

    agent: str
    tokens: int
    place: Place = Place.ABSENT
    computed: bool = False
    known: bool = False
    users: int = 0
    prefilled_tokens: int = 0
