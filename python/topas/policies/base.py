"""What a scheduling policy is: it hears events and, when asked, says which requests run next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

__all__ = [
    "Id",
    "Plan",
    "Policy",
    "PrefixAdvice",
    "QueueView",
    "RequestView",
    "Setup",
    "StageProfile",
]

#: Ids of tasks and requests: integers or strings.
Id: TypeAlias = int | str


class RequestView(Protocol):
    """What a policy sees of a waiting or running request. Times in seconds, lengths in tokens."""

    @property
    def id(self) -> int:
        """Unique in a run; a preempted request keeps it."""

    @property
    def task(self) -> Id:
        """Task it belongs to."""

    @property
    def stage(self) -> str:
        """Stage of the task's workflow."""

    @property
    def agent(self) -> str:
        """Agent whose static prefix it has."""

    @property
    def depth(self) -> int:
        """Longest path from a root of the workflow to the request's stage, in stages."""

    @property
    def ready_s(self) -> float:
        """When the request arrived at the engine."""

    @property
    def task_arrival_s(self) -> float:
        """When its task arrived."""

    @property
    def input_tokens(self) -> int:
        """Dynamic input, without the static prefix."""

    @property
    def max_new_tokens(self) -> int:
        """Tokens reserved for its generation."""

    @property
    def generated_tokens(self) -> int:
        """Tokens generated in the present attempt (and kept of earlier ones)."""


class QueueView(Protocol):
    """What a policy sees of the engine when it is asked for a plan."""

    @property
    def waiting(self) -> Sequence[RequestView]:
        """Requests that are ready and not admitted."""

    @property
    def running(self) -> Sequence[RequestView]:
        """Admitted requests that have not finished."""

    def resident_tokens(self, agent: str) -> int:
        """Tokens of the agent's static prefix that are in the KV pool now: all of them or 0."""

    def cached_tokens(self, request: RequestView) -> int:
        """Tokens of a waiting request's prompt that are in the KV pool now.

        Its static prefix and, where the engine keeps them, what of its input the stage's previous
        round has left there.
        """


@dataclass(frozen=True)
class StageProfile:
    """A stage as known beforehand: predecessors by name, profiled LLM service in seconds."""

    name: str
    agent: str
    after: tuple[str, ...]
    service_s: float
    request_s: float


@dataclass(frozen=True)
class Setup:
    """What a policy is told before the first event: prefixes (tokens) and workflows by name.

    ``reload_s`` is how long each agent's prefix takes to come back once it was evicted, seconds:
    a copy from the host where there is a host cache, else its prefill.
    """

    agents: Mapping[str, int]
    workflows: Mapping[str, tuple[StageProfile, ...]]
    reload_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PrefixAdvice:
    """What a policy that leaves residency to the engine's cache wants of it; agents by name.

    It holds until the next plan. Prefixes in use never leave, whatever it says.

    Parameters
    ----------
    distance : mapping
        How far away the next use is, in any unit. Idle prefixes go in order of distance, farthest
        first, those of equal distance least recently used first; one that is not named is
        infinitely far.
    pinned_until_s : mapping
        Idle prefixes that stay until then, seconds on the engine's clock. They yield when a request
        needs room and nothing runs.
    contexts_pinned_until_s : mapping
        By task and name of a stage: contexts that stay until then in the same way, where the engine
        keeps any.
    prefetch : sequence of str
        Prefixes to load from the host, in this order, while the link has nothing else to do: into
        free memory and that of idle prefixes which are farther away. Those in the pool already and
        those without a host copy are skipped.
    """

    distance: Mapping[str, float] = field(default_factory=dict)
    pinned_until_s: Mapping[str, float] = field(default_factory=dict)
    contexts_pinned_until_s: Mapping[tuple[Id, str], float] = field(default_factory=dict)
    prefetch: Sequence[str] = ()


@dataclass(frozen=True)
class Plan:
    """An answer to "what runs next".

    Parameters
    ----------
    admit : sequence of int
        Waiting requests in the order of admission. Without ``resident`` the engine walks it and
        stops at the first request that does not fit; with it, all of them are admitted.
    preempt : sequence of int
        Running requests to stop; they wait again.
    resident : frozenset of str or None
        Agents whose prefixes are in the pool from now on; ``None``: the engine's LRU cache decides.
    advice : PrefixAdvice or None
        Only without ``resident``: which prefixes that cache keeps and prefetches.
    """

    admit: Sequence[int]
    preempt: Sequence[int] = ()
    resident: frozenset[str] | None = None
    advice: PrefixAdvice | None = None


class Policy(ABC):
    """A scheduling policy; events come in order of time, before the plan of that instant is asked.

    Subclasses set :attr:`name`, and :attr:`explicit_residency` when their plans name the resident
    prefixes; they override the events they care about. Times are seconds.

    A policy is asked when requests wait; with :attr:`explicit_residency` or :attr:`gives_advice`
    (its plans carry a :class:`PrefixAdvice`) after every event. :attr:`needs_host_cache`: an engine
    that has none gets an unlimited one for it.
    """

    name: str
    explicit_residency: bool = False
    gives_advice: bool = False
    needs_host_cache: bool = False

    @abstractmethod
    def plan(self, now: float, view: QueueView) -> Plan:
        """Say what runs next."""

    def begin(self, setup: Setup) -> None:  # noqa: B027
        """A run starts: agents and workflows."""

    def task_arrived(self, now: float, task: Id, workflow: str) -> None:  # noqa: B027
        """A task arrived; its root stages get ready at once or after their wait."""

    def request_ready(self, now: float, request: RequestView) -> None:  # noqa: B027
        """A request is ready and waits."""

    def request_retracted(self, now: float, request: RequestView) -> None:  # noqa: B027
        """The engine has stopped a running request for want of memory; it waits again.

        ``request.max_new_tokens`` is what is reserved for it from now on.
        """

    def request_completed(self, now: float, request: RequestView, service_s: float) -> None:  # noqa: B027
        """A request finished; ``service_s`` is its LLM service, without queueing and tool waits."""

    def stage_completed(self, now: float, task: Id, stage: str) -> None:  # noqa: B027
        """The last round of a stage finished; its successors may get ready."""

    def task_finished(self, now: float, task: Id) -> None:  # noqa: B027
        """All stages of the task are completed."""

    def task_cancelled(self, now: float, task: Id) -> None:  # noqa: B027
        """The task was given up, and its requests with it."""
