"""Mooncake traces: requests with lengths and the ids of their prompt's blocks.

Three kinds are read, in order of what the rows tell:

1. ``wait_for`` or ``branches``: the agentic form (Dynamo's replay, version 1). A row may start when
   the rows it waits for have ended and ``delay`` plus ``tool_wait_ms`` have passed.
2. ``session_id``: the rows of a session are turns, one after another, each ``delay`` after the
   turn before, or, without one, at the distance of their timestamps.
3. neither (the published FAST'25 traces): a row continues an earlier one whose full blocks it
   begins with, if it is long enough to hold that row's answer too.

``input_tokens``, ``output_tokens``, ``created_time`` and ``delay_ms`` are taken as aliases. Lengths
and blocks of a row are those of its whole prompt. :mod:`topas.sim.trace.mooncake_graph` makes
stages of the links and :mod:`topas.sim.trace.prefix_tree` finds the static prefixes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from topas.sim.trace.graph import Errors
from topas.sim.trace.mooncake_graph import Request, to_rows
from topas.sim.trace.prefix_tree import PrefixTree
from topas.sim.trace.rows import LATEST_S, MOST_TOKENS, Trace, build_trace, fail, parse_lines

__all__ = ["read_mooncake"]

BlockId = int | str


class _MooncakeRow(BaseModel):
    """A row; lengths in tokens, times in milliseconds. Unknown keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    input_length: int = Field(
        validation_alias=AliasChoices("input_length", "input_tokens"), ge=0, le=MOST_TOKENS
    )
    output_length: int = Field(
        validation_alias=AliasChoices("output_length", "output_tokens"), ge=1, le=MOST_TOKENS
    )
    timestamp: float | None = Field(
        default=None,
        validation_alias=AliasChoices("timestamp", "created_time"),
        ge=0,
        le=LATEST_S * 1e3,
        allow_inf_nan=False,
    )
    delay: float | None = Field(
        default=None,
        validation_alias=AliasChoices("delay", "delay_ms"),
        ge=0,
        allow_inf_nan=False,
    )
    tool_wait_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    hash_ids: list[BlockId] | None = None
    request_id: str | None = Field(default=None, min_length=1)
    session_id: str | None = Field(default=None, min_length=1)
    wait_for: list[str] = Field(default_factory=list)
    branches: list[str] = Field(default_factory=list)
    prefix_reset: bool | None = None


def read_mooncake(path: Path, lines: list[str], block_tokens: int) -> Trace:
    """Read a Mooncake trace.

    Parameters
    ----------
    path : Path
        For messages.
    lines : list of str
        Of the file.
    block_tokens : int
        Tokens of a block of ``hash_ids``.

    Raises
    ------
    TraceError
        Rows are wrong or contradict each other; the message names them by line and field.
    """
    errors: Errors = []
    _refuse_header(lines, errors)
    if errors:
        fail(path, errors)
    requests = [
        _request(number, row, block_tokens, errors)
        for number, row in parse_lines(lines, _MooncakeRow, errors)
    ]
    if errors:
        fail(path, errors)
    linked_by, tree = _link(requests, block_tokens, errors)
    if errors:
        fail(path, errors)
    roots = [r for r in requests if not r.parents]
    timed = any(r.time_s is not None for r in roots)
    if timed:
        errors += [
            (r.line, "timestamp: missing, and the row waits for no other")
            for r in roots
            if r.time_s is None
        ]
    if errors:
        fail(path, errors)
    rows, facts = to_rows(requests, tree)
    facts = {"block_tokens": block_tokens, "linked_by": linked_by, **facts}
    return build_trace(path, "mooncake", rows, errors, facts=facts, timed=timed)


def _refuse_header(lines: list[str], errors: Errors) -> None:
    """The versioned form with typed dependencies begins with a header that names its schema."""
    try:
        first = json.loads(lines[0]) if lines else None
    except (ValueError, RecursionError):
        return
    if isinstance(first, dict) and "schema" in first and "input_length" not in first:
        what = f"{first['schema']!r} version {first.get('version')!r}"
        errors.append((1, f"schema: {what} is not supported, only rows without a header are"))


