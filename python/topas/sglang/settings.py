"""What the plugin is told: ``TOPAS_ENABLE`` and the file that ``TOPAS_CONFIG`` names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import topas
from topas.errors import ConfigError
from topas.sglang.switch import is_enabled

__all__ = ["PrefixCopies", "Settings"]

#: Over the presets, for an engine that computes prefixes and preempted requests again: a prefix is
#: paid for once however many tasks wait for it, room is used, prefixes soon wanted are worth more
#: than their transfer, and fewer preemptions are better (docs/policy.md). Waiting is bounded, and
#: so is what a decision costs: with up to 64 agents the budget takes nothing away.
_ONCE: Mapping[str, Any] = {
    "reuse_weight": 4.0,
    "move_model": "once",
    "work_conserving": True,
    "reserve_limit": 2.0,
    "max_evaluations": 256,
}
_IN_AN_ENGINE: Mapping[str, Mapping[str, Any]] = {
    "default": {**_ONCE, "redo_weight": 30.0},
    "guarded": {**_ONCE, "redo_weight": 10.0},
    "paper": {},
}

#: Fields of topas.Config that come from the engine and cannot be set.
_OF_THE_ENGINE = ("kv_capacity_tokens", "max_running_requests")


class PrefixCopies(BaseModel):
    """How static prefixes are copied to host memory and back (``docs/prefix_copies.md``).

    Parameters
    ----------
    host_bytes : int
        Host memory for copies, bytes; each tensor-parallel rank takes so much.
    layer_wise : {"idle", "always", "never"}
        When a request may start while its prefix is copied in, each layer waiting for its copy: if
        nothing runs that would have to wait with it, always, or never.
    frees_at_once : bool
        Whether the slots of a prefix that leaves are freed without regard to whether its requests
        wait. By default one that nobody waits for stays in the tree until SGLang needs the room.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    host_bytes: int = Field(ge=1)
    layer_wise: Literal["idle", "always", "never"] = "idle"
    frees_at_once: bool = False


class Settings(BaseModel):
    """Settings of the plugin, as the file has them.

    Parameters
    ----------
    preset : {"default", "guarded", "paper"}
        Which score (SPEC sections 6 and 7).
    policy : mapping
        Fields of :class:`topas.Config` on top of the preset. Capacity and the limit on running
        requests are the engine's. The costs (``prefill_s_per_token``, ``decode_s_per_token``,
        ``swap_bytes_per_s`` with ``kv_bytes_per_token``) are measured unless they are given.
    workflows : list of mapping
        Workflows known from the start: ``name`` and ``stages``, each with ``name``, ``agent`` and
        optionally ``after``, ``service_s``, ``request_s``.
    min_prefix_tokens : int
        Shorter common heads are not worth an agent.
    idle_expiry_s : float
        A task without live requests ends so long after its last event, seconds.
    reask_s : float
        While requests wait and nothing happens the core is asked again so often, seconds.
    allow_untested_version : bool
        Start on a version of SGLang outside the tested range, if every hook takes.
    prefix_copies : PrefixCopies or None
        Resident prefixes are pinned, and copied to host memory and back; None: neither.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    preset: Literal["default", "guarded", "paper"] = "default"
    policy: dict[str, Any] = Field(default_factory=dict)
    workflows: list[dict[str, Any]] = Field(default_factory=list)
    min_prefix_tokens: int = Field(default=64, ge=1)
    idle_expiry_s: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    reask_s: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    allow_untested_version: bool = False
    prefix_copies: PrefixCopies | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings | None:
        """The settings, or ``None`` when the plugin is switched off.

        Raises
        ------
        ConfigError
            The switch, the file, a field or a workflow is not legal; names it.
        """
        if not is_enabled(environment):
            return None
        path = environment.get("TOPAS_CONFIG")
        return cls.from_file(Path(path)) if path else cls()

    @classmethod
    def from_file(cls, path: Path) -> Settings:
        """Settings from a YAML or JSON file.

        Raises
        ------
        ConfigError
            The file cannot be read, or a field in it is not legal.
        """
        try:
            fields = yaml.safe_load(path.read_text())
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"TOPAS_CONFIG: {path}: {error}") from None
        try:
            settings = cls.model_validate({} if fields is None else fields)
            settings.check()
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "file"
            raise ConfigError(
                f"TOPAS_CONFIG: {path}: {where}: {first['msg']}, got {first['input']!r}"
            ) from None
        except topas.TopasError as error:
            raise ConfigError(f"TOPAS_CONFIG: {path}: {error}") from None
        return settings

    def check(self) -> None:
        """Raise what is wrong with the policy's fields or the workflows."""
        for name in _OF_THE_ENGINE:
            if name in self.policy:
                raise ConfigError(f"policy.{name}: comes from the engine and cannot be set")
        try:
            self.config(capacity=1, max_running_requests=0, costs={})
        except ConfigError as error:
            raise ConfigError(f"policy.{error}") from None
        known: dict[topas.Id, int] = {}
        for at, fields in enumerate(self.workflows):
            try:
                workflow = topas.Workflow.from_dict(fields)
            except topas.TopasError as error:
                raise ConfigError(f"workflows.{at}: {error}") from None
            if more := sorted(map(str, set(fields) - {"name", "stages"})):
                raise ConfigError(f"workflows.{at}: unknown field {', '.join(more)}")
            first = known.setdefault(workflow.name, at)
            if first != at:
                raise ConfigError(
                    f"workflows.{at}: {workflow.name!r} is the name of workflows.{first}"
                )

    @property
    def moves_once(self) -> bool:
        """Whether a prefix is charged to the engine and not to each task (``move_model``)."""
        return {**_IN_AN_ENGINE[self.preset], **self.policy}.get("move_model") == "once"

    def config(
        self, *, capacity: int, max_running_requests: int, costs: Mapping[str, float]
    ) -> topas.Config:
        """The settings of a decision.

        Parameters
        ----------
        capacity : int
            KV pool of the engine, tokens.
        max_running_requests : int
            Limit of the engine.
        costs : mapping
            Measured costs; the user's own win over them.

        Raises
        ------
        ConfigError
            Names the field and the value.
        """
        given: dict[str, Any] = {
            "kv_bytes_per_token": 1.0,
            "swap_bytes_per_s": 1.0,
            "decode_s_per_token": 0.0,
            **_IN_AN_ENGINE[self.preset],
            **costs,
            **self.policy,
            "kv_capacity_tokens": capacity,
            "max_running_requests": max_running_requests,
        }
        return topas.Config.from_dict(given, preset=self.preset)
