"""Real workloads from a trace file: sessions of coding agents as tasks (one JSON object a line).

A row is one request: ``session, stage, agent, round, after[], input_tokens, output_tokens,
shared_tokens, api_s, tool_wait_s, t`` and, where it is known, ``static_prefix_tokens``. Sessions
become tasks, their stages the DAG, the rounds of a stage its ReAct rounds.

What the file does not say is settled here:

- The static prefix of an agent is the smallest that any of its stages shows, since all sessions
  share it: ``static_prefix_tokens`` where rows carry it, else the input of the first round, or
  what the second round shares with it, whichever is less. The rest of each input is dynamic.
- A round's dynamic input holds the whole context so far. It is prefilled again in each round: the
  cache of the model keeps static prefixes only.
- ``tool_wait_s`` is the time since the previous round of the same context. Before the first round
  of a stage it therefore runs from the end of the predecessor with the same agent (else from the
  last predecessor's), at the same time as the sub-agents called in between. Waits are capped:
  longer ones are a person's pauses.
- Profiles: for each agent, the means over all its stages in the (cut and scaled) trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from topas.errors import ConfigError, TraceError
from topas.sim.builtin import poisson_arrivals
from topas.sim.checks import check_int, check_number
from topas.sim.trace_graph import Segment, Session, assemble
from topas.sim.workload import Round, StageShape, Task, WorkflowShape, Workload

__all__ = ["TraceRow", "TraceScale", "load_trace"]

#: Times in a trace count from the session's start; anything above is a wall clock reading
#: (seconds).
_LATEST_S = 1e8
_ERRORS_SHOWN = 20


class TraceRow(BaseModel):
    """One row of a trace file; lengths in tokens, times in seconds. Unknown keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    session: str = Field(min_length=1)
    stage: str = Field(min_length=1)
    agent: str = Field(min_length=1)
    round: int = Field(ge=0)
    after: list[str]
    input_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=1)
    shared_tokens: int = Field(ge=0)
    api_s: float = Field(ge=0, allow_inf_nan=False)
    tool_wait_s: float = Field(ge=0, allow_inf_nan=False)
    t: float = Field(ge=0, le=_LATEST_S, allow_inf_nan=False)
    static_prefix_tokens: int | None = Field(default=None, ge=0)


@dataclass(frozen=True, kw_only=True)
class TraceScale:
    """How much of a trace is run, and how large.

    Parameters
    ----------
    sessions : int or None
        The first so many sessions of the file; ``None``: all.
    max_stages : int or None
        The first so many stages of each session (in order of time); ``None``: all.
    max_rounds : int or None
        The first so many rounds of each stage; ``None``: all.
    token_scale : float
        Factor on all token counts, above 0.
    max_tool_wait_s : float
        Longer tool waits are cut to this, seconds.

    Raises
    ------
    ConfigError
        A field is of the wrong type or out of range; the message names it.
    """

    sessions: int | None = None
    max_stages: int | None = None
    max_rounds: int | None = 8
    token_scale: float = 0.2
    max_tool_wait_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("sessions", "max_stages", "max_rounds"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), minimum=1)
        check_number("token_scale", self.token_scale, above=True)
        check_number("max_tool_wait_s", self.max_tool_wait_s)


def load_trace(
    path: str | Path,
    *,
    scale: TraceScale | None = None,
    rate: float | None = None,
    seed: int = 0,
) -> Workload:
    """Read a trace file.

    Parameters
    ----------
    path : str or Path
        File of JSON lines.
    scale : TraceScale, optional
        How much of it; default :class:`TraceScale`.
    rate : float, optional
        Poisson arrival rate of the sessions, 1/s; ``None``: each arrives at its own first ``t``.
    seed : int
        Seed of the arrivals.

    Raises
    ------
    TraceError
        The file cannot be read, or rows are wrong: the first 20 by line number, and how many there
        are.
    ConfigError
        The rate, seed or scale is not legal.
    """
    scale = scale or TraceScale()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
    errors: list[tuple[int, str]] = []
    rows = _parse(text.removesuffix("\n").split("\n") if text else [], errors)
    sessions = assemble(rows, errors)
    if not errors and not sessions:
        errors.append((1, "no row at all"))
    if errors:
        raise TraceError(_describe(path, errors))
    if scale.sessions is not None and scale.sessions > len(sessions):
        raise ConfigError(f"sessions: the trace has {len(sessions)}, asked for {scale.sessions}")
    sessions = [_cut(session, scale) for session in sessions[: scale.sessions]]
    arrivals = _arrivals(sessions, rate, seed)
    parameters: dict[str, object] = {
        "tasks": len(sessions),
        "rate": rate,
        "seed": seed,
        "sessions": len(sessions),
        "max_stages": scale.max_stages,
        "max_rounds": scale.max_rounds,
        "token_scale": scale.token_scale,
        "max_tool_wait_s": scale.max_tool_wait_s,
    }
    return _workload(Path(path).name, sessions, arrivals, scale, parameters)


