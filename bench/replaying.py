"""Replays of event logs through Python: what every call took, what was decided, states to check."""

from __future__ import annotations

import struct
import time
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
import topas
from recording import EventLog
from topas import reference


@dataclass
class Replay:
    """A replayed log: nanoseconds of each measured call by its name, and what was decided."""

    call_ns: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    decisions: list[topas.Decision] = field(default_factory=list)
    snapshots: dict[int, topas.Snapshot] = field(default_factory=dict)  # by number of the decision

    @property
    def decide_ns(self) -> list[int]:
        """Nanoseconds of each ``decide``."""
        return self.call_ns["decide"]

    @property
    def checksum(self) -> str:
        """CRC-32 of all decisions, as bench/cpp computes it."""
        return f"{checksum(self.decisions):08x}"


def replay(log: EventLog, *, snapshot_every: int = 0) -> Replay:
    """Feed the log to a fresh scheduler, timing each call.

    With ``snapshot_every`` the state at every so-manyth decision is kept.
    """
    scheduler = topas.Scheduler(log.config)
    methods = {name: getattr(scheduler, name) for name in {name for name, _ in log.calls}}
    out = Replay()
    clock = time.perf_counter_ns
    decision: Any = None
    for place, (name, args) in enumerate(log.calls):
        measured = place >= log.measured_from
        method = methods[name]
        keep = measured and name == "decide" and snapshot_every > 0
        if keep and len(out.decisions) % snapshot_every == 0:
            out.snapshots[len(out.decisions)] = scheduler.snapshot(*args)
        if name == "commit":
            args = (decision,)
        begin = clock()
        result = method(*args)
        took = clock() - begin
        if measured:
            out.call_ns[name].append(took)
        if name == "decide":
            decision = result
            if measured:
                out.decisions.append(result)
    return out


def lowest(replays: list[Replay], name: str) -> list[float]:
    """Microseconds of each call of a name, the lowest of the replays."""
    return [min(times) / 1000 for times in zip(*(r.call_ns[name] for r in replays), strict=True)]


def checksum(decisions: list[topas.Decision]) -> int:
    """CRC-32 over ids and the bits of the score of each decision."""
    total = 0
    for decision in decisions:
        lists = (decision.resident, decision.admit, decision.preempt)
        text = ";".join(" ".join(map(str, ids)) for ids in lists)
        total = zlib.crc32(text.encode() + struct.pack("<d", decision.score), total)
    return total


def check(log: EventLog, done: Replay, *, referenced: int) -> dict[str, int]:
    """Compare the kept states' decisions with those of the other doors; how many were compared.

    The pure door must agree bit for bit on all of them, the readable reference on at most
    ``referenced``, evenly taken: same sets and order, the score to 1e-9.
    """
    numbers = sorted(done.snapshots)
    every = max(1, len(numbers) // referenced) if referenced else 0
    for at, number in enumerate(numbers):
        state, decision = done.snapshots[number], done.decisions[number]
        pure = topas.decide(state, log.config)
        assert pure.to_dict() == decision.to_dict(), f"decision {number}: the doors differ"
        if every and at % every == 0:
            wanted = reference.decide(state.to_dict(), log.config.to_dict())
            got = decision.to_dict()
            for key in ("resident", "admit", "preempt"):
                assert wanted[key] == got[key], f"decision {number}: {key} is not the reference's"
            assert wanted["score"] == pytest.approx(got["score"], rel=1e-9, abs=1e-9)
    return {"pure": len(numbers), "reference": len(numbers[::every]) if every else 0}
