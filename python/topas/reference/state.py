"""SPEC section 1: the state a decision is taken in, read from a snapshot's JSON form.

The names of SPEC.md in brackets: C is `Settings.kv_capacity_tokens`, mu is
`Settings.kv_bytes_per_token`, l_a is `State.prefix[a]`, c_r is `Request.kv_tokens`, d_r is
`Request.expected_service_s`, y_r is `Request.generated_tokens`, lambda_r is `Request.credit`,
e_(i,v) is `Stage.service_s`. Snapshots are taken to be valid: checking them is the product's work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

Id = int | str
"""An identifier given by the user; ``7`` and ``"7"`` are different ones."""

_PAPER: dict[str, Any] = {
    "count_running": False,
    "age_credit": False,
    "redo_weight": 1.0,
    "reuse_weight": 1.0,
    "move_weight": 1.0,
    "gain_model": "path",
    "urgency": 0.0,
    "admit_order": "density",
    "preempt_limit": 0.0,
    "overtake_limit": 0.0,
    "backlog_weight": 0.0,
    "rollout_scenarios": 0,
    "rollout_power": 1.0,
    "rollout_steps": 0,
}

_BY_SERVICE: dict[str, Any] = {
    "count_running": True,
    "age_credit": True,
    "redo_weight": 6.0,
    "reuse_weight": 0.0,
    "move_weight": 0.0,
    "gain_model": "service",
    "urgency": 0.25,
    "admit_order": "arrival",
    "preempt_limit": 1.0,
    "overtake_limit": 2.0,
    "backlog_weight": 1.0,
    "rollout_scenarios": 0,
    "rollout_power": 1.0,
    "rollout_steps": 0,
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": _PAPER,
    "guarded": {**_PAPER, "count_running": True, "age_credit": True, "redo_weight": 3.0},
    "default": _BY_SERVICE,
    "rollout": {
        **_BY_SERVICE,
        "rollout_scenarios": 8,
        "rollout_power": 1.5,
        "rollout_steps": 10_000,
    },
}
"""What each preset sets."""

TIE = 1e-12


def tie(x: float, y: float) -> bool:
    """Say whether two values count as equal (SPEC section 4)."""
    return abs(x - y) <= TIE * max(1.0, abs(x), abs(y))


def id_key(identifier: Id) -> tuple[int, int, bytes]:
    """Sort key of identifiers: integers by value, then strings by their UTF-8 bytes."""
    if isinstance(identifier, int):
        return (0, identifier, b"")
    return (1, 0, identifier.encode())


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The configuration of a decision; fields without a default must be given.

    Seconds, tokens and bytes throughout; 0 stands for "no limit" in ``action_cap`` (K) and
    ``max_running_requests``. ``reuse_weight`` is beta, ``age_weight`` rho, ``age_scale_s`` H_age,
    ``enumerate_max_agents`` M and ``redo_weight`` kappa of SPEC.md.
    """

    kv_capacity_tokens: int
    kv_bytes_per_token: float
    swap_bytes_per_s: float
    decode_s_per_token: float
    count_running: bool
    age_credit: bool
    redo_weight: float
    prefill_fixed_s: float = 0.0
    prefill_s_per_token: float = 0.0
    enumerate_max_agents: int = 8
    max_evaluations: int = 0
    action_cap: int = 0
    max_running_requests: int = 0
    reuse_weight: float = 1.0
    age_weight: float = 1.0
    age_scale_s: float | None = None
    exact_limit: int = 4096
    samples: int = 128
    seed: int = 0
    redo_model: str = "decode"
    move_model: str = "tasks"
    move_weight: float = 1.0
    work_conserving: bool = False
    gain_model: str = "path"
    urgency: float = 0.0
    admit_order: str = "density"
    preempt_limit: float = 0.0
    overtake_limit: float = 0.0
    backlog_weight: float = 0.0
    reserve_limit: float = 0.0
    rollout_scenarios: int = 0
    rollout_steps: int = 0
    rollout_margin: float = 1.0
    rollout_power: float = 1.0


