"""Random events, slow copies and faults at random, on a small pool; looked at in each pass."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from driving import LOOPS, VERSION, Asked, Tyrant, tokens
from residents import COPIES, Leash, at_rest, inconsistencies, residency_of
from storm import CONFIG, ENGINE, PROMPTS, Storm
from topas.sglang.cache import PrefixCache
from topas.sglang.prefix_copy import PrefixStore

if TYPE_CHECKING:
    import pytest
    from driving import Expected, Start, Ticks
    from engine import InProcessEngine

PASSES = 900 if VERSION >= (0, 5, 23) else 300  # in each loop
#: Steps of residency, and how often they fail.
STEPS = [(PrefixCache, name, 0.03) for name in ("allocate", "lock", "drop")]
STEPS += [(PrefixStore, name, 0.03) for name in ("load", "save", "place")]
STEPS += [(PrefixCache, "match", 0.002)]  # of the bridge too, which then falls back


class Faults:
    """Lets steps fail at random, before they do anything.

    Parameters
    ----------
    patch
        Takes the place of the steps.
    seed
        Of the draws.
    """

    def __init__(self, patch: pytest.MonkeyPatch, seed: int) -> None:
        self.are_on = False
        self.seen: list[str] = []
        self._draw = random.Random(seed)
        for owner, name, share in STEPS:
            patch.setattr(owner, name, self._failing(name, getattr(owner, name), share))

    def _failing(self, name: str, method: Any, share: float) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            if self.are_on and self._draw.random() < share:
                self.seen.append(name)
                raise OSError("injected")
            return method(*args, **kwargs)

        return step


class Disturber:
    """Slow copies that fail at random; pins that give way; loads of either kind by turns.

    Parameters
    ----------
    patch
        Takes the place of the copying.
    engine
        The engine.
    seed
        Of the draws.
    """

    def __init__(self, patch: pytest.MonkeyPatch, engine: InProcessEngine, seed: int) -> None:
        self._draw = random.Random(seed)
        self._residency = residency_of(engine)
        self._leashes = [Leash(patch, direction) for direction in ("load", "save")]
        for leash in self._leashes:
            leash.delay_s = 0.005

    def __call__(self) -> None:
        """Between two passes."""
        draw = self._draw
        if draw.random() < 0.01:
            self._residency.give_way(())
        if draw.random() < 0.02:
            draw.choice(self._leashes).fails = 1
        if draw.random() < 0.1:
            when = {"layer_wise": draw.choice(["idle", "always", "always", "never"])}
            self._residency._settings = self._residency._settings.model_copy(update=when)


@LOOPS
def test_random_events_and_faults(
    drive: Start,
    expected: Expected,
    ticks: Ticks,
    monkeypatch: pytest.MonkeyPatch,
    overlap: bool,
) -> None:
    monkeypatch.setitem(PrefixStore.__init__.__kwdefaults__, "group_bytes", 1)
    right = expected([Asked(one.rid, one.prompt, one.new) for one in PROMPTS])
    engine = drive({**COPIES, **CONFIG}, disable_overlap_schedule=not overlap, **ENGINE)
    Tyrant(monkeypatch, seed=overlap, share=0.03)
    residency = residency_of(engine)
    disturb = Disturber(monkeypatch, engine, overlap)
    faults = Faults(monkeypatch, overlap)
    storm = Storm(engine, seed=20 + overlap, passes=PASSES)

    def on_pass(engine: InProcessEngine) -> bool:
        faults.are_on = False  # the test itself looks into the tree
        storm.wrong.extend(inconsistencies(engine))
        disturb()
        faults.are_on = True
        return storm.on_pass(engine)

    engine.run(on_pass, pass_limit=PASSES + 2000)
    faults.are_on = False
    ticks.now += 100.0  # the tasks that nobody finished expire
    engine.submit("end", tokens(1, 20), 2)
    engine.run(lambda e: len(residency_of(e)._flights) > 0, pass_limit=2000)
    engine.check_idle()
    storm.check(right)
    at_rest(engine)
    counts = residency.store.counts()
    assert counts.saves > 5
    assert counts.loads > 5
    assert counts.failures > 2
    assert residency._layers is not None
    assert residency._layers.overtaken > 0
    assert len(set(faults.seen)) > len(STEPS) / 2
    assert len(storm.answers) > PASSES / 8
