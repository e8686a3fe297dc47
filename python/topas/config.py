"""Settings of a decision (docs/specification.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from topas._core import validate_config
from topas.errors import ConfigError

__all__ = ["PRESETS", "Config"]

RedoModel = Literal["decode", "prefill", "kept"]
MoveModel = Literal["tasks", "once"]
GainModel = Literal["path", "service"]
AdmitOrder = Literal["density", "arrival"]

_PAPER: Mapping[str, Any] = {
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

_BY_SERVICE: Mapping[str, Any] = {
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

#: The fields that a preset sets, the same ones for all; the others are the user's. ``guarded`` is
#: the guard of SPEC section 6, ``default`` and ``rollout`` are in sections 7 and 8.
PRESETS: Mapping[str, Mapping[str, Any]] = {
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


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything a decision depends on besides the state.

    Immutable, comparable, hashable and picklable. The values given as defaults are those of the
    preset ``default``; :meth:`preset` gives the others. SPEC is docs/specification.md.

    Parameters
    ----------
    kv_capacity_tokens : int
        C, KV capacity in tokens, at least 0 (0: nothing can run).
    kv_bytes_per_token : float
        μ, bytes of KV per token, at least 0 (0: moving prefixes is free).
    swap_bytes_per_s : float
        B_swap, bytes per second between GPU and CPU, above 0.
    decode_s_per_token : float
        T_decode, seconds per generated token, at least 0.
    prefill_fixed_s, prefill_s_per_token : float
        T_prefill(n) = fixed + per token · n, seconds, at least 0.
    enumerate_max_agents : int
        M: up to so many active agents every prefix set is tried, above it the bounded greedy
        search runs (SPEC section 5). 0 means always greedy; at most 20.
    max_evaluations : int
        At most so many prefix sets are packed a decision, the present one first, so that the choice
        is never worse than staying with it; counted, never timed. 0 means as many as it takes.
    action_cap : int
        K, at most so many admissions and so many preemptions a decision; 0 means no cap.
    max_running_requests : int
        Limit on the running requests after the decision; 0 means none.
    reuse_weight : float
        β, weight of the one-hop lookahead J_reuse, at least 0 (0: off).
    age_weight : float
        ρ, strength of ageing, at least 0 (0: no ageing, so a cold prefix may starve under warm
        load).
    age_scale_s : float or None
        H_age as a constant, seconds, above 0. ``None``: the :class:`~topas.Scheduler` estimates
        it; the pure :func:`~topas.decide` then needs ``age_weight == 0``.
    exact_limit : int
        Expectations over at most so many joint outcomes are enumerated, larger ones are sampled; 1
        to 1,048,576.
    samples : int
        Monte Carlo draws of an expectation, at most 1,048,576. 0: never sample; a decision over
        more than ``exact_limit`` joint outcomes then raises :class:`~topas.CapacityError`.
    seed : int
        Seed of the draws, 0 to 2**64 - 1.
    count_running : bool
        Kept running requests count as hypothetical completions (SPEC section 6).
    age_credit : bool
        A revoked credit has aged with its task (SPEC section 6).
    redo_weight : float
        κ, weight of J_redo, at least 0.
    redo_model : {"decode", "prefill", "kept"}
        What redoing a preempted request costs (SPEC section 3).
    move_model : {"tasks", "once"}
        Who pays for moving prefixes: every admitted task that waits for one (the paper), or the
        engine, once for each that comes in and for each that leaves though it is wanted, because
        nothing else goes on while it loads (SPEC section 3).
    move_weight : float
        Weight of J_move, at least 0; with ``once`` the number of requests that wait meanwhile.
    work_conserving : bool
        What room the best state leaves is filled, also where that lowers the score (SPEC section
        6).
    gain_model : {"path", "service"}
        What admitting a request gains: how much shorter its task's expected longest path gets (the
        paper), or its expected service, which preempting it then loses (SPEC section 7).
    urgency : float
        γ, at least 0: gains are multiplied by (H_age / L)^γ, L being the longest path of the
        task's expected residuals, at least a second. 0: off.
    admit_order : {"density", "arrival"}
        Whether the requests of a prefix set are admitted by gain for each token (the paper) or by
        arrival of their task.
    preempt_limit : float
        φ: a request whose generated tokens have taken more than φ times its expected service is
        never preempted; at least 0, 0 means no limit.
    overtake_limit : float
        θ: where the next request in order of arrival does not fit, and its task is older than θ
        times H_age, the prefix set admits no more; at least 0, 0 means no limit. Needs
        ``admit_order`` ``arrival``.
    backlog_weight : float
        ν, at least 0: where gains are services they are multiplied by 1 + ν · (reservations of all
        requests of the agent over the room that its prefix leaves), so that a prefix which few
        requests want waits for more of them (SPEC section 7). 0: off. No effect under
        ``gain_model`` ``path``.
    reserve_limit : float
        η: where the earliest waiting task is older than η times the larger of H_age and the mean
        age of the other waiting requests' tasks, room is kept for its request until that fits; at
        least 0, 0: never. So waiting is bounded (SPEC section 7). Not with ``rollout_scenarios``.
    rollout_scenarios : int
        Scenarios in which each of a handful of decisions is simulated to the end of the tasks in
        the system, the best of them being taken (SPEC section 8); at most 1,024, 0: off. Needs
        ``gain_model`` ``service``.
    rollout_steps : int
        At most so many requests are simulated a decision; counted, never timed. Candidates stay
        out, or later scenarios, where there would be more. 0 means no limit.
    rollout_margin : float
        By how many standard errors another decision must be better than the one without rollouts;
        at least 0.
    rollout_power : float
        To which power completion times are summed, 1 (their mean counts) to 8 (the worst does).

    Raises
    ------
    ConfigError
        Names the field and the value that is missing, of the wrong type or out of range.
    """

    kv_capacity_tokens: int
    kv_bytes_per_token: float
    swap_bytes_per_s: float
    decode_s_per_token: float
    prefill_fixed_s: float = 0.0
    prefill_s_per_token: float = 0.0
    enumerate_max_agents: int = 8
    max_evaluations: int = 0
    action_cap: int = 0
    max_running_requests: int = 0
    reuse_weight: float = 0.0
    age_weight: float = 1.0
    age_scale_s: float | None = None
    exact_limit: int = 4096
    samples: int = 128
    seed: int = 0
    count_running: bool = True
    age_credit: bool = True
    redo_weight: float = 6.0
    redo_model: RedoModel = "decode"
    move_model: MoveModel = "tasks"
    move_weight: float = 0.0
    work_conserving: bool = False
    gain_model: GainModel = "service"
    urgency: float = 0.25
    admit_order: AdmitOrder = "arrival"
    preempt_limit: float = 1.0
    overtake_limit: float = 2.0
    backlog_weight: float = 1.0
    reserve_limit: float = 0.0
    rollout_scenarios: int = 0
    rollout_steps: int = 0
    rollout_margin: float = 1.0
    rollout_power: float = 1.0

    def __post_init__(self) -> None:
        validate_config(self)

    @classmethod
    def preset(cls, name: str, **fields: Any) -> Config:
        """Settings of a preset, with ``fields`` on top.

        Parameters
        ----------
        name : {"paper", "guarded", "default", "rollout"}
            ``paper`` is the published score to the letter, ``guarded`` adds the guard of SPEC
            section 6, ``default`` goes by expected services (section 7), ``rollout`` adds rollouts
            to it (section 8).
        **fields
            Fields of :class:`Config`; they win over the preset's.

        Raises
        ------
        ConfigError
            The preset or a field is unknown, or a value is not legal.
        """
        return cls.from_dict(fields, preset=name)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], preset: str = "default") -> Config:
        """Settings from a mapping, as a snapshot line has; the inverse of :meth:`to_dict`.

        Raises
        ------
        ConfigError
            The preset or a field is unknown, a required one is missing, or a value is not legal.
        """
        if not isinstance(fields, Mapping):
            raise ConfigError(f"config: must be a mapping of fields, got {fields!r}")
        if not isinstance(preset, str) or preset not in PRESETS:
            raise ConfigError(f"preset: unknown {preset!r}, known are {', '.join(sorted(PRESETS))}")
        known = {field.name: field for field in dataclasses.fields(cls)}
        for name in fields:
            if name not in known:
                raise ConfigError(f"{name}: unknown config field, known are {', '.join(known)}")
        for field in known.values():
            if field.default is dataclasses.MISSING and field.name not in fields:
                raise ConfigError(f"{field.name}: required config field is missing")
        return cls(**{**PRESETS[preset], **fields})

    def replace(self, **fields: Any) -> Config:
        """A copy with ``fields`` changed (checked again).

        Raises
        ------
        ConfigError
            A field is unknown or a value is not legal.
        """
        return Config.from_dict({**self.to_dict(), **fields})

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, ready for JSON."""
        return dataclasses.asdict(self)
