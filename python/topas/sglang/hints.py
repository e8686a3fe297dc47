"""Who a request belongs to: hints by the field's conventions, first schema with an identity wins.

Hints are advisory. Nothing here raises: what is malformed is passed over and counted by kind
(:attr:`Hints.errors`), and a request without hints is a task of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Carriers", "Hints", "read_hints"]

Id: TypeAlias = int | str

_LONGEST_TEXT = 1 << 18  # characters of a JSON text
_LONGEST_ID = 512
_MOST_PARENTS = 10_000


@dataclass(frozen=True)
class Carriers:
    """What a request carries through SGLang's front end untouched.

    Parameters
    ----------
    custom_params : mapping or None
        ``sampling_params.custom_params``: the body field of the same name.
    routing_key : str or None
        Header ``x-smg-routing-key``: JSON text with the fields of ``agent_hints``, or
        ``workflow/agent/step``.
    session_id : str or None
        Body field ``session_id``.
    kv_payloads : sequence of mapping
        Payloads of ``kv_hints`` actions of type ``topas.meta``: fields of ``agent_hints``.
    """

    custom_params: Mapping[str, Any] | None = None
    routing_key: str | None = None
    session_id: str | None = None
    kv_payloads: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Hints:
    """What a request says of itself.

    Parameters
    ----------
    source : str
        Schema that gave the identity: ``agent_hints``, ``nvext``, ``agentic_context``,
        ``program``, ``headers``, ``session`` or ``none``.
    task : int, str or None
        The running workflow it belongs to (the field's ``workflow_id``).
    agent, stage : int, str or None
        Agent and step.
    workflow : int, str or None
        Name of a registered workflow.
    graph : mapping or None
        A workflow to be registered with this request.
    parents : tuple of int or str
        Steps that this one comes after.
    finishes_task, finishes_stage : bool
        Whether it is the last request of its task or of its step.
    errors : tuple of str
        Kinds of malformed hints that were passed over.
    """

    source: str = "none"
    task: Id | None = None
    agent: Id | None = None
    stage: Id | None = None
    workflow: Id | None = None
    graph: Mapping[str, Any] | None = None
    parents: tuple[Id, ...] = ()
    finishes_task: bool = False
    finishes_stage: bool = False
    errors: tuple[str, ...] = ()

    @property
    def identified(self) -> bool:
        """Whether a task or an agent is known."""
        return self.task is not None or self.agent is not None


class _Fields:
    """A mapping read with care: a field of the wrong type counts as absent and as an error."""

    def __init__(self, fields: Mapping[Any, Any], errors: list[str]) -> None:
        self._fields = fields
        self._errors = errors

    def id(self, *names: str) -> Id | None:
        for name in names:
            value = self._fields.get(name)
            if value is None or value == "":
                continue
            if _is_id(value):
                return value  # type: ignore[no-any-return]
            self._errors.append(f"bad_{name}")
        return None

    def flag(self, *names: str) -> bool:
        for name in names:
            value = self._fields.get(name)
            if isinstance(value, bool):
                return value
            if isinstance(value, str) and value.lower() in ("true", "false", "1", "0"):
                return value.lower() in ("true", "1")
            if value is not None:
                self._errors.append(f"bad_{name}")
        return False

    def ids(self, name: str) -> tuple[Id, ...]:
        value = self._fields.get(name)
        if value is None:
            return ()
        if (
            isinstance(value, (list, tuple))
            and len(value) <= _MOST_PARENTS
            and all(map(_is_id, value))
        ):
            return tuple(value)
        self._errors.append(f"bad_{name}")
        return ()

    def object(self, name: str) -> Mapping[Any, Any] | None:
        """A nested object: a mapping, or JSON text of one (carriers are flat)."""
        value = self._fields.get(name)
        if value is None:
            return None
        fields = _parse_object(value)
        if fields is None:
            self._errors.append(f"bad_{name}")
        return fields

    def last_step(self) -> bool:
        """``step_index`` and ``total_steps`` say that this is the last step."""
        index, total = self._fields.get("step_index"), self._fields.get("total_steps")
        if isinstance(index, bool) or isinstance(total, bool):
            return False
        return isinstance(index, int) and isinstance(total, int) and 0 < total == index + 1


def _is_id(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_ID and value.isprintable()


def _parse_object(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, Mapping) else None


def _from_agent_hints(fields: _Fields) -> Hints:
    parent = fields.id("parent_step_id")
    parents = fields.ids("parent_step_ids") or (() if parent is None else (parent,))
    return Hints(
        source="agent_hints",
        task=fields.id("workflow_id"),
        agent=fields.id("agent_id"),
        stage=fields.id("step_id", "step_index"),
        workflow=fields.id("workflow"),
        graph=fields.object("workflow_graph"),
        parents=parents,
        finishes_task=fields.flag("finish"),
        finishes_stage=fields.flag("step_finish") or fields.last_step(),
    )


def _agent_hints(params: _Fields, carriers: Carriers, errors: list[str]) -> Hints | None:
    nested = params.object("agent_hints")
    if nested is not None:
        return _from_agent_hints(_Fields(nested, errors))
    for payload in carriers.kv_payloads:
        if isinstance(payload, Mapping):
            return _from_agent_hints(_Fields(payload, errors))
        errors.append("bad_kv_hints")
    return None if carriers.routing_key is None else _routing_key(carriers.routing_key, errors)


def _routing_key(text: str, errors: list[str]) -> Hints | None:
    if text.lstrip().startswith("{"):
        fields = _parse_object(text)
        if fields is not None:
            return _from_agent_hints(_Fields(fields, errors))
    else:
        parts = text.split("/")
        if len(parts) == 3 and all(_is_id(part) for part in parts):
            return Hints(source="agent_hints", task=parts[0], agent=parts[1], stage=parts[2])
    errors.append("bad_routing_key")
    return None


def _nvext(params: _Fields, carriers: Carriers, errors: list[str]) -> Hints | None:
    params.object("nvext")  # names no one; only counted when it is malformed
    session = params.id("x-dynamo-session-id")
    if session is None:
        return None
    return Hints(
        source="nvext",
        task=params.id("x-dynamo-parent-session-id") or session,
        agent=params.id("agent_id"),
        finishes_task=params.flag("x-dynamo-session-final"),
    )


def _agentic_context(params: _Fields, carriers: Carriers, errors: list[str]) -> Hints | None:
    outer = params.object("vllm_xargs")
    fields = (_Fields(outer, errors) if outer is not None else params).object("agentic_context")
    if fields is None:
        return None
    nested = _Fields(fields, errors)
    return Hints(
        source="agentic_context", task=nested.id("program_id"), agent=nested.id("agent_id")
    )


def _program(params: _Fields, carriers: Carriers, errors: list[str]) -> Hints | None:
    return Hints(
        source="program",
        task=params.id("program_id", "job_id"),
        agent=params.id("agent_id"),
        finishes_task=params.flag("is_last_step"),
    )


_SESSION_HEADERS = (
    "x-claude-code-session-id",
    "session-id",
    "x-session-affinity",
    "x-session-id",
    "x-llm-d-inference-fairness-id",
)


def _headers(params: _Fields, carriers: Carriers, errors: list[str]) -> Hints | None:
    return Hints(
        source="headers",
        task=params.id(*_SESSION_HEADERS),
        agent=params.id("x-claude-code-agent-id"),
    )


def _session(params: _Fields, carriers: Carriers, errors: list[str]) -> Hints | None:
    session = carriers.session_id or params.id("session_id", "prompt_cache_key")
    if session is None or not _is_id(session):
        return None
    return Hints(source="session", task=session)


_Schema: TypeAlias = Callable[[_Fields, Carriers, list[str]], Hints | None]
_PRECEDENCE: tuple[_Schema, ...] = (
    _agent_hints,
    _nvext,
    _agentic_context,
    _program,
    _headers,
    _session,
)


def read_hints(carriers: Carriers) -> Hints:
    """The identity of a request.

    Schemas are tried in the order of precedence; the first that yields a task or an agent wins, and
    schemas are never merged.

    Parameters
    ----------
    carriers : Carriers
        What the request carries.

    Returns
    -------
    Hints
        With ``source`` ``"none"`` when nothing identifies the request.
    """
    errors: list[str] = []
    params = carriers.custom_params
    if params is not None and not isinstance(params, Mapping):
        errors.append("bad_custom_params")
        params = None
    fields = _Fields(params or {}, errors)
    for schema in _PRECEDENCE:
        hints = schema(fields, carriers, errors)
        if hints is not None and hints.identified:
            return _with_errors(hints, errors)
    return _with_errors(Hints(), errors)


def _with_errors(hints: Hints, errors: list[str]) -> Hints:
    if not errors:
        return hints
    return Hints(**{**vars(hints), "errors": tuple(dict.fromkeys(errors))})
