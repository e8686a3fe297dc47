"""A request on its way through the engine."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

from topas.policies.base import Id
from topas.sim.memory.prefix import context_holder

__all__ = ["Phase", "Request"]


class Phase(Enum):
    """Where a request is. Admitted means any phase but ``WAITING``."""

    WAITING = "waiting"
    PLACING = "placing"  # admitted, its prefix or its memory is still on the way
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"  # out of compute, its completion is handled at this boundary


@dataclass(slots=True, eq=False)
class Request:
    """One request; satisfies :class:`topas.policies.RequestView`.

    Lengths in tokens, times in seconds. ``prefill_tokens`` is what its next prefill has to compute
    apart from the prefix, ``prefilled_tokens`` what of that is done; ``attempt_s`` is when the
    engine began to work on the present attempt (its first chunk), ``service_s`` the service of
    earlier attempts whose work was kept, ``computed_prefix`` whether the present attempt's prefill
    computed the static prefix too.

    ``max_new_tokens`` is what is reserved for the generation (all that policies see),
    ``max_output_tokens`` the most that it may become. ``shared_tokens`` of the input repeat the
    stage's previous round; ``reused_tokens`` of the present attempt's prompt were in the pool and
    are not prefilled. ``repeated_tokens`` of the static prefix have still to be computed although
    another request computes it too.
    """

    id: int
    task: Id
    stage_index: int
    stage: str
    agent: str
    round: int
    depth: int
    ready_s: float
    task_arrival_s: float
    prefix_tokens: int
    input_tokens: int
    output_tokens: int
    max_new_tokens: int
    prefill_tokens: int = 0
    generated_tokens: int = 0
    phase: Phase = Phase.WAITING
    attempt_s: float | None = None
    service_s: float = 0.0
    computed_prefix: bool = False
    prefilled_tokens: int = 0
    max_output_tokens: int = 0
    shared_tokens: int = 0
    reused_tokens: int = 0
    repeated_tokens: int = 0

    def __post_init__(self) -> None:
        self.prefill_tokens = self.input_tokens
        self.max_output_tokens = self.max_output_tokens or self.max_new_tokens

    @property
    def reservation(self) -> int:
        """KV tokens reserved while admitted: dynamic input and max_new, without the prefix."""
        return self.input_tokens + self.max_new_tokens

    @property
    def context(self) -> int:
        """Tokens a decode step of this request attends to."""
        return self.prefix_tokens + self.input_tokens + self.generated_tokens

    @property
    def context_holder(self) -> Hashable:
        """Name of its stage's context in the pool and on the host."""
        return context_holder(self.task, self.stage_index)

    @property
    def own_tokens(self) -> int:
        """KV tokens behind the prefix once the prompt is prefilled, with what is generated."""
        return self.input_tokens + self.generated_tokens

    @property
    def remaining_tokens(self) -> int:
        """Tokens that it may still generate."""
        return self.max_output_tokens - self.generated_tokens

    def reuse(self, tokens: int) -> None:
        """So many tokens of the prompt are in the pool: they are not prefilled."""
        self.reused_tokens = tokens
        self.prefill_tokens -= tokens

    def forget_reuse(self) -> None:
        """What was to be reused is not there after all: all of the prompt is prefilled."""
        self.prefill_tokens += self.reused_tokens
        self.reused_tokens = 0

    def suspend(self, now: float, redo_model: str) -> None:
        """Go back to waiting after a preemption; what is lost depends on the redo model."""
        kept, decoding = redo_model == "kept", self.phase is Phase.DECODE
        if decoding and redo_model == "decode":
            self.generated_tokens = 0
        elif (decoding or kept) and self.attempt_s is not None:
            self.service_s += now - self.attempt_s
        if kept:
            self.prefill_tokens -= self.prefilled_tokens
        elif decoding:
            self.prefill_tokens = self.input_tokens + self.generated_tokens
        else:
            self.prefill_tokens += self.reused_tokens
        self.prefilled_tokens = self.reused_tokens = self.repeated_tokens = 0
        self.phase = Phase.WAITING
        self.attempt_s = None
        self.computed_prefix = False

    def finish(self, now: float) -> float:
        """LLM service at completion: compute of this attempt and of kept work, seconds."""
        started = now if self.attempt_s is None else self.attempt_s
        return self.service_s + now - started
