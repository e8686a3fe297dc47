"""What a prefilled and a decoded token cost on this engine, measured pass by pass."""

from __future__ import annotations

__all__ = ["CostMeter"]

_KEEP = 0.95  # of what is known, at every new measurement
_CHANGE = 1.2  # smaller changes are not worth telling
_LONGEST_PASS_S = 60.0  # anything longer was no pass


class CostMeter:
    """Exponentially weighted costs from the durations of passes.

    Loading a prefix is computing it: until prefixes are copied, moving one costs its prefill.
    """

    def __init__(self) -> None:
        self._prefill_s = 0.0
        self._prefill_tokens = 0.0
        self._decode_s: float | None = None
        self._told: dict[str, float] = {"prefill": 1e-4, "decode": 0.02}

    def passed(self, seconds: float, prefill_tokens: int) -> None:
        """A pass took so long and computed so many prompt tokens (0: one decode step)."""
        if not 0.0 < seconds < _LONGEST_PASS_S:
            return
        if prefill_tokens > 0:
            self._prefill_s = _KEEP * self._prefill_s + seconds
            self._prefill_tokens = _KEEP * self._prefill_tokens + prefill_tokens
        elif self._decode_s is None:
            self._decode_s = seconds
        else:
            self._decode_s = _KEEP * self._decode_s + (1.0 - _KEEP) * seconds

    @property
    def prefill_s_per_token(self) -> float:
        """Seconds for a token of a prompt."""
        if self._prefill_tokens == 0.0:
            return self._told["prefill"]
        return self._prefill_s / self._prefill_tokens

    @property
    def decode_s_per_token(self) -> float:
        """Seconds for a generated token of each running request."""
        return self._told["decode"] if self._decode_s is None else self._decode_s

    def request_s(self, input_tokens: int, output_tokens: int) -> float:
        """Expected service of a request, seconds."""
        return self.prefill_s_per_token * input_tokens + self.decode_s_per_token * min(
            output_tokens, 256
        )

    def config_fields(self) -> dict[str, float]:
        """The costs as fields of :class:`topas.Config`."""
        self._told = {"prefill": self.prefill_s_per_token, "decode": self.decode_s_per_token}
        return {
            "kv_bytes_per_token": 1.0,
            "swap_bytes_per_s": 1.0 / self._told["prefill"],
            "prefill_s_per_token": self._told["prefill"],
            "decode_s_per_token": self._told["decode"],
        }

    @property
    def has_changed(self) -> bool:
        """Whether a cost is well above or below what was last asked for."""
        now = {"prefill": self.prefill_s_per_token, "decode": self.decode_s_per_token}
        return any(
            not 1.0 / _CHANGE <= now[name] / told <= _CHANGE for name, told in self._told.items()
        )
