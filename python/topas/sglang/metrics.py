"""What happened: plain counts, and the same through SGLang's own Prometheus endpoint."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Counts", "Prometheus"]

_MOST_WORKFLOWS = 100  # that have a label of their own
_OTHERS = "(other)"
_ALONE = "(none)"  # requests without a workflow

_DECISION_S = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 1e-1)
_TASK_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500)


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


def _collectors(labels: tuple[str, ...]) -> dict[str, Any]:
    """Everything that is exported, by the name used here."""
    import prometheus_client as client  # late: it looks at the environment when it is imported

    def counter(name: str, text: str, *more: str) -> Any:
        return client.Counter(f"topas:{name}", text, [*labels, *more])

    def gauge(name: str, text: str) -> Any:  # of all replicas together
        return client.Gauge(f"topas:{name}", text, list(labels), multiprocess_mode="sum")

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
    }
