"""What docs/sglang.md shows to those who fork SGLang is run as it stands there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

import engine
import pytest
from driving import submit_all, token_ids

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sglang.md"


def shown_class() -> type:
    (text,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
        if "class TopasScheduler" in block
    )
    names: dict[str, type] = {}
    exec(compile(text, str(PAGE), "exec"), names)
    return names["TopasScheduler"]


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
    fork = shown_class()
    # the harness looks at the signature to tell versions apart
    fork.__init__.__signature__ = inspect.signature(engine.Scheduler.__init__)
    monkeypatch.setattr(engine, "Scheduler", fork)
    driven = run()
    assert token_ids(driven) == stock
    counts = driven.scheduler.topas.counts
    assert counts.admissions >= 16
    assert counts.tasks == 16
    assert not counts.fallbacks
