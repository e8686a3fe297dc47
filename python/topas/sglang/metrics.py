"""What happened: plain counts, and the same through SGLang's own Prometheus endpoint."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from topas.sglang.copy_counts import CopyCounts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from topas.sglang.costs import Profile

__all__ = ["Copies", "Counts", "Prometheus"]

logger = logging.getLogger(__name__)

_MOST_WORKFLOWS = 100  # that have a label of their own
_OTHERS = "(other)"
_ALONE = "(none)"  # requests without a workflow

_DECISION_S = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 1e-1)
_TASK_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500)

_LOGGED_CHANGE = 1.5  # smaller changes of the profile are not worth a line
_LOGGED_EVERY_S = 60.0

#: Gauges of the profile: the name in Prometheus, and the field.
_PROFILE = {
    "prefill_fixed_seconds": "prefill_fixed_s",
    "prefill_token_seconds": "prefill_s_per_token",
    "decode_token_seconds": "decode_s_per_token",
    "swap_bytes_per_second": "swap_bytes_per_s",
    "task_scale_seconds": "task_s",
}


@dataclass(kw_only=True)
class Copies(CopyCounts):
    """Copies of prefixes so far, and how things stand with them.

    The totals of the store go in as they are: ``Copies(**vars(store.counts()), ...)``.

    Parameters
    ----------
    pins_dropped : int
        Pins of prefixes that gave way because SGLang needed the room.
    pinned_prefixes, pinned_tokens, loads_in_flight : int
        Now: prefixes that stay on the device by a pin, their tokens, loads under way.
    """

    pins_dropped: int = 0
    pinned_prefixes: int = 0
    pinned_tokens: int = 0
    loads_in_flight: int = 0


#: Counters of copies: the name in Prometheus and its direction, if it has one.
_COPY_COUNTERS = {
    "saves": ("copies", "save"),
    "loads": ("copies", "load"),
    "save_bytes": ("copy_bytes", "save"),
    "load_bytes": ("copy_bytes", "load"),
    "save_s": ("copy_seconds", "save"),
    "load_s": ("copy_seconds", "load"),
    "failures": ("copy_failures", None),
    "cancellations": ("copy_cancellations", None),
    "host_evictions": ("host_evictions", None),
    "pins_dropped": ("pins_dropped", None),
}


@dataclass
class Counts:
    """Counts since the scheduler started.

    Attributes
    ----------
    passes, decisions, admissions, preemptions, tasks : int
        Passes of the loop that the bridge saw, decisions of the core, requests admitted and
        preempted by them, finished tasks.
    decision_s, bridge_s : float
        Seconds in the core's decisions; in all of topas, these included.
    refusals : int
        Admissions that SGLang had no room for.
    fallbacks, hint_errors : Counter of str
        Passes left to SGLang's own policy, by reason; malformed hints, by kind.
    gauges : dict
        ``held``, ``running``, ``tasks_live``, ``resident_prefixes``, ``resident_tokens`` now.
    profile : Profile or None
        The costs that the core goes by; ``None`` before it has any.
    copies : Copies
        Of prefixes.
    """

    passes: int = 0
    decisions: int = 0
    decision_s: float = 0.0
    bridge_s: float = 0.0
    admissions: int = 0
    preemptions: int = 0
    refusals: int = 0
    tasks: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    hint_errors: Counter[str] = field(default_factory=Counter)
    gauges: dict[str, int] = field(default_factory=dict)
    profile: Profile | None = None
    copies: Copies = field(default_factory=Copies)
    _logged: tuple[float, Profile] | None = field(default=None, init=False, repr=False)

    def decided(self, seconds: float, admitted: int, preempted: int) -> None:
        """A decision was taken."""
        self.decisions += 1
        self.decision_s += seconds
        self.admissions += admitted
        self.preemptions += preempted

    def spent(self, seconds: float) -> None:
        """So long topas took, decisions included."""
        self.bridge_s += seconds

    def task_ended(self, workflow: str | None, seconds: float) -> None:
        """A task has finished."""
        self.tasks += 1

    def fell_back(self, reason: str) -> None:
        """A pass was left to SGLang's own policy."""
        self.fallbacks[reason] += 1

    def refused(self) -> None:
        """SGLang had no room for an admitted request."""
        self.refusals += 1

    def hints_wrong(self, total: Mapping[str, int]) -> None:
        """Malformed hints so far, by kind."""
        self.hint_errors = Counter(total)

    def set_gauges(self, **values: int) -> None:
        """How things stand."""
        self.gauges = values

    def set_profile(self, profile: Profile) -> None:
        """The core goes by these costs. The log has the first full ones, and large changes."""
        self.profile = profile
        if not profile.is_full:
            return
        now = time.monotonic()
        if self._logged is not None:
            logged_s, logged = self._logged
            if now - logged_s < _LOGGED_EVERY_S or not _differ(logged, profile):
                return
        self._logged = now, profile
        logger.info("profile: %s", _text(profile))

    def set_copies(self, copies: Copies) -> None:
        """So far there were these copies; totals never go down."""
        self.copies = copies


