"""From a trace to a workload: sessions become tasks, their stages the DAG, rounds ReAct rounds.

What a file does not say is settled here:

- The static prefix of an agent is the smallest that any of its stages shows, since all sessions
  share it: ``static_prefix_tokens`` where rows carry it, else the input of the first round, or
  what the second round shares with it, whichever is less. The rest of each input is dynamic.
- A round's dynamic input holds the whole context so far. What of it repeats the stage's previous
  round (``shared_tokens`` without the static prefix, at most that round's input and output) is
  prefilled again in each round unless the engine keeps contexts.
- ``tool_wait_s`` is the time since the previous round of the same context. Before the first round
  of a stage it therefore runs from the end of the predecessor with the same agent (else from the
  last predecessor's), at the same time as the sub-agents called in between. Waits are capped:
  longer ones are a person's pauses.
- Profiles: for each agent, the means over all its stages in the (cut and scaled) trace.
"""

from __future__ import annotations

from pathlib import Path

from topas.errors import ConfigError, TraceError
from topas.sim.builtin import poisson_arrivals
from topas.sim.trace.formats import read_trace
from topas.sim.trace.graph import Segment, Session, static_prefixes
from topas.sim.trace.rows import Trace
from topas.sim.trace.scale import TraceScale
from topas.sim.workload import Round, StageShape, Task, WorkflowShape, Workload

__all__ = ["load_trace", "to_workload"]


def load_trace(
    path: str | Path,
    *,
    scale: TraceScale | None = None,
    rate: float | None = None,
    seed: int = 0,
    form: str = "auto",
    block_tokens: int = 512,
) -> Workload:
    """Read a trace file and make a workload of it.

    Parameters
    ----------
    path : str or Path
        The file.
    scale : TraceScale, optional
        How much of it; default :class:`TraceScale`.
    rate : float, optional
        Poisson arrival rate of the sessions, 1/s; ``None``: each arrives at its own first ``t``.
    seed : int
        Seed of the arrivals.
    form : str
        One of :data:`TRACE_FORMATS`; ``auto`` looks at the first row.
    block_tokens : int
        Tokens of a block of ``hash_ids`` (Mooncake only).

    Raises
    ------
    TraceError
        The file cannot be read, or rows are wrong: the first 20 by line number, and how many there
        are; or it has no arrivals and no rate is given.
    ConfigError
        The rate, seed, scale, form or block size is not legal.
    """
    trace = read_trace(path, form=form, block_tokens=block_tokens)
    return to_workload(trace, scale=scale, rate=rate, seed=seed)


def to_workload(
    trace: Trace, *, scale: TraceScale | None = None, rate: float | None = None, seed: int = 0
) -> Workload:
    """Make a workload of a trace; parameters and errors are those of :func:`load_trace`."""
    scale = scale or TraceScale()
    sessions = trace.sessions
    if scale.sessions is not None and scale.sessions > len(sessions):
        raise ConfigError(f"sessions: the trace has {len(sessions)}, asked for {scale.sessions}")
    if rate is None and not trace.timed:
        raise TraceError(
            f"{trace.name}: {trace.format} rows without arrival times: give a rate (--rate)"
        )
    sessions = [_cut(session, scale) for session in sessions[: scale.sessions]]
    arrivals = _arrivals(sessions, rate, seed)
    kept = [row for session in sessions for segment in session.segments for row in segment.rows]
    parameters: dict[str, object] = {
        "tasks": len(sessions),
        "rate": rate,
        "seed": seed,
        "sessions": len(sessions),
        "max_stages": scale.max_stages,
        "max_rounds": scale.max_rounds,
        "token_scale": scale.token_scale,
        "max_tool_wait_s": scale.max_tool_wait_s,
        "format": trace.format,
        "rows": len(trace.rows),
        "rows_cut_by_scale": len(trace.rows) - len(kept),
        "waits_cut": sum(row.tool_wait_s > scale.max_tool_wait_s for row in kept),
        "skipped": dict(trace.skipped),
        **trace.facts,
    }
    return _workload(trace.name, sessions, arrivals, scale, parameters)


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


def _workload(
    name: str,
    sessions: list[Session],
    arrivals: list[float],
    scale: TraceScale,
    parameters: dict[str, object],
) -> Workload:
    prefixes = {
        agent: round(tokens * scale.token_scale)
        for agent, tokens in sorted(static_prefixes(sessions).items())
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
    rounds: list[Round] = []
    for row in segment.rows:
        tokens = max(round(row.input_tokens * scale.token_scale) - prefix, 0)
        shared = max(round(row.shared_tokens * scale.token_scale) - prefix, 0)
        before = rounds[-1].input_tokens + rounds[-1].output_tokens if rounds else 0
        rounds.append(
            Round(
                tokens,
                max(round(row.output_tokens * scale.token_scale), 1),
                min(row.tool_wait_s, scale.max_tool_wait_s),
                min(shared, before, tokens),
            )
        )
    return tuple(rounds)


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
    in_context = segment.rows[0].wait_from == "context"
    wait_from = same[-1] if same and in_context else None
    return StageShape(segment.name, segment.agent, after, *profile, wait_from=wait_from)
