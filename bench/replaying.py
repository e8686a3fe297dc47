"""Replays of event logs through Python: what every call took, what was decided, states to check."""

from __future__ import annotations

import gc
import math
import struct
import time
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import topas
from recording import EventLog
from topas import reference

SLOW_NS = 20e9  # in a replay


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
    gc.disable()
    try:
        return _replay(log, snapshot_every)
    finally:
        gc.enable()


def _replay(log: EventLog, snapshot_every: int) -> Replay:
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


def replays(log: EventLog, first: Replay, count: int) -> list[Replay]:
    """So many replays that decide as the first one; one where decisions are slow."""
    slow = sum(first.decide_ns) > SLOW_NS
    out = [replay(log) for _ in range(1 if slow else count)]
    assert {done.checksum for done in out} == {first.checksum}, "replays decide differently"
    return out


def lowest(replays: list[Replay], name: str) -> list[float]:
    """Microseconds of each call of a name, the lowest of the replays."""
    return [min(times) / 1000 for times in zip(*(r.call_ns[name] for r in replays), strict=True)]


def lowest_read(decisions: list[topas.Decision], count: int) -> list[float]:
    """Microseconds of reading each decision as NumPy arrays, the lowest of so many times."""
    clock = time.perf_counter_ns
    out = []
    for decision in decisions:
        times = []
        for _ in range(count):
            begin = clock()
            decision.arrays()
            times.append(clock() - begin)
        out.append(min(times) / 1000)
    return out


def checksum(decisions: list[topas.Decision]) -> int:
    """CRC-32 over ids and the bits of the score of each decision."""
    total = 0
    for decision in decisions:
        lists = (decision.resident, decision.admit, decision.preempt)
        text = ";".join(" ".join(map(str, ids)) for ids in lists)
        total = zlib.crc32(text.encode() + struct.pack("<d", decision.score), total)
    return total


@dataclass
class Checked:
    """How many states were compared with the pure door, and what the reference took for some."""

    states: int = 0
    reference_us: dict[int, float] = field(default_factory=dict)  # by number of the decision


def check(log: EventLog, done: Replay, *, referenced: int) -> Checked:
    """Compare the kept states' decisions with those of the other doors.

    The pure door must agree bit for bit on all of them, the readable reference on about
    ``referenced``, evenly taken: same sets and order, the score to 1e-9.
    """
    numbers = sorted(done.snapshots)
    out = Checked(len(numbers))
    every = max(1, len(numbers) // referenced) if referenced else len(numbers) + 1
    settings = log.config.to_dict()
    for at, number in enumerate(numbers, start=1):
        state, decision = done.snapshots[number], done.decisions[number]
        got = decision.to_dict()
        assert topas.decide(state, log.config).to_dict() == got, f"{number}: the doors differ"
        if at % every == 0:
            plain = state.to_dict()
            begin = time.perf_counter()
            wanted = reference.decide(plain, settings)
            out.reference_us[number] = 1e6 * (time.perf_counter() - begin)
            for key in ("resident", "admit", "preempt"):
                assert wanted[key] == got[key], f"{number}: {key} is not the reference's"
            assert math.isclose(wanted["score"], got["score"], rel_tol=1e-9, abs_tol=1e-9)
    return out
