"""Prefixes pinned, copied out and copied back on the real engine: the answers stay the same."""

from __future__ import annotations

import gc
import threading
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import driving
import pytest
from driving import Asked, bridge_of, tokens
from residents import (
    COPIES,
    LENGTH,
    POOL,
    PREFIXES,
    WHOLE,
    Leash,
    agree,
    array,
    at_rest,
    load,
    push_out,
    residency_of,
    serve,
    settle,
    trickle,
    warm,
)
from topas.errors import TopasError
from topas.sglang.cache import PrefixCache
from topas.sglang.plugin import PluginError

if TYPE_CHECKING:
    from pathlib import Path

    from engine import InProcessEngine

    Setup = dict[str, Any]


@pytest.mark.parametrize(
    "setup",
    [
        {},
        {"disable_overlap_schedule": False},
        {"chunked_prefill_size": 64},
        {"chunked_prefill_size": 64, "disable_overlap_schedule": False},
        {"max_total_tokens": 260},
        pytest.param(
            {"page_size": 16},
            marks=pytest.mark.skipif(driving.OLD, reason="pages need triton before 0.5.22"),
        ),
        pytest.param(
            {"page_size": 16, "disable_overlap_schedule": False, "chunked_prefill_size": 64},
            marks=pytest.mark.skipif(driving.OLD, reason="pages need triton before 0.5.22"),
        ),
    ],
    ids=lambda setup: "-".join(f"{k}={v}" for k, v in setup.items()) or "plain",
)
def test_restored_prefixes_give_the_same_answers(
    drive: driving.Start, expected: driving.Expected, setup: Setup
) -> None:
    asked = load()
    answers = expected(asked)
    engine = drive(COPIES, **{"max_total_tokens": POOL, **setup})
    assert serve(engine, asked) == answers
    residency = residency_of(engine)
    counts = residency.store.counts()
    assert counts.saves >= len(PREFIXES)
    assert counts.loads >= len(PREFIXES)
    assert not residency.failures
    assert residency.store.measured_bandwidth("load")