def _request(number: int, row: _MooncakeRow, block_tokens: int, errors: Errors) -> Request:
    full = row.input_length // block_tokens
    ids = tuple(row.hash_ids or ())
    if row.hash_ids is not None and len(ids) not in (full, -(-row.input_length // block_tokens)):
        errors.append(
            (
                number,
                f"hash_ids: {len(ids)} blocks of {block_tokens} tokens for an input_length of "
                f"{row.input_length} (another block size: --block-tokens)",
            )
        )
    return Request(
        line=number,
        id=row.request_id,
        session=row.session_id,
        time_s=None if row.timestamp is None else row.timestamp / 1e3,
        input_tokens=row.input_length,
        output_tokens=row.output_length,
        blocks=ids[:full],
        tail=ids[full:],
        wait_for=tuple(dict.fromkeys(row.wait_for)),
        branches=tuple(dict.fromkeys(row.branches)),
        delay_s=None if row.delay is None else row.delay / 1e3,
        tool_wait_s=(row.tool_wait_ms or 0.0) / 1e3,
        prefix_reset=bool(row.prefix_reset),
    )


def _link(requests: list[Request], block_tokens: int, errors: Errors) -> tuple[str, PrefixTree]:
    """Link the requests by the most telling field there is; the name of that field."""
    if not any(r.wait_for or r.branches or r.session is not None for r in requests):
        tree = PrefixTree(block_tokens, _by_time(requests))
        _link_prefixes(requests, tree)
        return "hash_ids", tree
    if any(r.wait_for or r.branches for r in requests):
        linked_by = "wait_for"
        _link_named(requests, errors)
    else:
        linked_by = "session_id"
        _link_sessions(requests)
    contexts = [] if errors else _contexts(requests)
    return linked_by, PrefixTree(block_tokens, [] if errors else requests, contexts)


def _contexts(requests: list[Request]) -> list[int]:
    """The context of each linked request: its session, else the line it all began with."""
    sessions: dict[str, int] = {}
    contexts = []
    for request in requests:
        if request.session is not None:
            contexts.append(sessions.setdefault(request.session, -1 - len(sessions)))
            continue
        first = request
        while first.parents:
            first = first.parents[0]
        contexts.append(first.line)
    return contexts


def _by_time(requests: list[Request]) -> list[Request]:
    """By timestamp where all have one, else in the order of the file."""
    if any(r.time_s is None for r in requests):
        return requests
    return sorted(requests, key=lambda r: (r.time_s, r.line))


def _link_named(requests: list[Request], errors: Errors) -> None:
    """Links of the agentic form, by ``request_id``."""
    by_id: dict[str, Request] = {}
    for request in requests:
        if request.id is None:
            continue
        if request.id in by_id:
            first = by_id[request.id].line
            errors.append((request.line, f"request_id: {request.id!r} is that of line {first}"))
            continue
        by_id[request.id] = request
    for request in requests:
        for field, names in (("wait_for", request.wait_for), ("branches", request.branches)):
            for name in names:
                other = by_id.get(name)
                if other is None:
                    errors.append((request.line, f"{field}: no row has request_id {name!r}"))
                elif field == "wait_for":
                    request.link(other)
                else:
                    other.link(request)
    graph = {r.line: [parent.line for parent in r.parents] for r in requests}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle = " -> ".join(f"line {line}" for line in reversed(error.args[1]))
        errors.append((error.args[1][0], f"wait_for: a cycle: {cycle}"))
    for request in requests:
        request.wait_s = (request.delay_s or 0.0) + request.tool_wait_s


def _link_sessions(requests: list[Request]) -> None:
    """Each turn of a session waits for the one before."""
    sessions: dict[str, list[Request]] = defaultdict(list)
    for request in requests:
        if request.session is not None:
            sessions[request.session].append(request)
    for turns in sessions.values():
        ordered = _by_time(turns)
        for before, turn in pairwise(ordered):
            turn.link(before)
            turn.wait_s = turn.tool_wait_s + _gap(before, turn)


def _link_prefixes(requests: list[Request], tree: PrefixTree) -> None:
    """A row continues the latest of those with the longest head that it begins with."""
    for request in _by_time(requests):
        before = tree.continued(request)
        if before is not None:
            request.link(before)
            request.wait_s = _gap(before, request)
        tree.passed(request)


def _gap(before: Request, turn: Request) -> float:
    if turn.delay_s is not None:
        return turn.delay_s
    if turn.time_s is None or before.time_s is None:
        return 0.0
    return max(turn.time_s - before.time_s, 0.0)
