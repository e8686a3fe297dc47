"""What prefilled and decoded tokens cost on this engine, and how long tasks take: measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from topas.errors import ArgumentError
from topas.sglang.fitting import LineFit

__all__ = ["FIRST_GUESS_BYTES_PER_S", "CostMeter", "Profile"]

#: Bandwidth of loads until a copy is measured: of the 32 GB/s that PCIe 4.0 x16 has each way (half
#: the 64 GB/s in NVIDIA's A100 datasheet) what pinned copies reach with some room, and what
#: :class:`topas.sim.EngineCosts` has by default.
FIRST_GUESS_BYTES_PER_S = 20e9

_KEEP = 0.95  # of what is known, at every new measurement
_TASK_KEEP = 0.9  # the weight of the core's own estimate
_SHORTEST_TASK_S = 1e-3
_TYPICAL_OUTPUT = 256  # tokens; limits are often far above what is generated
_CHANGE = 1.2  # smaller changes are not worth telling
_LONGEST_PASS_S = 60.0  # anything longer was no pass
_GUESSED_PREFILL_S, _GUESSED_DECODE_S = 1e-4, 0.02
_LEAST_S = 1e-9  # a token: no engine is faster, and the core divides by it


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What the meter knows.

    Parameters
    ----------
    prefill_fixed_s, prefill_s_per_token : float
        A prefill pass: seconds that it takes in any case, and for each prompt token.
    decode_s_per_token : float
        A decode step with as many requests as run on average, seconds.
    swap_bytes_per_s : float or None
        Bandwidth of loads from host memory; the first guess until one is measured; ``None`` when
        prefixes are not copied but computed again.
    task_s : float or None
        Completion time of tasks, seconds; ``None`` before the first.
    is_full : bool
        Whether passes of both kinds have been measured.
    """

    prefill_fixed_s: float
    prefill_s_per_token: float
    decode_s_per_token: float
    swap_bytes_per_s: float | None
    task_s: float | None
    is_full: bool


class _Launch(NamedTuple):
    """A batch on its way: prompt tokens it computes, rows that decode, and how many run."""

    prompt_tokens: int
    decoding: int
    running: int


