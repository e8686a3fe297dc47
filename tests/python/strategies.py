"""Random valid snapshots in the JSON form, for hypothesis and for plain loops.

A snapshot comes from one integer through a seeded generator, so a failing one is named by its
seed and shrinks to a small seed. Values come from short lists about half of the time, so that
ties, exact fits and equal profiles are common.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st

__all__ = ["PRESETS", "random_snapshot", "snapshots"]

Json = dict[str, Any]
Id = int | str

PRESETS: tuple[Json, ...] = (
    {"count_running": False, "age_credit": False, "redo_weight": 1.0},
    {"count_running": True, "age_credit": True, "redo_weight": 3.0},
)
"""The fields of the presets ``paper`` and ``default``."""
STRINGS = ("7", "10", "a", "b", "agent/one", "Zoë", "é", "", "plan", "review", "z-9", "日本")


def random_snapshot(seed: int) -> Json:
    """Make the snapshot that belongs to a seed; its ``config`` has every field."""
    rng = Random(seed)
    now = rng.choice((0.0, 100.0, round(rng.uniform(0, 500), 6)))
    agents = _agents(rng)
    profiles: list[Json] = []
    tasks = _tasks(rng, now, [agent["id"] for agent in agents], profiles)
    requests = _requests(rng, tasks)
    config = _config(rng, agents, requests)
    resident = _run_some(rng, config, agents, requests)
    _spoil(rng, config, agents, requests, resident)
    for rows in (agents, profiles, tasks, requests, resident):
        rng.shuffle(rows)
    return {
        "config": config,
        "now": now,
        "agents": agents,
        "profiles": profiles,
        "tasks": tasks,
        "requests": requests,
        "resident": resident,
    }


snapshots: st.SearchStrategy[Json] = st.integers(0, 2**32 - 1).map(random_snapshot)
"""Hypothesis strategy of valid snapshots."""


def _ids(rng: Random, count: int) -> list[Id]:
    """Draw distinct ids: integers, strings, or both."""
    numbers: list[Id] = list(rng.sample(range(-3, 4 * count + 5), count))
    if rng.random() < 0.05:
        numbers[0] = rng.choice((2**63 - 1, -(2**63), 2**40))
    names: list[Id] = [*rng.sample(STRINGS, min(count, len(STRINGS)))]
    names += [f"id{i}" for i in range(count - len(names))]
    kind = rng.random()
    if kind < 0.6:
        return numbers
    if kind < 0.75:
        return names
    return [rng.choice(pair) for pair in zip(numbers, names, strict=True)]


def _seconds(rng: Random, high: float) -> float:
    """Draw a duration, from a short list half of the time."""
    if rng.random() < 0.5:
        return rng.choice((1.0, 2.0, 2.0, 4.0, 8.0))
    return round(rng.uniform(0.01, high), 6)


def _tokens(rng: Random, high: int) -> int:
    """Draw a number of tokens of at least one, from a short list half of the time."""
    return rng.choice((1, 100, 100, 200, 300)) if rng.random() < 0.5 else rng.randint(1, high)


def _agents(rng: Random) -> list[Json]:
    count = rng.choice((1, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 10, 11, 12))
    zero = rng.choice((0.0, 0.0, 0.3, 1.0))
    return [
        {"id": agent, "prefix_tokens": 0 if rng.random() < zero else _tokens(rng, 6000)}
        for agent in _ids(rng, count)
    ]


def _tasks(rng: Random, now: float, agents: list[Id], profiles: list[Json]) -> list[Json]:
    arrivals = [round(rng.uniform(0.0, now + 5.0), 6), max(now - 20.0, 0.0), 0.0]
    tasks: list[Json] = []
    count = rng.choice((rng.randint(1, 4), rng.randint(4, 8), rng.randint(8, 14)))
    for task in _ids(rng, count):
        stages = _stages(rng, agents, profiles)
        arrival = rng.choice(arrivals) if rng.random() < 0.5 else round(rng.uniform(0, now), 6)
        tasks.append({"id": task, "arrival": arrival, "stages": stages})
    return tasks


def _stages(rng: Random, agents: list[Id], profiles: list[Json]) -> list[Json]:
    count = rng.choice((1, 2, 3, 3, 4, 4, 5, 6, 7))
    density = rng.choice((0.2, 0.4, 0.7))
    progress = rng.choice((0.0, 0.3, 0.6))
    order = list(range(count))
    if rng.random() < 0.2:
        rng.shuffle(order)
    stages: list[Json] = [{} for _ in order]
    for position, index in enumerate(order):
        before = order[:position]
        after = [v for v in before if rng.random() < density]
        if not after and before and rng.random() < 0.7:
            after = [rng.choice(before)]
        ready = all(stages[v]["completed"] for v in after)
        completed = rng.random() < (progress if ready else 0.05)
        started = ready and rng.random() < 0.3
        stages[index] = {
            "agent": rng.choice(agents),
            "after": sorted(after),
            "profile": _profile(rng, profiles),
            "completed": completed,
            "service_s": _seconds(rng, 40.0) if started or completed else 0.0,
        }
    return stages


def _profile(rng: Random, profiles: list[Json]) -> Id:
    """Share a profile, repeat the values of one, or make a new one; give its id."""
    if profiles and rng.random() < 0.2:
        chosen: Id = rng.choice(profiles)["id"]
        return chosen
    name: Id = len(profiles) if rng.random() < 0.8 else f"p{len(profiles)}"
    if profiles and rng.random() < 0.2:
        profiles.append({**rng.choice(profiles), "id": name})
        return name
    totals = [_seconds(rng, 60.0) for _ in range(rng.choice((1, 1, 2, 2, 3, 4)))]
    if rng.random() < 0.1:
        totals[0] = 0.0
    profiles.append({"id": name, "totals_s": totals, "request_s": _seconds(rng, 20.0)})
    return name


def _requests(rng: Random, tasks: list[Json]) -> list[Json]:
    """Give requests to ready stages, and now and then to one that is not ready."""
    places = []
    for task in tasks:
        for index, stage in enumerate(task["stages"]):
            ready = all(task["stages"][v]["completed"] for v in stage["after"])
            if not stage["completed"] and rng.random() < (0.85 if ready else 0.03):
                places += [(task, index)] * rng.choice((1, 1, 1, 2, 3))
    places = rng.sample(places, min(len(places), 20))
    requests = []
    for name, (task, index) in zip(_ids(rng, max(len(places), 1)), places, strict=False):
        request = {
            "id": name,
            "task": task["id"],
            "stage": index,
            "agent": task["stages"][index]["agent"],
            "kv_tokens": _tokens(rng, 1500),
            "expected_service_s": _seconds(rng, 20.0) if rng.random() < 0.95 else 0.0,
            "running": False,
            "generated_tokens": 0,
            "credit": 0.0,
        }
        if rng.random() < 0.5:
            request["input_tokens"] = rng.randint(0, 1500)
        requests.append(request)
    return requests


def _config(rng: Random, agents: list[Json], requests: list[Json]) -> Json:
    """Draw every field; the capacity is a share of what all requests together would need.

    Most of the time it is enough for each request alone.
    """
    prefix = {agent["id"]: agent["prefix_tokens"] for agent in agents}
    demand = sum(r["kv_tokens"] for r in requests)
    demand += sum(prefix[agent] for agent in {r["agent"] for r in requests})
    largest = max((prefix[r["agent"]] + r["kv_tokens"] for r in requests), default=1)
    capacity = int(demand * rng.choice((0.2, 0.35, 0.5, 0.5, 0.7, 0.85, 1.0, 1.3)))
    if rng.random() < 0.85:
        capacity = max(capacity, largest)
    age_weight = rng.choice((0.0, 0.3, 1.0))
    scale = round(rng.uniform(1.0, 300.0), 6)
    more = Random(scale)  # what came later draws apart, so that the states stay the same
    drawn = {
        "kv_capacity_tokens": max(capacity, 1),
        "kv_bytes_per_token": rng.choice((131072.0, 262144.0)),
        "swap_bytes_per_s": rng.choice((1e8, 5e9, 2e10)),
        "decode_s_per_token": rng.choice((0.0, 0.02, round(rng.uniform(0.01, 0.06), 6))),
        "prefill_fixed_s": rng.choice((0.0, 0.05)),
        "prefill_s_per_token": rng.choice((0.0, 0.00035)),
        "enumerate_max_agents": rng.choice((0, 0, 1, 3, 5, 8, 8)),
        "action_cap": rng.choice((0, 0, 1, 2, 3)),
        "max_running_requests": rng.choice((0, 0, 0, 1, 3, 6)),
        "reuse_weight": rng.choice((0.0, 1.0, 5.0)),
        "age_weight": age_weight,
        "age_scale_s": None if age_weight == 0.0 and rng.random() < 0.5 else scale,
        "exact_limit": rng.choice((1, 4, 16, 4096)),
        "samples": rng.choice((1, 7, 16, 32, 128)),
        "seed": rng.choice((0, 1, 2**64 - 1, rng.getrandbits(64))),
        **rng.choice(PRESETS),
        "redo_model": rng.choice(("decode", "decode", "prefill", "kept")),
        "move_model": more.choice(("tasks", "tasks", "once")),
        "move_weight": more.choice((1.0, 1.0, 0.0, 6.5)),
        "work_conserving": more.random() < 0.3,
    }
    options = by_service(more)
    if drawn["age_scale_s"] is None:
        options |= {"urgency": 0.0, "overtake_limit": 0.0, "reserve_limit": 0.0}
    return {**drawn, **options}


def by_service(rng: Random) -> Json:
    """Draw the options of SPEC section 7: often none of them."""
    order = rng.choice(("density", "density", "arrival"))
    return {
        "gain_model": rng.choice(("path", "path", "service")),
        "urgency": rng.choice((0.0, 0.0, 0.25, 1.0)),
        "admit_order": order,
        "preempt_limit": rng.choice((0.0, 0.0, 0.1, 1.0)),
        "overtake_limit": rng.choice((0.0, 0.5, 2.0)) if order == "arrival" else 0.0,
        "reserve_limit": rng.choice((0.0, 0.0, 0.1, 1.5)),
        "backlog_weight": rng.choice((0.0, 0.5, 2.0)),
    }


def _run_some(rng: Random, config: Json, agents: list[Json], requests: list[Json]) -> list[Id]:
    """Let requests run while they fit, keep some idle prefixes as well; give the resident ids."""
    prefix = {agent["id"]: agent["prefix_tokens"] for agent in agents}
    room = config["kv_capacity_tokens"]
    limit = config["max_running_requests"] or len(requests)
    share = rng.choice((0.0, 0.4, 0.8, 1.0))
    resident: list[Id] = []
    running = 0
    for request in rng.sample(requests, len(requests)):
        agent = request["agent"]
        need = request["kv_tokens"] + (0 if agent in resident else prefix[agent])
        if need > room or running == limit or rng.random() > share:
            continue
        room -= need
        running += 1
        if agent not in resident:
            resident.append(agent)
        _start(rng, request)
    for agent in rng.sample(list(prefix), len(prefix)):
        if agent not in resident and prefix[agent] <= room and rng.random() < 0.25:
            room -= prefix[agent]
            resident.append(agent)
    return resident


def _start(rng: Random, request: Json) -> None:
    """Turn a request into a running one with its credit."""
    request["running"] = True
    request["generated_tokens"] = rng.choice((0, 5, rng.randint(0, 600)))
    request["credit"] = rng.choice((0.0, _seconds(rng, 20.0), _seconds(rng, 60.0)))
    factor = rng.choice((None, 1.0, round(rng.uniform(1.0, 4.0), 6), "absent"))
    if factor != "absent":
        request["age_factor_at_admission"] = factor


def _spoil(
    rng: Random, config: Json, agents: list[Json], requests: list[Json], resident: list[Id]
) -> None:
    """Now and then: a request or a prefix that can never fit, or less capacity than is in use."""
    kind = rng.random()
    waiting = [request for request in requests if not request["running"]]
    if kind < 0.08 and waiting:
        rng.choice(waiting)["kv_tokens"] = config["kv_capacity_tokens"] + rng.randint(1, 50)
    elif kind < 0.12 and waiting:
        absent = [agent for agent in agents if agent["id"] not in resident]
        if absent:
            rng.choice(absent)["prefix_tokens"] = config["kv_capacity_tokens"] + 1
    elif kind < 0.14:
        config["kv_capacity_tokens"] = max(config["kv_capacity_tokens"] // 2, 1)
