"""How the modelled engine behaves, apart from what things cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from topas.errors import ConfigError
from topas.sim.checks import check_choice, check_int, check_number

__all__ = [
    "BATCHINGS",
    "IN_BATCH_PREFIXES",
    "RESERVATIONS",
    "Batching",
    "EngineOptions",
    "InBatchPrefixes",
    "Reservation",
]

RedoModel = Literal["decode", "prefill", "kept"]
Batching = Literal["prefill-first", "chunked", "mixed"]
Reservation = Literal["full", "estimated"]
InBatchPrefixes = Literal["shared", "deferred", "repeated"]

#: What may share a batch of the engine; see :class:`EngineOptions`.
BATCHINGS: tuple[Batching, ...] = ("prefill-first", "chunked", "mixed")

#: What an admitted request reserves; see :class:`EngineOptions`.
RESERVATIONS: tuple[Reservation, ...] = ("full", "estimated")

#: Who computes a missing prefix in a batch; see :class:`EngineOptions`.
IN_BATCH_PREFIXES: tuple[InBatchPrefixes, ...] = ("shared", "deferred", "repeated")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Behaviour of one engine.

    Parameters
    ----------
    over_reserve : float
        ``max_new`` of a request is its true output times this factor, rounded up; at least 1.
    redo_model : {"decode", "prefill", "kept"}
        What a preempted request does again when it is admitted (SPEC section 3). ``decode``: its
        input is prefilled and all its tokens are decoded again (SGLang 0.5.3). ``prefill``: input
        and generated tokens are prefilled in one go. ``kept``: its KV survives outside the pool,
        nothing is redone.
    max_running : int
        Limit on the requests admitted at a time; 0 means none.
    offload_copies : bool
        A prefix that leaves under explicit residency is copied to the host (and holds its memory
        until that is done), as the movement charge of the paper has it. Off: the host copy is kept
        from the first time, so leaving is free.
    host_cache_tokens : int or None
        Host memory for copies of the prefixes that the engine's own cache evicts, tokens; 0: none,
        an evicted prefix is computed again; ``None``: unlimited. Explicit residency always has host
        copies of its prefixes; here it is the room for those of contexts.
    batching : {"prefill-first", "chunked", "mixed"}
        What an engine's batch is made of. ``prefill-first``: one whole prefill at a time, decode
        steps when no prefill waits. ``chunked``: a prefill batch takes up to
        ``chunked_prefill_tokens`` tokens of the admitted requests in their order, and cuts the last
        one; decode steps wait meanwhile (SGLang's default). ``mixed``: such a chunk and a decode
        step go together, and the decoded tokens count into the chunk (SGLang's
        ``--enable-mixed-chunk``); the step takes a decode step and the chunk's cost per token.
    chunked_prefill_tokens : int
        Tokens of a chunk; the default is SGLang's for GPUs of 80 GB.
    in_batch_prefixes : {"shared", "deferred", "repeated"}
        What happens to a request whose missing prefix is being computed by an earlier request of
        the same batch (``prefill-first`` batches have one request, so there is none). ``shared``:
        it uses it. ``deferred``: it waits for the next batch, others go before it (SGLang's
        in-batch prefix caching, which lpm has). ``repeated``: it computes the prefix too, which
        costs time, and one copy stays (SGLang's fcfs).
    reservation : {"full", "estimated"}
        What a request needs to be admitted, apart from its prefix. ``full``: input and ``max_new``,
        which it holds to its end, so that memory never runs out. ``estimated``, as SGLang: a
        request holds the tokens it has; a new one fits if its prompt and ``max_new`` (up to
        ``clip_max_new_tokens``) fit beside what the running ones are expected to generate yet,
        their remaining ``max_new`` times the new-token ratio. When a decode step has no memory,
        requests are retracted: those with the fewest generated tokens, longest prompt first, until
        the others have room for ``retract_decode_steps`` steps. They wait again and prefill input
        and generated tokens.
    new_token_ratio : float
        The ratio of an engine that has been idle, at most 1 (SGLang: 0.7 times the schedule
        conservativeness). After a retraction it is what the running requests have generated, and
        ``retract_decode_steps`` each, over their ``max_new``.
    min_new_token_ratio_factor : float
        It falls to ``new_token_ratio`` times this, at most 1 ...
    new_token_ratio_decay_steps : int
        ... in so many decode steps.
    retract_decode_steps, clip_max_new_tokens : int
        See above.
    page_size : int
        Tokens of a page of the pool; each request and each prefix has whole pages.
    reuse_context : bool
        Keep what a request leaves in the pool (its input and output) while nothing else needs the
        room. The next round of the stage does not prefill the part that it repeats; a request that
        was preempted or retracted does not prefill again what is still there of its prompt. The
        LRU cache evicts such contexts with the prefixes, least recently used first, a prefix after
        the contexts behind it; with a host cache they have copies there too. Explicit residency
        gives them up as soon as a plan needs the room, all of an agent's when its prefix leaves.
    charge_decisions_s : float
        Seconds that each decision takes on the simulated clock, while the engine stands still. A
        given number, not the measured time, so that results do not depend on the machine.
    coalesce : bool
        Advance many decode steps at once (exact); off: one at a time, for tests.
    max_time_s : float or None
        Stop the clock here; what has arrived and not ended is reported as unfinished.
    stall_limit : int
        Stop after so many decisions in a row without an arrival or a finished request, and say so:
        the policy preempts in circles (SPEC section 6, paper preset).

    Raises
    ------
    ConfigError
        A field is of the wrong type or out of range; the message names it.
    """

    over_reserve: float = 1.0
    redo_model: RedoModel = "decode"
    max_running: int = 0
    offload_copies: bool = True
    host_cache_tokens: int | None = 0
    batching: Batching = "prefill-first"
    chunked_prefill_tokens: int = 8192
    in_batch_prefixes: InBatchPrefixes = "shared"
    reservation: Reservation = "full"
    new_token_ratio: float = 0.7
    min_new_token_ratio_factor: float = 0.14
    new_token_ratio_decay_steps: int = 600
    retract_decode_steps: int = 20
    clip_max_new_tokens: int = 4096
    page_size: int = 1
    reuse_context: bool = False
    charge_decisions_s: float = 0.0
    coalesce: bool = True
    max_time_s: float | None = None
    stall_limit: int = 10_000

    def __post_init__(self) -> None:
        check_number("over_reserve", self.over_reserve, minimum=1.0)
        check_choice("redo_model", self.redo_model, ("decode", "prefill", "kept"))
        check_int("max_running", self.max_running, minimum=0)
        if self.host_cache_tokens is not None:
            check_int("host_cache_tokens", self.host_cache_tokens, minimum=0)
        check_choice("batching", self.batching, BATCHINGS)
        check_int("chunked_prefill_tokens", self.chunked_prefill_tokens, minimum=1)
        check_choice("in_batch_prefixes", self.in_batch_prefixes, IN_BATCH_PREFIXES)
        check_choice("reservation", self.reservation, RESERVATIONS)
        for name in ("new_token_ratio", "min_new_token_ratio_factor"):
            check_number(name, getattr(self, name), above=True)
            if getattr(self, name) > 1.0:
                raise ConfigError(f"{name}: must be at most 1, got {getattr(self, name)!r}")
        for name in (
            "new_token_ratio_decay_steps",
            "retract_decode_steps",
            "clip_max_new_tokens",
            "page_size",
        ):
            check_int(name, getattr(self, name), minimum=1)
        check_number("charge_decisions_s", self.charge_decisions_s)
        check_int("stall_limit", self.stall_limit, minimum=1)
        if self.max_time_s is not None:
            check_number("max_time_s", self.max_time_s, above=True)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, ready for JSON."""
        return asdict(self)
