"""What the tests on the real engine share: loads, a look into topas, and ways to disturb it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import sglang
from topas.sglang.plugin import bridge_of as _bridge_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine import InProcessEngine
    from topas.sglang.bridge import Bridge
    from topas.sglang.ledger import Ledger
    from topas.sglang.roster import Entry

    Start = Callable[..., InProcessEngine]
    Expected = Callable[[list["Asked"]], dict[str, list[int]]]

VERSION = tuple(int(part) for part in sglang.__version__.split(".")[:3])
OLD = VERSION < (0, 5, 22)
PASSES = 3000  # more is a livelock
LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["normal", "overlap"])


def tokens(seed: int, length: int) -> list[int]:
    """Return random tokens that are no special ones."""
    draw = random.Random(seed)
    return [draw.randrange(2, 1000) for _ in range(length)]


PREFIXES = [tokens(seed, 96) for seed in range(3)]


def submit_all(engine: InProcessEngine, count: int = 12, new: int = 10) -> None:
    """Submit ``count`` requests over three shared prefixes."""
    for i in range(count):
        engine.submit(f"r{i:02}", PREFIXES[i % 3] + tokens(100 + i, 5 + i), new + i % 4)


def token_ids(engine: InProcessEngine) -> dict[str, list[int]]:
    """Return what every request has got."""
    return {rid: output.token_ids for rid, output in engine.outputs.items()}


@dataclass(frozen=True)
class Asked:
    """A request that can be sent to several engines."""

    rid: str
    prompt: list[int]
    new: int = 8
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[tuple[int, ...], int]:
        """What the answer hangs on."""
        return tuple(self.prompt), self.new

    def submit_to(self, engine: InProcessEngine) -> None:
        """Send it."""
        engine.submit(self.rid, self.prompt, self.new, **self.fields)


def load(count: int = 24, new: int = 24, prefixes: list[list[int]] = PREFIXES) -> list[Asked]:
    """Return ``count`` requests over shared prefixes, of different lengths."""
    return [
        Asked(
            f"r{i:02}",
            prefixes[i % len(prefixes)] + tokens(100 + i, 5 + i % 12),
            new + i % 5,
        )
        for i in range(count)
    ]


class Ticks:
    """Stands for the module ``time``: a clock that goes on by ``step`` with every reading."""

    def __init__(self, step: float = 0.01) -> None:
        self.now = 0.0
        self.step = step

    def monotonic(self) -> float:
        """Return the time; the clock of the ranks reads it once a pass."""
        self.now += self.step
        return self.now


# ---- a look into topas ----


def bridge_of(engine: InProcessEngine) -> Bridge:
    """Return the bridge that drives an engine."""
    bridge = _bridge_of(engine.scheduler)
    assert bridge is not None
    return bridge


def entries(engine: InProcessEngine) -> dict[str, Entry]:
    """Return what topas knows of live requests, by request id."""
    return {entry.req.rid: entry for entry in bridge_of(engine)._roster}


def left_over(engine: InProcessEngine) -> dict[str, int]:
    """Return the sizes of everything that must be empty when nothing is live."""
    bridge = bridge_of(engine)
    usage = bridge.core.usage()
    sizes = {name: getattr(usage, name) for name in ("running", "waiting", "tasks", "credits")}
    sizes |= {
        "entries": len(bridge._roster),
        "entries by id": len(bridge._roster._by_id),
        "planned": len(bridge._roster.planned),
        "live": len(bridge.ledger.live_requests),
        "ledger tasks": bridge.ledger.tasks,
        "prefixes in use": sum(agent.live + agent.running for agent in _agents(bridge.ledger)),
    }
    return {name: size for name, size in sizes.items() if size}


def _agents(ledger: Ledger) -> Any:
    return ledger.agents._agents.values()


def finish(
    engine: InProcessEngine,
    on_pass: Callable[[InProcessEngine], object] | None = None,
    *,
    fallbacks: bool = False,
) -> dict[str, list[int]]:
    """Run to the end, look for what is left, and return the outputs.

    Parameters
    ----------
    engine
        One that topas drives.
    on_pass
        As of ``InProcessEngine.run``.
    fallbacks
        Whether passes must, or must not, have been left to SGLang's own policy.
    """
    engine.run(on_pass, pass_limit=PASSES)
    engine.check_idle()
    bridge = bridge_of(engine)
    assert left_over(engine) == {}
    assert bool(bridge.counts.fallbacks) is fallbacks, bridge.counts.fallbacks
    assert bridge.counts.decisions > 0
    return token_ids(engine)


def disagreements(engine: InProcessEngine) -> list[str]:
    """Return where topas and SGLang see a request differently; for ``on_pass``, between passes."""
    bridge, scheduler = bridge_of(engine), engine.scheduler
    there = {id(req) for req in bridge.view.everyone(scheduler.running_batch)}
    waits = {id(req) for req in scheduler.waiting_queue}
    core = {r["id"]: r["running"] for r in bridge.core.snapshot(1e9).to_dict()["requests"]}
    wrong = []
    if len(waits) != len(scheduler.waiting_queue):
        wrong.append("a request waits twice")
    for rid, entry in entries(engine).items():
        if id(entry.req) not in there:
            wrong.append(f"{rid} is gone")
        if entry.running is (id(entry.req) in waits):
            wrong.append(f"{rid} running: {entry.running}, waits: {id(entry.req) in waits}")
        if core.pop(entry.id) is not (entry.running or entry.id in bridge._roster.planned):
            wrong.append(f"{rid} differs in the core")
    return wrong + [f"{rid} in the core only" for rid in core]


def spy(patch: pytest.MonkeyPatch, owner: type, name: str) -> list[tuple[Any, ...]]:
    """Return a list that grows by the arguments of every call of a method."""
    calls: list[tuple[Any, ...]] = []
    method = getattr(owner, name)

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append((*args, *kwargs.values()))
        return method(self, *args, **kwargs)

    patch.setattr(owner, name, called)
    return calls


# ---- ways to disturb it ----


@dataclass
class Choice:
    """A decision that is none of the core's."""

    admit: list[int]
    preempt: list[int]