def _parse(lines: Iterable[str], errors: list[tuple[int, str]]) -> list[tuple[int, TraceRow]]:
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            errors.append((number, "blank line"))
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            errors.append((number, f"broken JSON: {error}"))
            continue
        if not isinstance(value, dict):
            errors.append((number, f"not a JSON object but {type(value).__name__}"))
            continue
        try:
            rows.append((number, TraceRow.model_validate(value)))
        except ValidationError as error:
            errors.append((number, "; ".join(_field_errors(error))))
    return rows


def _field_errors(error: ValidationError) -> list[str]:
    described = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"])
        if item["type"] == "missing":
            described.append(f"{where}: missing")
        elif where == "t" and item["type"] == "less_than_equal":
            described.append(
                f"t: {item['input']!r} looks like wall clock time, expected seconds from the "
                "session's start"
            )
        else:
            described.append(f"{where}: {item['msg']}, got {item['input']!r}")
    return described


def _describe(path: str | Path, errors: list[tuple[int, str]]) -> str:
    lines = [f"{path}: {len(errors)} wrong row{'s' if len(errors) > 1 else ''}"]
    lines += [f"  line {number}: {what}" for number, what in sorted(errors)[:_ERRORS_SHOWN]]
    if len(errors) > _ERRORS_SHOWN:
        lines.append(f"  ... and {len(errors) - _ERRORS_SHOWN} more")
    return "\n".join(lines)


def _cut(session: Session, scale: TraceScale) -> Session:
    """The part of a session that is run; nobody waits for a cut stage, the order is topological."""
    kept = [
        Segment(s.name, s.agent, s.after, s.rows[: scale.max_rounds])
        for s in session.segments[: scale.max_stages]
    ]
    return Session(session.name, kept)


def _arrivals(sessions: list[Session], rate: float | None, seed: int) -> list[float]:
    if rate is not None:
        return poisson_arrivals(len(sessions), rate, seed)
    return [min(segment.rows[0].t for segment in session.segments) for session in sessions]


def _prefixes(sessions: list[Session]) -> dict[str, int]:
    """Static prefix of each agent before scaling, tokens."""
    prefixes: dict[str, int] = {}
    for session in sessions:
        for segment in session.segments:
            known = [r.static_prefix_tokens for r in segment.rows]
            found = [tokens for tokens in known if tokens is not None]
            if not found:
                found = [segment.rows[0].input_tokens]
                if len(segment.rows) > 1:
                    found.append(segment.rows[1].shared_tokens)
            least = min(found)
            prefixes[segment.agent] = min(prefixes.get(segment.agent, least), least)
    return prefixes


def _workload(
    name: str,
    sessions: list[Session],
    arrivals: list[float],
    scale: TraceScale,
    parameters: dict[str, object],
) -> Workload:
    prefixes = {
        agent: round(tokens * scale.token_scale)
        for agent, tokens in sorted(_prefixes(sessions).items())
    }
    rounds = {
        (session.name, segment.name): _rounds(segment, prefixes[segment.agent], scale)
        for session in sessions
        for segment in session.segments
    }
    profiles = _profiles(sessions, rounds)
    workflows, tasks = {}, []
    for arrival, session in zip(arrivals, sessions, strict=True):
        stages = tuple(
            _stage(session, index, profiles[segment.agent])
            for index, segment in enumerate(session.segments)
        )
        workflows[session.name] = WorkflowShape(session.name, stages)
        own = tuple(rounds[session.name, segment.name] for segment in session.segments)
        tasks.append(Task(session.name, arrival, session.name, own))
    tasks.sort(key=lambda task: task.arrival_s)
    return Workload(name, prefixes, workflows, tuple(tasks), parameters)


def _rounds(segment: Segment, prefix: int, scale: TraceScale) -> tuple[Round, ...]:
    return tuple(
        Round(
            max(round(row.input_tokens * scale.token_scale) - prefix, 0),
            max(round(row.output_tokens * scale.token_scale), 1),
            min(row.tool_wait_s, scale.max_tool_wait_s),
        )
        for row in segment.rows
    )


def _profiles(
    sessions: list[Session], rounds: dict[tuple[str, str], tuple[Round, ...]]
) -> dict[str, tuple[float, float, float]]:
    """Mean rounds a stage, input and output tokens a round, by agent."""
    by_agent: dict[str, list[tuple[Round, ...]]] = {}
    for session in sessions:
        for segment in session.segments:
            by_agent.setdefault(segment.agent, []).append(rounds[session.name, segment.name])
    result = {}
    for agent, stages in by_agent.items():
        flat = [item for stage in stages for item in stage]
        result[agent] = (
            len(flat) / len(stages),
            sum(item.input_tokens for item in flat) / len(flat),
            sum(item.output_tokens for item in flat) / len(flat),
        )
    return result


def _stage(session: Session, index: int, profile: tuple[float, float, float]) -> StageShape:
    segment = session.segments[index]
    position = {other.name: i for i, other in enumerate(session.segments)}
    after = tuple(sorted(position[before] for before in segment.after))
    same = [before for before in after if session.segments[before].agent == segment.agent]
    wait_from = same[-1] if same else None
    return StageShape(segment.name, segment.agent, after, *profile, wait_from=wait_from)