@dataclass(frozen=True)
class Stage:
    """One stage of a task: its agent, the stages before it, its profile and its past service."""

    agent: Id
    after: tuple[int, ...]
    totals_s: tuple[float, ...]
    request_s: float
    completed: bool
    service_s: float


@dataclass(frozen=True)
class Task:
    """One task: its arrival time and the stages of its DAG."""

    id: Id
    arrival: float
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Request:
    """One request of a stage, waiting or running."""

    id: Id
    task: Id
    stage: int
    agent: Id
    kv_tokens: int
    expected_service_s: float
    running: bool
    generated_tokens: int
    credit: float
    age_factor_at_admission: float | None
    input_tokens: int


@dataclass(frozen=True)
class State:
    """Everything a decision depends on; requests are sorted by id."""

    now: float
    settings: Settings
    prefix: Mapping[Id, int]
    tasks: Mapping[Id, Task]
    waiting: tuple[Request, ...]
    running: tuple[Request, ...]
    resident: frozenset[Id]
    required: frozenset[Id] = frozenset()  # agents that must be resident

    @property
    def active(self) -> tuple[Id, ...]:
        """Agents of all waiting and running requests, sorted (SPEC section 5)."""
        return tuple(sorted({r.agent for r in self.waiting + self.running}, key=id_key))

    def never_fits(self, request: Request) -> bool:
        """Say whether a request exceeds an empty machine: l_a + c_r > C."""
        return self.prefix[request.agent] + request.kv_tokens > self.settings.kv_capacity_tokens


def read_settings(config: object, preset: str | None = None) -> Settings:
    """Complete a configuration with the defaults.

    Parameters
    ----------
    config : Mapping or object
        The fields of `Settings` as keys or as attributes.
    preset : {"paper", "guarded", "default", "rollout"}, optional
        Fills the options that a preset sets where ``config`` lacks them.

    Raises
    ------
    TypeError
        If a field is missing that has no default, or a key is unknown.
    KeyError
        If the preset is unknown.
    """
    given = dict(PRESETS[preset]) if preset is not None else {}
    if isinstance(config, Mapping):
        given.update(config)
    else:
        names = (field.name for field in fields(Settings))
        given.update({name: getattr(config, name) for name in names if hasattr(config, name)})
    return Settings(**given)


def read_state(
    snapshot: Mapping[str, Any], config: object = None, preset: str | None = None
) -> State:
    """Read a snapshot; ``config`` replaces the one inside it (see `read_settings`).

    A scheduler's estimate of H_age (``snapshot["age_scale_s"]``) serves where none is configured.
    """
    profiles = {profile["id"]: profile for profile in snapshot["profiles"]}
    requests = sorted(map(_read_request, snapshot["requests"]), key=lambda r: id_key(r.id))
    settings = read_settings(snapshot["config"] if config is None else config, preset)
    if settings.max_evaluations:
        raise ValueError("max_evaluations: only the core has a budget")
    if settings.age_scale_s is None:
        settings = replace(settings, age_scale_s=snapshot.get("age_scale_s"))
    return State(
        now=snapshot["now"],
        settings=settings,
        prefix={agent["id"]: agent["prefix_tokens"] for agent in snapshot["agents"]},
        tasks={task["id"]: _read_task(task, profiles) for task in snapshot["tasks"]},
        waiting=tuple(r for r in requests if not r.running),
        running=tuple(r for r in requests if r.running),
        resident=frozenset(snapshot["resident"]),
    )


def _read_task(task: Mapping[str, Any], profiles: Mapping[Id, Mapping[str, Any]]) -> Task:
    stages = tuple(
        Stage(
            agent=stage["agent"],
            after=tuple(stage["after"]),
            totals_s=tuple(profiles[stage["profile"]]["totals_s"]),
            request_s=profiles[stage["profile"]]["request_s"],
            completed=stage["completed"],
            service_s=stage["service_s"],
        )
        for stage in task["stages"]
    )
    return Task(task["id"], task["arrival"], stages)


def _read_request(request: Mapping[str, Any]) -> Request:
    optional = {"age_factor_at_admission": None, "input_tokens": 0}
    values = {**optional, **request}
    return Request(**{field.name: values[field.name] for field in fields(Request)})
