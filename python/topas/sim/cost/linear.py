"""What things cost on the modelled engine: prefill, decode steps and prefix transfers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from topas.sim.checks import check_int, check_number

__all__ = ["TIME_EPSILON_S", "TYPICAL_BATCH", "EngineCosts"]

#: Two simulated instants closer than this are the same instant (seconds).
TIME_EPSILON_S = 1e-9

#: Requests decoding together when a *profiled* service is computed (see
#: :meth:`EngineCosts.request_s`).
TYPICAL_BATCH = 8


@dataclass(frozen=True, kw_only=True)
class EngineCosts:
    """Costs of one engine; the defaults are those of Qwen2.5-32B on an A100 80 GB.

    Parameters
    ----------
    kv_capacity : int
        KV pool, tokens.
    kv_bytes_per_token : float
        Bytes of KV per token (0: moving prefixes is free).
    swap_bytes_per_s : float
        Bandwidth between GPU and host memory, bytes per second.
    decode_fixed_s : float
        Time of one decode step that does not depend on the batch, seconds.
    decode_s_per_context_token : float
        Extra time of a decode step per token of context summed over the batch, seconds.
    prefill_fixed_s, prefill_s_per_token : float
        Prefill of n tokens takes ``fixed + per_token * n`` seconds.

    Raises
    ------
    ConfigError
        A field is of the wrong type or out of range; the message names it.
    """

    kv_capacity: int = 40_000
    kv_bytes_per_token: float = 262_144.0
    swap_bytes_per_s: float = 20e9
    decode_fixed_s: float = 0.036
    decode_s_per_context_token: float = 0.16e-6
    prefill_fixed_s: float = 0.0
    prefill_s_per_token: float = 0.35e-3

    def __post_init__(self) -> None:
        check_int("kv_capacity", self.kv_capacity, minimum=1)
        check_number("swap_bytes_per_s", self.swap_bytes_per_s, above=True)
        for name in (
            "kv_bytes_per_token",
            "decode_fixed_s",
            "decode_s_per_context_token",
            "prefill_fixed_s",
            "prefill_s_per_token",
        ):
            check_number(name, getattr(self, name))

    def prefill_s(self, tokens: int) -> float:
        """Seconds to prefill ``tokens`` tokens; nothing to prefill takes no time."""
        return self.prefill_fixed_s + self.prefill_s_per_token * tokens if tokens > 0 else 0.0

    def swap_s(self, tokens: int) -> float:
        """Seconds to copy the KV of ``tokens`` tokens between GPU and host."""
        return self.kv_bytes_per_token * tokens / self.swap_bytes_per_s

    def decode_s(self, steps: int, batch: int, context: int) -> float:
        """Seconds of ``steps`` decode steps of one unchanged batch.

        Parameters
        ----------
        steps : int
            Steps; each adds one token to every request.
        batch : int
            Requests in the batch.
        context : int
            Context summed over the batch before the first step, tokens. A static prefix counts once
            for each request that attends to it.
        """
        grown = steps * context + batch * (steps * (steps - 1) // 2)
        return steps * self.decode_fixed_s + self.decode_s_per_context_token * grown

    def steps_to_reach(self, delay_s: float, batch: int, context: int, limit: int) -> int:
        """Fewest decode steps that take at least ``delay_s``, between 1 and ``limit``.

        The step times are an arithmetic series, so this is the root of a quadratic; the root is
        then corrected by the exact sum, so that rounding never moves a boundary.
        """
        enough = delay_s - TIME_EPSILON_S
        if self.decode_s(limit, batch, context) < enough:
            return limit
        half = 0.5 * self.decode_s_per_context_token * batch
        first = self.decode_fixed_s + self.decode_s_per_context_token * context - half
        root = math.sqrt(first * first + 4.0 * half * max(delay_s, 0.0))
        guess = 2.0 * max(delay_s, 0.0) / (first + root) if first + root > 0.0 else 1.0
        steps = min(max(math.ceil(guess), 1), limit)
        while steps > 1 and self.decode_s(steps - 1, batch, context) >= enough:
            steps -= 1
        while steps < limit and self.decode_s(steps, batch, context) < enough:
            steps += 1
        return steps

    def typical_step_s(self, context_tokens: float) -> float:
        """Seconds of a decode step when :data:`TYPICAL_BATCH` requests have that context each."""
        return (
            self.decode_fixed_s + self.decode_s_per_context_token * TYPICAL_BATCH * context_tokens
        )

    def request_s(self, prefix_tokens: float, input_tokens: float, output_tokens: float) -> float:
        """Profiled service of one request: its prefill and its steps in a typical batch, seconds.

        The prefix is taken to be resident; queueing and transfers are no service.
        """
        context = prefix_tokens + input_tokens + 0.5 * output_tokens
        prefill = self.prefill_fixed_s + self.prefill_s_per_token * input_tokens
        return prefill + output_tokens * self.typical_step_s(context)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, ready for JSON."""
        return asdict(self)