class Decider:
    """Takes the place of ``Ledger.decide``; this one only counts.

    Parameters
    ----------
    patch
        Takes it there.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        from topas.sglang.ledger import Ledger

        self._decide = Ledger.decide
        self.decisions = 0
        decider = self
        patch.setattr(Ledger, "decide", lambda ledger, *args: decider.decide(ledger, *args))

    def decide(self, ledger: Ledger, now: float, *args: Any) -> Any:
        """Decide as the core does."""
        self.decisions += 1
        return self._decide(ledger, now, *args)


class Tyrant(Decider):
    """Throws random running requests out at every decision, on top of the core's own choice.

    Parameters
    ----------
    patch
        As of ``Decider``.
    seed, share
        Of the draws, and how many of the running requests are thrown out.
    """

    def __init__(self, patch: pytest.MonkeyPatch, seed: int = 0, share: float = 0.3) -> None:
        super().__init__(patch)
        self._draw = random.Random(seed)
        self._share = share
        self.thrown_out = 0

    def decide(self, ledger: Ledger, now: float, *args: Any) -> Choice:
        """Decide as the core does, and throw some more out."""
        running = [rid for rid, live in ledger._live.items() if live.running]
        decision = super().decide(ledger, now, *args)
        staying = [rid for rid in running if rid not in decision.preempt]
        victims = [rid for rid in staying if self._draw.random() < self._share]
        for rid in victims:
            ledger.stopped(now, rid)
        self.thrown_out += len(victims)
        return Choice(list(decision.admit), [*decision.preempt, *victims])


def always_due(engine: InProcessEngine) -> None:
    """Have the core asked in this pass (for ``on_pass``)."""
    bridge_of(engine)._due = True