class Prometheus(Counts):
    """Counts that also show at ``/metrics``; one in a process.

    SGLang collects from all its processes, so nothing is to be wired but the labels.
    """

    _collectors: dict[str, Any] | None = None

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__()
        if Prometheus._collectors is None:  # registered once a process
            Prometheus._collectors = _collectors(tuple(labels))
        self._labels = dict(labels)
        self._children: dict[tuple[str, ...], Any] = {}
        self._seen = {_ALONE}
        for name in ("bridge_seconds", "decision_seconds", "admissions", "preemptions", "refusals"):
            self._of(name)  # shows as 0 before anything happens

    def _of(self, name: str, **more: str) -> Any:
        key = (name, *more.values())
        child = self._children.get(key)
        if child is None:
            assert Prometheus._collectors is not None
            child = Prometheus._collectors[name].labels(**self._labels, **more)
            self._children[key] = child
        return child

    def decided(self, seconds: float, admitted: int, preempted: int) -> None:
        """A decision was taken."""
        super().decided(seconds, admitted, preempted)
        self._of("decision_seconds").observe(seconds)
        self._of("admissions").inc(admitted)
        self._of("preemptions").inc(preempted)

    def spent(self, seconds: float) -> None:
        """So long topas took, decisions included."""
        super().spent(seconds)
        self._of("bridge_seconds").inc(seconds)

    def task_ended(self, workflow: str | None, seconds: float) -> None:
        """A task has finished."""
        super().task_ended(workflow, seconds)
        name = _ALONE if workflow is None else workflow
        if name not in self._seen and len(self._seen) > _MOST_WORKFLOWS:
            name = _OTHERS
        self._seen.add(name)
        self._of("task_seconds", workflow=name).observe(seconds)

    def fell_back(self, reason: str) -> None:
        """A pass was left to SGLang's own policy."""
        super().fell_back(reason)
        self._of("fallbacks", reason=reason).inc()

    def refused(self) -> None:
        """SGLang had no room for an admitted request."""
        super().refused()
        self._of("refusals").inc()

    def hints_wrong(self, total: Mapping[str, int]) -> None:
        """Malformed hints so far, by kind."""
        for kind, count in total.items():
            if (more := count - self.hint_errors[kind]) > 0:
                self._of("hint_errors", kind=kind).inc(more)
        super().hints_wrong(total)

    def set_gauges(self, **values: int) -> None:
        """How things stand."""
        super().set_gauges(**values)
        for name, value in values.items():
            self._of(name).set(value)

    def set_profile(self, profile: Profile) -> None:
        """The core goes by these costs."""
        super().set_profile(profile)
        for name, of in _PROFILE.items():
            if (value := getattr(profile, of)) is not None:
                self._of(name).set(value)

    def set_copies(self, copies: Copies) -> None:
        """So far there were these copies."""
        before = self.copies
        super().set_copies(copies)
        for entry in fields(Copies):
            value = getattr(copies, entry.name)
            if entry.name not in _COPY_COUNTERS:
                self._of(entry.name).set(value)
                continue
            name, direction = _COPY_COUNTERS[entry.name]
            labels = {} if direction is None else {"direction": direction}
            self._of(name, **labels).inc(max(value - getattr(before, entry.name), 0))


