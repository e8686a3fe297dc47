"""Room for the request that has waited much longer (docs/specification.md, section 7)."""

from __future__ import annotations

from dataclasses import replace

from .state import Id, Request, State, id_key


def reserve(state: State) -> State:
    """Hold requests back so that the earliest one gets room, where it has waited for too long."""
    request = _overdue(state)
    if request is None:
        return state
    held = _held_tokens(state)
    room = state.settings.kv_capacity_tokens - sum(held.values()) - request.kv_tokens
    room -= 0 if request.agent in held else state.prefix[request.agent]
    limit = state.settings.max_running_requests
    if room >= 0 and (limit == 0 or len(state.running) < limit):
        stays, required = {request.id}, frozenset({request.agent})
    else:
        going = held.keys() - {request.agent} - _draining(state, request.agent, held, -room)
        stays, required = {r.id for r in state.waiting if r.agent in going}, frozenset[Id]()
    waiting = tuple(r for r in state.waiting if r.id in stays or state.never_fits(r))
    return replace(state, waiting=waiting, required=required)


def _overdue(state: State) -> Request | None:
    """Find the earliest request that can fit, if it has waited much longer than the others."""
    limit, scale_s = state.settings.reserve_limit, state.settings.age_scale_s
    fitting = [r for r in state.waiting if not state.never_fits(r)]
    if limit == 0.0 or not scale_s or not fitting:
        return None
    earliest = min(fitting, key=lambda r: (state.tasks[r.task].arrival, id_key(r.id)))
    others = [_age(state, r) for r in sorted(fitting, key=_place) if r is not earliest]
    mean_s = sum(others) / len(others) if others else 0.0
    return earliest if _age(state, earliest) > limit * max(scale_s, mean_s) else None


def _age(state: State, request: Request) -> float:
    return max(state.now - state.tasks[request.task].arrival, 0.0)


def _place(request: Request) -> tuple[tuple[int, int, bytes], tuple[int, int, bytes]]:
    return id_key(request.agent), id_key(request.id)


def _held_tokens(state: State) -> dict[Id, int]:
    """Tokens that the running requests of each agent hold, with its prefix."""
    held: dict[Id, int] = {}
    for request in state.running:
        prefix = held.get(request.agent, state.prefix[request.agent])
        held[request.agent] = prefix + request.kv_tokens
    return held


def _draining(state: State, agent: Id, held: dict[Id, int], missing: int) -> set[Id]:
    """Choose agents that admit nothing: the fewest running requests first, until it is enough."""
    running = [r.agent for r in state.running]
    out: set[Id] = set()
    for other in sorted(held.keys() - {agent}, key=lambda a: (running.count(a), id_key(a))):
        if missing <= 0:
            break
        out.add(other)
        missing -= held[other]
    return out