class CostMeter:
    """Costs from the durations of passes.

    A prefill pass is fitted as a fixed part and a part a token, a decode step as a fixed part and
    a part a running request (:class:`topas.sglang.fitting.LineFit`). Of a batch that does both,
    what it took beyond a decode step is its prefill.

    Until prefixes are copied (:meth:`copy_prefixes`), loading one is computing it, and nothing else
    goes on meanwhile.

    All that is taken in must be the same on every tensor-parallel rank: times of
    :class:`topas.sglang.clock.RankClock`, and the bandwidth that the first rank has measured.

    Parameters
    ----------
    delay : int
        How many passes a result is behind its launch: 0; or 1 with overlap scheduling on a device
        that computes while the scheduler goes on. On a CPU a launch returns with its results, so it
        is 0 there with overlap scheduling too.
    stalls : bool
        Whether the time that loading a prefix takes is weighted with the requests that it makes
        wait, of which there are as many as run on average. Copies make none wait.
    tell : callable or None
        Is given the profile whenever :meth:`config_fields` is asked for.
    """

    def __init__(
        self,
        delay: int = 0,
        *,
        stalls: bool = True,
        tell: Callable[[Profile], None] | None = None,
    ) -> None:
        self._stalls = stalls
        self._tell = tell
        self._kv_bytes: float | None = None
        self._bandwidth: Callable[[], float | None] = lambda: None
        self._running: float | None = None
        self._decoding: float | None = None
        self._prompt: float | None = None
        self._prefill = LineFit()
        self._decode = LineFit(flat=True)
        self._task_s: float | None = None
        self._told: dict[str, float] = {}
        self._batches: deque[_Launch | None] = deque([None] * (delay + 1), maxlen=delay + 1)
        self._tick_s = 0.0

    # -- what happens

    def copy_prefixes(
        self, kv_bytes_per_token: float, bandwidth: Callable[[], float | None]
    ) -> None:
        """From now on a prefix is loaded by a copy while other requests go on.

        Parameters
        ----------
        kv_bytes_per_token : float
            KV of a token on one rank, bytes.
        bandwidth : callable
            Returns the bandwidth of loads to one rank, bytes a second; ``None`` before the first.
            It is asked at decisions and must return the same on all ranks
            (:attr:`topas.sglang.flights.Flights.rate`).

        Raises
        ------
        ArgumentError
            ``kv_bytes_per_token`` is not above 0.
        """
        if not kv_bytes_per_token > 0.0:
            raise ArgumentError(f"kv_bytes_per_token: must be above 0, got {kv_bytes_per_token}")
        self._kv_bytes, self._bandwidth = float(kv_bytes_per_token), bandwidth

    def tick(self, now: float) -> None:
        """A pass begins: the time since the one before is that of a batch."""
        batch = self._batches.popleft()
        self._batches.append(None)
        if batch is not None:
            self.passed(now - self._tick_s, *batch)
        self._tick_s = now

    def launched(self, prompt_tokens: int, running: int, decoding: int = 0) -> None:
        """The present pass launches a batch.

        Parameters
        ----------
        prompt_tokens : int
            Prompt tokens that it computes; 0 when it only decodes.
        running : int
            Requests that run, those of the batch included.
        decoding : int
            Of a batch with prompt tokens, how many requests get their next token in it.
        """
        self._batches[-1] = _Launch(prompt_tokens, decoding, running)
        self.ran(running)

    def ran(self, requests: int) -> None:
        """So many requests run at the same time."""
        self._running = _blend(self._running, requests, _KEEP)

    def passed(
        self, seconds: float, prompt_tokens: int, decoding: int = 0, running: int = 1
    ) -> None:
        """A batch took so long; for the other arguments see :meth:`launched`."""
        if not 0.0 < seconds < _LONGEST_PASS_S:
            return
        if prompt_tokens == 0:
            self._decode.add(max(running, 1), seconds)
            self._decoding = _blend(self._decoding, max(running, 1), _KEEP)
            return
        if decoding and not self._decode.is_known:
            return
        added_s = seconds - (self._decode.at(decoding) if decoding else 0.0)
        if added_s > 0.0:
            self._prefill.add(prompt_tokens, added_s)
            self._prompt = _blend(self._prompt, prompt_tokens, _KEEP)

    def task_took(self, seconds: float) -> None:
        """A task has finished so long after its arrival, waiting included."""
        self._task_s = _blend(self._task_s, seconds, _TASK_KEEP)

    # -- what is known

    @property
    def prefill_fixed_s(self) -> float:
        """Seconds that a prefill pass takes however few tokens it computes."""
        return self._prefill.fixed_s

    @property
    def prefill_s_per_token(self) -> float:
        """Seconds that each token of a prompt adds."""
        if self._prefill.count == 0:
            return _GUESSED_PREFILL_S
        return max(self._prefill.slope_s, _LEAST_S)

    @property
    def decode_s_per_token(self) -> float:
        """Seconds for a generated token of each running request, at their usual number."""
        if self._decoding is None:
            return _GUESSED_DECODE_S
        return max(self._decode.at(self._decoding), _LEAST_S)

    @property
    def _load_s_per_token(self) -> float:
        """Seconds a token to load a prefix by computing it.

        The first request of an agent computes it in a pass before the others, so the fixed part is
        in it, spread over the tokens of the usual pass.
        """
        if self._prompt is None:
            return _GUESSED_PREFILL_S
        return max(self._prefill.at(self._prompt) / self._prompt, _LEAST_S)

    @property
    def profile(self) -> Profile:
        """All of it."""
        swap = None if self._kv_bytes is None else self._bandwidth() or FIRST_GUESS_BYTES_PER_S
        return Profile(
            prefill_fixed_s=self.prefill_fixed_s,
            prefill_s_per_token=self.prefill_s_per_token,
            decode_s_per_token=self.decode_s_per_token,
            swap_bytes_per_s=swap,
            task_s=None if self._task_s is None else max(self._task_s, _SHORTEST_TASK_S),
            is_full=self._prefill.is_known and self._decode.is_known,
        )

    def request_s(self, input_tokens: int, output_tokens: int) -> float:
        """Expected service of a request, seconds."""
        prefill_s = self.prefill_fixed_s + self.prefill_s_per_token * input_tokens
        return prefill_s + self.decode_s_per_token * min(output_tokens, _TYPICAL_OUTPUT)

    def config_fields(self) -> dict[str, float]:
        """What is measured, as fields of :class:`topas.Config`.

        Ageing is on the scale of completion times, not of service as the core by itself would take
        it: with a long queue every request is old against its service, and the order of arrival
        would outweigh all else.
        """
        profile = self.profile
        self._told = self._compared(profile)
        fields = {
            "prefill_fixed_s": profile.prefill_fixed_s,
            "prefill_s_per_token": profile.prefill_s_per_token,
            "decode_s_per_token": profile.decode_s_per_token,
        }
        if self._kv_bytes is not None and profile.swap_bytes_per_s is not None:
            fields["kv_bytes_per_token"] = self._kv_bytes
            fields["swap_bytes_per_s"] = profile.swap_bytes_per_s
        else:
            fields["kv_bytes_per_token"] = 1.0
            fields["swap_bytes_per_s"] = 1.0 / self._told["load"]
        if "running" in self._told:
            fields["move_weight"] = self._told["running"]
        if profile.task_s is not None:
            fields["age_scale_s"] = profile.task_s
        if self._tell is not None:
            self._tell(profile)
        return fields

    def _compared(self, profile: Profile) -> dict[str, float]:
        """What a change shows by; each above 0. New entries are a change, too."""
        known = {
            "prefill": profile.prefill_s_per_token,
            "load": self._load_s_per_token,
            "decode": profile.decode_s_per_token,
        }
        if profile.swap_bytes_per_s is not None:
            known["swap"] = profile.swap_bytes_per_s
        elif self._stalls and self._running is not None:
            known["running"] = max(self._running, 1.0)
        if profile.task_s is not None:
            known["task"] = profile.task_s
        if profile.is_full:
            known["full"] = 1.0
        return known

    @property
    def has_changed(self) -> bool:
        """Whether anything is new, or well above or below what was last asked for."""
        now = self._compared(self.profile)
        return now.keys() != self._told.keys() or any(
            not 1.0 / _CHANGE <= now[name] / told <= _CHANGE for name, told in self._told.items()
        )


def _blend(known: float | None, new: float, keep: float) -> float:
    """What is known, with a new value; ``keep`` is the weight of what is known."""
    return new if known is None else keep * known + (1.0 - keep) * new