def _differ(logged: Profile, now: Profile) -> bool:
    """Whether a cost is well above or below what the log says, or was not there before.

    The fixed part alone is none of them: beside the rest it may be next to nothing.
    """
    for of in _PROFILE.values():
        old, new = getattr(logged, of), getattr(now, of)
        if of == "prefill_fixed_s" or new is None:
            continue
        if old is None or not 1.0 / _LOGGED_CHANGE <= new / old <= _LOGGED_CHANGE:
            return True
    return False


def _text(profile: Profile) -> str:
    """A profile in the units that people use."""
    swap, task = profile.swap_bytes_per_s, profile.task_s
    return (
        f"prefill {1e3 * profile.prefill_fixed_s:.3g} ms + "
        f"{1e6 * profile.prefill_s_per_token:.3g} us/token, "
        f"decode {1e3 * profile.decode_s_per_token:.3g} ms/token, "
        + ("no copies" if swap is None else f"swap {1e-9 * swap:.3g} GB/s")
        + ("" if task is None else f", tasks {task:.3g} s")
    )


def _collectors(labels: tuple[str, ...]) -> dict[str, Any]:
    """Everything that is exported, by the name used here."""
    import prometheus_client as client  # late: it looks at the environment when it is imported

    def counter(name: str, text: str, *more: str) -> Any:
        return client.Counter(f"topas:{name}", text, [*labels, *more])

    def gauge(name: str, text: str) -> Any:  # of all replicas together
        return client.Gauge(f"topas:{name}", text, list(labels), multiprocess_mode="sum")

    def cost(name: str, text: str) -> Any:  # of one replica
        return client.Gauge(f"topas:{name}", text, list(labels), multiprocess_mode="mostrecent")

    def histogram(name: str, text: str, buckets: tuple[float, ...], *more: str) -> Any:
        return client.Histogram(f"topas:{name}", text, [*labels, *more], buckets=buckets)

    return {
        "decision_seconds": histogram("decision_seconds", "Time of a decision.", _DECISION_S),
        "bridge_seconds": counter("bridge_seconds", "Seconds in topas, decisions included."),
        "admissions": counter("admissions", "Requests admitted by decisions."),
        "preemptions": counter("preemptions", "Requests preempted by decisions."),
        "refusals": counter("refusals", "Admitted requests that SGLang had no room for."),
        "fallbacks": counter("fallbacks", "Passes left to SGLang's own policy.", "reason"),
        "hint_errors": counter("hint_errors", "Malformed hints.", "kind"),
        "task_seconds": histogram(
            "task_seconds", "Completion time of finished tasks.", _TASK_S, "workflow"
        ),
        "held": gauge("held_requests", "Requests that wait."),
        "running": gauge("running_requests", "Requests that the policy runs."),
        "tasks_live": gauge("live_tasks", "Live tasks of workflows."),
        "resident_prefixes": gauge("resident_prefixes", "Static prefixes that are in use."),
        "resident_tokens": gauge("resident_prefix_tokens", "Their tokens."),
        "prefill_fixed_seconds": cost("prefill_fixed_seconds", "What any prefill pass takes."),
        "prefill_token_seconds": cost("prefill_token_seconds", "What a prompt token adds."),
        "decode_token_seconds": cost("decode_token_seconds", "A decode step."),
        "swap_bytes_per_second": cost("swap_bytes_per_second", "Bandwidth of loads from host."),
        "task_scale_seconds": cost("task_scale_seconds", "Completion time of tasks, the scale."),
        "copies": counter("prefix_copies", "Copies of prefixes.", "direction"),
        "copy_bytes": counter("prefix_copy_bytes", "Bytes of KV copied.", "direction"),
        "copy_seconds": counter("prefix_copy_seconds", "Seconds of copies.", "direction"),
        "copy_failures": counter("prefix_copy_failures", "Copies of prefixes that failed."),
        "copy_cancellations": counter("prefix_copy_cancellations", "Copies that were cancelled."),
        "host_evictions": counter("host_evictions", "Host copies given up for others."),
        "pins_dropped": counter("pins_dropped", "Pins that gave way to SGLang's need of room."),
        "pinned_prefixes": gauge("pinned_prefixes", "Prefixes that stay by a pin."),
        "pinned_tokens": gauge("pinned_prefix_tokens", "Their tokens."),
        "loads_in_flight": gauge("prefix_loads_in_flight", "Loads from host under way."),
    }
