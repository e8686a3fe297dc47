"""What the engine counts while it runs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters"]


@dataclass
class Counters:
    """Counts of one run; tokens and requests.

    A hit is an admission that finds its prefix in the pool or on its way into it; a cold prefix is
    computed for the first time ever. Prefill tokens count each token computed by a prefill, also
    those that a preemption made worthless. ``loads`` counts prefixes that came from the host,
    whether for a request or ahead of one (``prefetches``, which are counted as they start).
    Retractions are requests that the engine stopped because decoding ran out of memory, no
    preemptions; ``retracted_tokens`` the generated tokens that are prefilled again for it. Reused
    tokens are those of a stage's own context that were still there; ``context_loads`` says how
    often they came from the host. ``repeated_prefix_tokens`` were prefilled although another
    request of the same batch computed them too.
    """

    prefill_tokens: int = 0
    decode_steps: int = 0
    decode_tokens: int = 0
    peak_batch: int = 0
    admissions: int = 0
    hits: int = 0
    prefix_tokens_hit: int = 0
    prefix_tokens_needed: int = 0
    loads: int = 0
    prefetches: int = 0
    load_tokens: int = 0
    offloads: int = 0
    cold_prefixes: int = 0
    recomputed_prefixes: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    redone_tokens: int = 0
    retractions: int = 0
    retracted_tokens: int = 0
    reused_tokens: int = 0
    context_loads: int = 0
    repeated_prefix_tokens: int = 0
    completed_requests: int = 0
    decisions: int = 0

    def admitted(self, prefix_tokens: int, *, hit: bool) -> None:
        """Count one admission."""
        self.admissions += 1
        self.prefix_tokens_needed += prefix_tokens
        if hit:
            self.hits += 1
            self.prefix_tokens_hit += prefix_tokens
