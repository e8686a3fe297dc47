"""What docs/sglang.md shows to those who fork SGLang is run as it stands there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

import engine
import pytest
from driving import submit_all, token_ids
from residents import EARLY, POOL, PREFIXES, Leash, load, trickle
from topas.sglang.prefix_copy import PrefixStore
from topas.sglang.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sglang.md"


def shown_class(settings: Settings) -> type:
    (text,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
        if "class TopasScheduler" in block
    )
    names: dict[str, type] = {}
    exec(compile(text, str(PAGE), "exec"), names)
    names["Settings"] = lambda: settings  # type: ignore[assignment]
    return names["TopasScheduler"]


def use_fork(patch: pytest.MonkeyPatch, settings: Settings) -> None:
    fork = shown_class(settings)
    # the harness looks at the signature to tell versions apart
    fork.__init__.__signature__ = inspect.signature(engine.Scheduler.__init__)
    patch.setattr(engine, "Scheduler", fork)


@pytest.mark.parametrize("overlap", [False, True], ids=["normal", "overlap"])
def test_a_fork_is_driven_by_the_same_bridge(
    start: Callable[..., engine.InProcessEngine], monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    def run() -> engine.InProcessEngine:
        running = start(disable_overlap_schedule=not overlap, max_total_tokens=600)
        submit_all(running, 16)
        running.run()
        running.check_idle()
        return running

    stock = token_ids(run())
    use_fork(monkeypatch, Settings())
    driven = run()
    assert token_ids(driven) == stock
    counts = driven.scheduler.topas.counts
    assert counts.admissions >= 16
    assert counts.tasks == 16
    assert not counts.fallbacks


def test_in_a_fork_prefixes_are_read_while_they_are_copied_in(
    start: Callable[..., engine.InProcessEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PrefixStore.__init__.__kwdefaults__, "group_bytes", 1)  # a layer a group

    def run(max_total_tokens: int) -> engine.InProcessEngine:
        running = start(max_total_tokens=max_total_tokens)
        running.run(trickle(load()))
        running.check_idle()
        return running

    stock = token_ids(run(2000))
    use_fork(monkeypatch, Settings(**EARLY))
    Leash(monkeypatch, "load").delay_s = 0.005
    forked = run(POOL)
    assert token_ids(forked) == stock
    residency = forked.scheduler.topas.residency
    assert residency.store.counts().loads >= len(PREFIXES)
    assert residency._layers.overtaken > 0
    assert not residency.failures
