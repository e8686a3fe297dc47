"""What prefilled and decoded tokens cost on this engine, and how long tasks take: measured."""

from __future__ import annotations

from collections import deque

__all__ = ["CostMeter"]

_KEEP = 0.95  # of what is known, at every new measurement
_TASK_KEEP = 0.9  # the weight of the core's own estimate
_SHORTEST_TASK_S = 1e-3
_TYPICAL_OUTPUT = 256  # tokens; limits are often far above what is generated
_CHANGE = 1.2  # smaller changes are not worth telling
_LONGEST_PASS_S = 60.0  # anything longer was no pass


class CostMeter:
    """Exponentially weighted costs from the durations of passes.

    Until prefixes are copied, loading one is computing it, and nothing else goes on meanwhile.

    Parameters
    ----------
    delay : int
        How many passes a result is behind its launch: 0, or 1 with overlap scheduling.
    stalls : bool
        Whether the time that loading a prefix takes is weighted with the requests that it makes
        wait, of which there are as many as run on average.
    """

    def __init__(self, delay: int = 0, *, stalls: bool = True) -> None:
        self._stalls = stalls
        self._running: float | None = None
        self._prefill_s = 0.0
        self._prefill_tokens = 0.0
        self._decode_s: float | None = None
        self._task_s: float | None = None
        self._told: dict[str, float] = {"prefill": 1e-4, "decode": 0.02}
        self._batches: deque[int | None] = deque([None] * (delay + 1), maxlen=delay + 1)
        self._tick_s = 0.0

    def tick(self, now: float) -> None:
        """A pass begins: the time since the one before is that of a batch."""
        prompt_tokens = self._batches.popleft()
        self._batches.append(None)
        if prompt_tokens is not None:
            self.passed(now - self._tick_s, prompt_tokens)
        self._tick_s = now

    def launched(self, prompt_tokens: int, running: int) -> None:
        """The present pass launches a batch with so many prompt tokens (0: it decodes).

        ``running``: how many requests run, those of the batch included.
        """
        self._batches[-1] = prompt_tokens
        self.ran(running)

    def ran(self, requests: int) -> None:
        """So many requests run at the same time."""
        self._running = _blend(self._running, requests, _KEEP)

    def passed(self, seconds: float, prompt_tokens: int) -> None:
        """A batch took so long and computed so many prompt tokens (0: one decode step)."""
        if not 0.0 < seconds < _LONGEST_PASS_S:
            return
        if prompt_tokens > 0:
            self._prefill_s = _KEEP * self._prefill_s + seconds
            self._prefill_tokens = _KEEP * self._prefill_tokens + prompt_tokens
        else:
            self._decode_s = _blend(self._decode_s, seconds, _KEEP)

    def task_took(self, seconds: float) -> None:
        """A task has finished so long after its arrival, waiting included."""
        self._task_s = _blend(self._task_s, seconds, _TASK_KEEP)

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
        prefill_s = self.prefill_s_per_token * input_tokens
        return prefill_s + self.decode_s_per_token * min(output_tokens, _TYPICAL_OUTPUT)

    def config_fields(self) -> dict[str, float]:
        """What is measured, as fields of :class:`topas.Config`.

        Ageing is on the scale of completion times, not of service as the core by itself would take
        it: with a long queue every request is old against its service, and the order of arrival
        would outweigh all else.
        """
        self._told = self._known()
        fields = {
            "kv_bytes_per_token": 1.0,
            "swap_bytes_per_s": 1.0 / self._told["prefill"],
            "prefill_s_per_token": self._told["prefill"],
            "decode_s_per_token": self._told["decode"],
        }
        if "running" in self._told:
            fields["move_weight"] = self._told["running"]
        if "task" in self._told:
            fields["age_scale_s"] = self._told["task"]
        return fields

    def _known(self) -> dict[str, float]:
        known = {"prefill": self.prefill_s_per_token, "decode": self.decode_s_per_token}
        if self._stalls and self._running is not None:
            known["running"] = max(self._running, 1.0)
        if self._task_s is not None:
            known["task"] = max(self._task_s, _SHORTEST_TASK_S)
        return known

    @property
    def has_changed(self) -> bool:
        """Whether anything is new, or well above or below what was last asked for."""
        now = self._known()
        return len(now) > len(self._told) or any(
            not 1.0 / _CHANGE <= now[name] / told <= _CHANGE for name, told in self._told.items()
        )


def _blend(known: float | None, new: float, keep: float) -> float:
    """What is known, with a new value; ``keep`` is the weight of what is known."""
    return new if known is None else keep * known + (1.0 - keep) * new
