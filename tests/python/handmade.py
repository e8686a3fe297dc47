"""Small snapshots by hand: one task a row, prefixes and requests of 100 tokens unless said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from topas import Id, reference

__all__ = ["EXACT", "Json", "request", "running", "snapshot", "stage"]

Json = dict[str, Any]

EXACT = 1 << 20
PLAIN: Json = {
    "kv_capacity_tokens": 1000,
    "kv_bytes_per_token": 1.0,
    "swap_bytes_per_s": 100.0,
    "decode_s_per_token": 0.1,
    "reuse_weight": 0.0,
    "age_weight": 0.0,
    "exact_limit": EXACT,
}


def stage(
    agent: Id, after: Iterable[int] = (), totals: Iterable[float] = (10.0,), **fields: Any
) -> Json:
    """Make a stage that takes 10 s."""
    row = {"agent": agent, "after": list(after), "completed": False, "service_s": 0.0}
    return {**row, "totals": list(totals), "request_s": 3.0, **fields}


def request(name: Id, task: Id, index: int, service_s: float = 10.0, **fields: Any) -> Json:
    """Make a waiting request; ``index`` is its stage."""
    row = {"id": name, "task": task, "stage": index, "expected_service_s": service_s}
    row |= {"kv_tokens": 100, "running": False, "generated_tokens": 0, "credit": 0.0}
    return {**row, **fields}


def running(name: Id, task: Id, index: int, service_s: float = 10.0, **fields: Any) -> Json:
    """Make a running one."""
    return request(name, task, index, service_s, **{"running": True, **fields})


def snapshot(
    tasks: Mapping[Any, list[Json]],
    requests: list[Json],
    resident: Iterable[Id] = (),
    prefix: Mapping[Any, int] | None = None,
    arrivals: Mapping[Any, float] | None = None,
    now: float = 0.0,
    **config: Any,
) -> Json:
    """Build a snapshot with a profile for each stage; prefixes are 100 tokens unless given."""
    profiles: list[Json] = []
    rows = []
    for name, stages in tasks.items():
        row: Json = {"id": name, "arrival": (arrivals or {}).get(name, 0.0), "stages": []}
        for fields in stages:
            plain = {key: fields[key] for key in ("agent", "after", "completed", "service_s")}
            row["stages"].append({**plain, "profile": len(profiles)})
            times = {"totals_s": fields["totals"], "request_s": fields["request_s"]}
            profiles.append({"id": len(profiles), **times})
        rows.append(row)
    agents = {fields["agent"] for stages in tasks.values() for fields in stages}
    sizes = dict.fromkeys(agents, 100) | dict(prefix or {})
    agent_of = {
        (name, index): fields["agent"]
        for name, stages in tasks.items()
        for index, fields in enumerate(stages)
    }
    return {
        "config": {**PLAIN, **reference.PRESETS["paper"], **config},
        "now": now,
        "agents": [{"id": agent, "prefix_tokens": size} for agent, size in sizes.items()],
        "profiles": profiles,
        "tasks": rows,
        "requests": [{**r, "agent": agent_of[r["task"], r["stage"]]} for r in requests],
        "resident": list(resident),
    }