def test_answers_hang_on_the_copies(
    drive: driving.Start, expected: driving.Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = load()
    answers = expected(asked)
    Leash(monkeypatch, "load").spoils = True
    engine = drive(COPIES, max_total_tokens=POOL)
    outputs = serve(engine, asked)
    wrong = [rid for rid in outputs if outputs[rid] != answers[rid]]
    assert len(wrong) >= len(PREFIXES), "a spoilt copy went unnoticed"


def test_the_whole_prefix_is_cached_after_a_restore(drive: driving.Start) -> None:
    engine = drive(COPIES, max_total_tokens=POOL)
    warm(engine, PREFIXES[0], "a")
    assert residency_of(engine).store.counts().saves == 1
    push_out(engine)
    assert len(engine.cached_slots(PREFIXES[0])) < LENGTH
    engine.submit("b", PREFIXES[0] + tokens(5, 7), 4)
    engine.run()
    assert residency_of(engine).store.counts().loads == 1
    assert engine.outputs["b"].cached_tokens == LENGTH
    at_rest(engine)


def test_an_idle_prefix_stays_in_the_tree_and_is_pinned_again(drive: driving.Start) -> None:
    engine = drive(COPIES, max_total_tokens=POOL)
    warm(engine, PREFIXES[0], "a")
    engine.submit("b", PREFIXES[0] + tokens(5, 7), 4)
    seen: list[tuple[int, int]] = []
    engine.run(lambda e: seen.append(residency_of(e).pinned))
    assert engine.outputs["b"].cached_tokens == LENGTH
    assert max(seen) == (1, LENGTH)
    counts = residency_of(engine).store.counts()
    assert (counts.saves, counts.loads) == (1, 0)


def test_requests_wait_for_the_copy_and_others_go_on(
    drive: driving.Start, expected: driving.Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = [Asked(f"m{i}", PREFIXES[0] + tokens(i, 5), 6) for i in range(3)]
    other = Asked("z", PREFIXES[1] + tokens(50, 5), 20)
    answers = expected([*mine, other])
    leash = Leash(monkeypatch, "load")
    engine = drive(WHOLE, max_total_tokens=900)
    warm(engine, PREFIXES[0], "a")
    push_out(engine, 840)
    leash.go.clear()
    for one in [*mine, other]:
        one.submit_to(engine)
    transit: list[int] = []

    def on_pass(engine: InProcessEngine) -> None:
        agree(engine)
        transit.append(residency_of(engine)._cache.in_transit)
        done = engine.outputs["z"].finish is not None
        if not leash.go.is_set():
            assert all(not engine.outputs[one.rid].token_ids for one in mine)
            if done:
                leash.go.set()

    outputs = driving.finish(engine, on_pass)
    assert max(transit) == LENGTH, "the slots of the load were in transit, strict checks on"
    assert {rid: outputs[rid] for rid in answers} == answers
    assert [engine.outputs[one.rid].cached_tokens for one in mine] == [LENGTH] * 3
    at_rest(engine)


def test_strict_checks_would_see_slots_in_transit(
    drive: driving.Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topas.sglang.cache.PrefixCache.count_in_transit", lambda self: None)
    leash = Leash(monkeypatch, "load")
    engine = drive(WHOLE, max_total_tokens=900)
    warm(engine, PREFIXES[0], "a")
    push_out(engine, 840)
    leash.go.clear()
    engine.submit("m", PREFIXES[0] + tokens(1, 5), 4)
    engine.submit("z", PREFIXES[1] + tokens(2, 5), 4)
    try:
        with pytest.raises((AssertionError, ValueError), match=r"[Ll]eak"):
            engine.run(pass_limit=200)
    finally:
        leash.go.set()


def test_a_prefix_that_leaves_frees_its_slots_and_tails_at_once(drive: driving.Start) -> None:
    engine = drive(COPIES, max_total_tokens=2000)
    for name, prefix in zip("abc", PREFIXES, strict=False):
        warm(engine, prefix, name)
    cache = residency_of(engine)._cache
    allocator = engine.scheduler.token_to_kv_pool_allocator
    free = allocator.available_size()
    space = (None, None, None)
    tails = len(engine.cached_slots(PREFIXES[1] + tokens(0, 4))) - LENGTH
    assert tails > 0, "requests leave their ends in the tree"
    match = cache.match(array(PREFIXES[1]), space)
    lock = cache.lock(match)
    cache.drop(array(PREFIXES[1]), space)
    assert len(engine.cached_slots(PREFIXES[1])) == LENGTH, "it is locked"
    assert len(engine.cached_slots(PREFIXES[1] + tokens(0, 4))) == LENGTH, "its tails are not"
    cache.unlock(lock)
    cache.drop(array(PREFIXES[1]), space)
    assert len(engine.cached_slots(PREFIXES[1])) == 0
    for other in (0, 2):
        assert len(engine.cached_slots(PREFIXES[other])) == LENGTH
        assert len(engine.cached_slots(PREFIXES[other] + tokens(0, 4))) > LENGTH
    assert allocator.available_size() >= free + LENGTH + 2 * tails
    engine.check_idle()
    engine.submit("again", PREFIXES[1] + tokens(0, 4), 4)  # the tree is alive
    engine.run()
    at_rest(engine)


@pytest.mark.parametrize("at_once", [False, True])
def test_an_idle_prefix_is_freed_only_if_that_is_asked_for(
    drive: driving.Start, expected: driving.Expected, at_once: bool
) -> None:
    """The pool has room for all: without it a prefix that comes back is still in the tree."""
    asked = load(rounds=3, each=2)
    answers = expected(asked)
    copies = {**COPIES["prefix_copies"], "frees_at_once": at_once}
    engine = drive({"prefix_copies": copies}, max_total_tokens=2000)
    assert serve(engine, asked, at_once=1) == answers
    again = 2 * len(PREFIXES) if at_once else 0  # times that a prefix comes back
    assert residency_of(engine).store.counts().loads == again


def test_an_inner_node_is_never_evicted(drive: driving.Start) -> None:
    """Two prefixes with a common head: the head stays as long as one of them is locked."""
    head = tokens(60, 100)
    long, short = head + tokens(61, 92), head + tokens(62, 92)
    engine = drive(COPIES, max_total_tokens=2000)
    warm(engine, long, "a")
    warm(engine, short, "b")
    cache = residency_of(engine)._cache
    space = (None, None, None)
    lock = cache.lock(cache.match(array(long), space))
    cache.drop(array(head), space)  # an inner node, with a locked child and one that is not
    assert len(engine.cached_slots(long)) == LENGTH
    assert len(engine.cached_slots(short)) == len(head)
    cache.unlock(lock)
    cache.drop(array(long), space)
    assert len(engine.cached_slots(long)) == 0
    engine.check_idle()


@pytest.mark.parametrize(
    "field",
    [
        "extra_key",
        "lora_id",
        pytest.param(
            "cache_salt",
            marks=pytest.mark.skipif(driving.VERSION < (0, 5, 18), reason="from 0.5.18 on"),
        ),
    ],
)
def test_namespaces_do_not_share_copies(
    drive: driving.Start, adapters: dict[str, Path], field: str
) -> None:
    more = {"adapters": adapters} if field == "lora_id" else {}
    engine = drive(COPIES, max_total_tokens=POOL, **more)

    def ask(rid: str, space: str, end: int) -> None:
        engine.submit(rid, PREFIXES[0] + tokens(end, 4), 4, **{field: space})
        engine.run()

    for i in range(2):
        ask(f"x{i}", "a", i)
    settle(engine)
    push_out(engine)
    for i in range(2):
        ask(f"y{i}", "b", i)
    settle(engine)
    assert engine.outputs["y0"].cached_tokens == 0, "nothing of the other namespace's copy"
    counts = residency_of(engine).store.counts()
    assert (counts.saves, counts.loads) == (2, 0)
    push_out(engine)
    ask("x2", "a", 0)
    assert engine.outputs["x2"].cached_tokens == LENGTH
    assert residency_of(engine).store.counts().loads == 1
    assert engine.outputs["x2"].token_ids == engine.outputs["x0"].token_ids
    if field == "lora_id":
        assert engine.outputs["y0"].token_ids != engine.outputs["x0"].token_ids
    at_rest(engine)


def test_the_store_goes_with_its_scheduler(drive: driving.Start, start: driving.Start) -> None:
    engine = drive(COPIES, max_total_tokens=POOL)
    warm(engine, PREFIXES[0], "a")
    store = weakref.ref(residency_of(engine).store)
    assert [t for t in threading.enumerate() if t.name.startswith("topas-prefix")]
    del engine
    start(max_total_tokens=512)
    gc.collect()
    gc.collect()  # the store is in a cycle of its own
    assert store() is None
    assert not [t for t in threading.enumerate() if t.name.startswith("topas-prefix")]


def test_without_the_setting_nothing_is_pinned_or_copied(drive: driving.Start) -> None:
    engine = drive(max_total_tokens=POOL)
    driving.finish(engine, trickle(load(rounds=1)))
    assert type(bridge_of(engine).residency).__name__ == "NoCopies"
    assert engine.scheduler.tree_cache.protected_size() == 0
    assert not [t for t in threading.enumerate() if t.name.startswith("topas-prefix")]


def test_a_pool_that_cannot_be_copied_stops_the_start(
    drive: driving.Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "topas.sglang.cache.PrefixCache.pool", property(lambda self: type("OddPool", (), {})())
    )
    with pytest.raises(TopasError, match="OddPool is not supported"):
        drive(COPIES)


def test_a_tree_of_another_kind_stops_the_start(
    drive: driving.Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = type("OddRadixCache", (), {"disable": False})()
    reasons = PrefixCache.reasons_against_copies
    monkeypatch.setattr(
        PrefixCache,
        "reasons_against_copies",
        lambda self: reasons(PrefixCache(SimpleNamespace(tree_cache=odd))),
    )
    with pytest.raises(PluginError, match="prefix_copies with a prefix tree of type OddRadixCache"):
        drive(COPIES)
    drive()  # without copies it is fine
