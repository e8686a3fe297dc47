"""Continuum: a time to live for the cache over tool waits (arXiv 2511.02230)."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from topas.policies.base import Id, Plan, Policy, PrefixAdvice, QueueView, RequestView, Setup

__all__ = ["Continuum", "time_to_live"]

_COLD_START_S = 2.0  # time to live before there are enough waits, that of the public code
_ENOUGH = 10  # waits of one agent (of all agents) that make a distribution
_WINDOW = 256  # latest waits, and queueing delays, that count


def time_to_live(waits_s: Iterable[float], benefit_s: float) -> float:
    """The time t, in seconds, of the greatest P(wait <= t) * benefit - t.

    P is the empirical distribution of the waits; the shortest of equally good times is taken.

    Parameters
    ----------
    waits_s : iterable of float
        Observed tool waits, seconds.
    benefit_s : float
        Seconds saved when the request comes back in time.
    """
    ordered = sorted(waits_s)
    best, most = 0.0, bisect_right(ordered, 0.0) * benefit_s / len(ordered) if ordered else 0.0
    for wait in ordered:
        worth = bisect_right(ordered, wait) * benefit_s / len(ordered) - wait
        if worth > most:
            best, most = wait, worth
    return best


@dataclass(frozen=True)
class _Pause:
    """A tool wait: since when, and until when context and prefix are pinned, seconds."""

    agent: str
    since_s: float
    until_s: float


class Continuum(Policy):
    """Task arrival first, and tasks that return from a tool wait in time before all others.

    When a round ends and its stage goes on, its context is pinned, where the engine keeps contexts
    (:attr:`topas.sim.EngineOptions.reuse_context`), with the agent's prefix, for a time to live
    (:func:`time_to_live`): over the agent's observed tool waits, the benefit being the mean
    queueing delay plus what the prefix costs to bring back. A request that returns before it runs
    out goes first, and the pin holds until it is admitted.
    """

    name = "continuum"
    gives_advice = True

    def __init__(self) -> None:
        self._reload_s: Mapping[str, float] = {}
        self._waits_s: dict[str, deque[float]] = {}
        self._all_waits_s: deque[float] = deque(maxlen=_WINDOW)
        self._delays_s: deque[float] = deque(maxlen=_WINDOW)
        self._paused: dict[tuple[Id, str], _Pause] = {}
        self._returned: dict[int, RequestView] = {}

    def begin(self, setup: Setup) -> None:
        """Take the costs of prefixes and forget an earlier run."""
        self._reload_s = setup.reload_s
        self._waits_s.clear()
        self._all_waits_s.clear()
        self._delays_s.clear()
        self._paused.clear()
        self._returned.clear()

    def request_completed(self, now: float, request: RequestView, service_s: float) -> None:
        """Note the queueing delay, and pin context and prefix in case the stage goes on."""
        self._returned.pop(request.id, None)
        self._delays_s.append(max(now - request.ready_s - service_s, 0.0))
        until = now + self._ttl_s(request.agent)
        self._paused[request.task, request.stage] = _Pause(request.agent, now, until)

    def _ttl_s(self, agent: str) -> float:
        waits = self._waits_s.get(agent, ())
        if len(waits) < _ENOUGH:
            waits = self._all_waits_s
        if len(waits) < _ENOUGH:
            return _COLD_START_S
        delay_s = sum(self._delays_s) / len(self._delays_s)
        return time_to_live(waits, delay_s + self._reload_s.get(agent, 0.0))

    def stage_completed(self, now: float, task: Id, stage: str) -> None:
        """That was the stage's last round: there is nothing to wait for."""
        self._paused.pop((task, stage), None)

    def request_ready(self, now: float, request: RequestView) -> None:
        """Learn the tool wait of a later round, and whether the time to live held."""
        pause = self._paused.pop((request.task, request.stage), None)
        if pause is None:
            return
        wait = now - pause.since_s
        self._waits_s.setdefault(pause.agent, deque(maxlen=_WINDOW)).append(wait)
        self._all_waits_s.append(wait)
        if now <= pause.until_s:
            self._returned[request.id] = request

    def task_cancelled(self, now: float, task: Id) -> None:
        """Forget the task."""
        for key in [key for key in self._paused if key[0] == task]:
            del self._paused[key]
        for id_ in [id_ for id_, request in self._returned.items() if request.task == task]:
            del self._returned[id_]

    def plan(self, now: float, view: QueueView) -> Plan:
        """The waiting requests by task arrival, returned ones first, and what is pinned."""
        order = sorted(
            view.waiting,
            key=lambda r: (r.id not in self._returned, r.task_arrival_s, r.ready_s, r.id),
        )
        pins: dict[str, float] = {}
        contexts: dict[tuple[Id, str], float] = {}
        for stage, pause in self._paused.items():
            if pause.until_s > now:
                pins[pause.agent] = max(pause.until_s, pins.get(pause.agent, now))
                contexts[stage] = pause.until_s
        for request in order:
            if request.id in self._returned:
                pins[request.agent] = contexts[request.task, request.stage] = float("inf")
        advice = PrefixAdvice(pinned_until_s=pins, contexts_pinned_until_s=contexts)
        return Plan([r.id for r in order], advice=advice)
