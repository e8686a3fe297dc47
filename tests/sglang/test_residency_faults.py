"""What must not go wrong with pinned and copied prefixes: traps, and a fault at each step."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import driving
import pytest
from driving import LOOPS, Asked, Tyrant, bridge_of, tokens
from residents import (
    COPIES,
    EARLY,
    LENGTH,
    POOL,
    PREFIXES,
    RESTLESS,
    WHOLE,
    Leash,
    agree,
    all_of,
    at_rest,
    inconsistencies,
    load,
    push_out,
    residency_of,
    serve,
    settle,
    trickle,
    warm,
)
from topas.sglang import residency
from topas.sglang.cache import PrefixCache
from topas.sglang.ledger import Ledger
from topas.sglang.prefix_copy import PrefixStore, Residency
from topas.sglang.view import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine import InProcessEngine


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Leash:
    return Leash(monkeypatch, "load")


@pytest.fixture
def saves(monkeypatch: pytest.MonkeyPatch) -> Leash:
    return Leash(monkeypatch, "save")


def until_loading(engine: InProcessEngine) -> None:
    """Step until a prefix is being loaded."""
    for _ in range(50):
        engine.step()
        if residency_of(engine).loading[0]:
            return
    raise AssertionError("nothing is loaded")


def on_host(engine: InProcessEngine) -> list[str]:
    return [s.value for s in residency_of(engine).store.agents().values()]


# ---- flushes and aborts


def test_a_flush_forgets_pins_and_copies(drive: driving.Start, saves: Leash) -> None:
    engine = drive(COPIES, max_total_tokens=POOL)
    saves.go.clear()
    for i in range(2):
        engine.submit(f"a{i}", PREFIXES[0] + tokens(i, 4), 4)
        engine.run()
    assert residency_of(engine).pinned == (1, LENGTH), "until it is saved"
    threading.Timer(0.1, saves.go.set).start()
    assert engine.scheduler.flush_cache()
    assert residency_of(engine).pinned == (0, 0)
    assert on_host(engine) == []
    at_rest(engine)
    warm(engine, PREFIXES[0], "b")
    assert engine.outputs["b0"].cached_tokens == 0
    assert engine.outputs["b1"].cached_tokens == LENGTH
    at_rest(engine)


def loading_for_m(drive: driving.Start, loads: Leash) -> InProcessEngine:
    """Start an engine; the first prefix is being loaded, for request m, until ``loads.go``."""
    engine = drive(WHOLE, max_total_tokens=POOL)
    warm(engine, PREFIXES[0], "a")
    push_out(engine)
    loads.go.clear()
    engine.submit("m", PREFIXES[0] + tokens(1, 5), 4)
    until_loading(engine)
    return engine


def test_a_flush_that_sglang_refuses_changes_nothing(drive: driving.Start, loads: Leash) -> None:
    engine = loading_for_m(drive, loads)
    assert not engine.scheduler.flush_cache()
    assert residency_of(engine).loading == (1, LENGTH)
    loads.go.set()
    engine.run()
    assert engine.outputs["m"].cached_tokens == LENGTH
    at_rest(engine)


def test_a_flush_while_a_prefix_is_loaded(drive: driving.Start, loads: Leash) -> None:
    engine = loading_for_m(drive, loads)
    engine.abort("m")
    engine.scheduler.process_input_requests(engine.scheduler.request_receiver.recv_requests())
    assert residency_of(engine).loading == (1, LENGTH), "nobody has looked yet"
    threading.Timer(0.1, loads.go.set).start()
    assert engine.scheduler.flush_cache()
    assert on_host(engine) == []
    at_rest(engine)
    engine.submit("n", PREFIXES[0] + tokens(1, 5), 4)
    engine.run()
    assert engine.outputs["n"].cached_tokens == 0
    at_rest(engine)


def test_an_abort_of_the_request_whose_prefix_loads(drive: driving.Start, loads: Leash) -> None:
    engine = drive(WHOLE, max_total_tokens=900)
    warm(engine, PREFIXES[0], "a")
    push_out(engine, 840)
    loads.go.clear()
    engine.submit("m", PREFIXES[0] + tokens(1, 5), 4)
    engine.submit("z", PREFIXES[1] + tokens(2, 5), 12)
    until_loading(engine)
    engine.abort("m")
    threading.Timer(0.1, loads.go.set).start()
    driving.finish(engine, agree)
    assert engine.outputs["m"].reason == "abort"
    assert len(engine.outputs["z"].token_ids) == 12
    assert set(on_host(engine)) <= {"on host"}
    at_rest(engine)


def test_somebody_computes_the_prefix_while_it_is_loaded(
    drive: driving.Start, expected: driving.Expected, loads: Leash
) -> None:
    """The tree keeps its own slots, and those of the load are free again."""
    one = Asked("m", PREFIXES[0] + tokens(1, 5), 6)
    name = {"custom_params": {"agent_hints": {"agent_id": "new"}}}  # its prefix is not known yet
    other = Asked("z", PREFIXES[0] + tokens(2, 5), 6, name)
    answers = expected([one, other])
    engine = drive(WHOLE, max_total_tokens=900)
    warm(engine, PREFIXES[0], "a")
    push_out(engine, 840)
    loads.go.clear()
    one.submit_to(engine)
    until_loading(engine)
    other.submit_to(engine)

    def on_pass(engine: InProcessEngine) -> None:
        agree(engine)
        if engine.outputs[other.rid].finish is not None:
            loads.go.set()

    outputs = driving.finish(engine, on_pass)
    assert {rid: outputs[rid] for rid in answers} == answers
    assert engine.outputs["z"].cached_tokens == 0
    assert engine.outputs["m"].cached_tokens == LENGTH
    at_rest(engine)


# ---- prefixes that change


def test_a_prefix_that_turns_out_shorter(drive: driving.Start, expected: driving.Expected) -> None:
    long = PREFIXES[0]
    asked = [Asked(f"a{i}", long + tokens(i, 6), 10) for i in range(4)]
    asked += [Asked(f"b{i}", long[:128] + tokens(30 + i, 70), 10) for i in range(4)]
    asked += [Asked(f"c{i}", long + tokens(60 + i, 6), 10) for i in range(3)]
    answers = expected(asked)
    engine = drive(COPIES, max_total_tokens=POOL)
    assert serve(engine, asked, at_once=2) == answers
    settle(engine)
    store = residency_of(engine).store
    assert [store.length(key) for key in store.agents()] == [128]
    at_rest(engine)


# ---- room


def test_a_running_request_gets_the_room_of_a_load(
    drive: driving.Start,
    expected: driving.Expected,
    loads: Leash,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It generates more than was reserved: without the room SGLang would have to abort it."""
    free = {"sampling": {"ignore_eos": False}}
    long = Asked("long", PREFIXES[1] + tokens(3, 5), 300, free)
    short = Asked("m", PREFIXES[0] + tokens(1, 5), 6)
    answers = expected([long, short])
    assert len(answers["long"]) == 300, "another seed: this one ends early"
    engine = drive(WHOLE, max_total_tokens=620)
    warm(engine, PREFIXES[0], "a")
    push_out(engine, 560)
    loads.go.clear()
    long.submit_to(engine)
    for _ in range(3):
        engine.step()
    short.submit_to(engine)
    until_loading(engine)
    give_way = residency.Residency.give_way

    def giving(self: residency.Residency, *args: Any) -> None:
        loads.go.set()  # the copy ends only when it is called off
        give_way(self, *args)

    monkeypatch.setattr(residency.Residency, "give_way", giving)
    outputs = driving.finish(engine, agree)
    assert {rid: outputs[rid] for rid in answers} == answers
    assert residency_of(engine).gave_way >= 1
    assert engine.outputs["long"].retractions == 0
    at_rest(engine)


@LOOPS
def test_evicting_and_restoring_comes_to_an_end(
    drive: driving.Start, expected: driving.Expected, overlap: bool
) -> None:
    """The pool has room for one prefix; each is restored at most once for each of its requests."""
    asked = load(rounds=4, each=2)
    answers = expected(asked)
    engine = drive(COPIES, max_total_tokens=LENGTH + 48, disable_overlap_schedule=not overlap)
    assert serve(engine, asked, 3) == answers
    assert len(PREFIXES) <= residency_of(engine).store.counts().loads <= len(asked)


def test_everything_gives_way_now_and_then(
    drive: driving.Start, expected: driving.Expected
) -> None:
    asked = load()
    answers = expected(asked)
    engine = drive(COPIES, max_total_tokens=POOL)

    def give_way(engine: InProcessEngine) -> None:
        if engine.passes % 7 == 0:
            residency_of(engine).give_way(())

    assert serve(engine, asked, 6, give_way) == answers
    assert residency_of(engine).gave_way > 5


def test_host_memory_for_one_prefix_only(drive: driving.Start, expected: driving.Expected) -> None:
    asked = load()
    answers = expected(asked)
    engine = drive(COPIES, max_total_tokens=POOL)
    size = LENGTH * residency_of(engine).buffers.bytes_per_token
    engine = drive({"prefix_copies": {"host_bytes": 2 * size}}, max_total_tokens=POOL)
    assert serve(engine, asked) == answers
    assert residency_of(engine).store.counts().host_evictions > 0
    engine = drive({"prefix_copies": {"host_bytes": size // 2}}, max_total_tokens=POOL)
    assert serve(engine, asked) == answers
    assert residency_of(engine).failures["CapacityError"] > 0
    assert residency_of(engine).store.counts().saves == 0


# ---- disturbed


@LOOPS
def test_preemptions_and_aborts(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    overlap: bool,
) -> None:
    asked = load(rounds=4, new=12)
    answers = expected(asked)
    engine = drive(
        {**COPIES, "policy": {"age_scale_s": 0.1, "action_cap": 4}},
        max_total_tokens=POOL,
        disable_overlap_schedule=not overlap,
    )
    tyrant = Tyrant(monkeypatch, seed=3, share=0.05)
    gone: set[str] = set()

    def abort(engine: InProcessEngine) -> None:
        live = [rid for rid, output in engine.outputs.items() if output.finish is None]
        if live and engine.passes % 11 == 0:
            gone.add(live[-1])
            engine.abort(live[-1])

    outputs = serve(engine, asked, 8, abort)
    assert tyrant.thrown_out > 3
    assert len(gone) > 3
    for rid, ids in outputs.items():
        assert ids == (answers[rid][: len(ids)] if rid in gone else answers[rid]), rid
    assert residency_of(engine).store.counts().loads > 0


@LOOPS
def test_fallbacks_keep_pins_and_pool_consistent(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    overlap: bool,
) -> None:
    asked = load()
    answers = expected(asked)
    engine = drive(COPIES, max_total_tokens=POOL, disable_overlap_schedule=not overlap)
    decide = Ledger.decide
    calls = 0

    def failing(self: Ledger, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 9 == 0:
            raise ArithmeticError("no decision")
        return decide(self, *args)

    monkeypatch.setattr(Ledger, "decide", failing)
    outputs = driving.finish(
        engine, all_of(trickle(asked), lambda e: _consistent(e)), fallbacks=True
    )
    at_rest(engine)
    assert outputs == answers
    assert residency_of(engine).store.counts().loads > 0


def _consistent(engine: InProcessEngine) -> None:
    assert inconsistencies(engine) == []


# ---- a fault at each step


def _now_and_then(method: Callable[..., Any], after: bool) -> Callable[..., Any]:
    """Fail every third time, before or after the method has done its work."""
    calls = 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        result = method(*args, **kwargs) if after or calls % 3 else None
        if calls % 3 == 0:
            raise OSError("injected")
        return result

    return failing


FAULTS: list[tuple[Any, str, bool]] = [
    (PrefixCache, "allocate", False),
    (PrefixCache, "lock", False),
    (PrefixCache, "slots", False),
    (PrefixCache, "drop", False),
    (PrefixCache, "drop", True),
    (PrefixStore, "load", False),
    (PrefixStore, "save", False),
    (PrefixStore, "place", False),
]


BOTH_WAYS = pytest.mark.parametrize("copies", [WHOLE, EARLY], ids=["whole", "early"])


@BOTH_WAYS
@pytest.mark.parametrize(
    ("owner", "name", "after"),
    FAULTS,
    ids=[f"{o.__name__}.{n}{'-after' * a}" for o, n, a in FAULTS],
)
def test_a_step_that_raises(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    after: bool,
    copies: dict[str, Any],
) -> None:
    asked = load()
    answers = expected(asked)
    engine = drive({**RESTLESS, **copies}, max_total_tokens=POOL)
    monkeypatch.setattr(owner, name, _now_and_then(getattr(owner, name), after))
    assert serve(engine, asked) == answers
    assert residency_of(engine).failures["OSError"] > 0
    assert not bridge_of(engine).counts.fallbacks


@BOTH_WAYS
def test_a_pass_that_raises_before_anything_is_decided(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    copies: dict[str, Any],
) -> None:
    asked = load()
    answers = expected(asked)
    engine = drive({**RESTLESS, **copies}, max_total_tokens=POOL)
    land = residency.Residency.land
    monkeypatch.setattr(residency.Residency, "land", _now_and_then(land, after=False))
    outputs = driving.finish(engine, trickle(asked), fallbacks=True)
    settle(engine)
    assert outputs == answers
    assert bridge_of(engine).counts.fallbacks["OSError"] > 0


def test_a_batch_whose_prompts_cannot_be_told_waits_for_whole_prefixes(
    drive: driving.Start, expected: driving.Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = load()
    answers = expected(asked)
    engine = drive(EARLY, max_total_tokens=POOL)
    Leash(monkeypatch, "load").delay_s = 0.02
    monkeypatch.setattr(View, "prompts", _now_and_then(View.prompts, after=False))
    assert serve(engine, asked) == answers
    assert residency_of(engine).failures["OSError"] > 0
    assert residency_of(engine).store.counts().loads >= len(PREFIXES)


def test_a_flush_that_raises_in_topas(
    drive: driving.Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = drive(COPIES, max_total_tokens=POOL)
    warm(engine, PREFIXES[0], "a")

    def flush(*_: Any) -> None:
        raise OSError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(PrefixStore, "flush", flush)
        assert engine.scheduler.flush_cache()
    assert residency_of(engine).pinned == (0, 0)
    engine.submit("b", PREFIXES[0] + tokens(7, 4), 4)
    engine.run()
    assert engine.outputs["b"].cached_tokens == 0
    assert bridge_of(engine).counts.fallbacks["OSError"] == 1
    at_rest(engine)


@BOTH_WAYS
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_insert_that_raises(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    after: bool,
    copies: dict[str, Any],
) -> None:
    """Whatever the tree has taken before it raised stays there; the rest is free."""
    asked = load()
    answers = expected(asked)
    engine = drive(copies, max_total_tokens=POOL)
    Leash(monkeypatch, "load").delay_s = 0.005
    insert = PrefixCache.insert
    tree = engine.scheduler.tree_cache
    faulty = _now_and_then(tree.insert, after)

    def inserting(self: PrefixCache, *args: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(tree, "insert", faulty)
            insert(self, *args)

    monkeypatch.setattr(PrefixCache, "insert", inserting)
    assert serve(engine, asked) == answers
    assert residency_of(engine).failures["OSError"] > 0


@pytest.mark.parametrize("direction", ["load", "save"])
def test_copies_that_fail(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    direction: str,
) -> None:
    asked = load(rounds=4)
    answers = expected(asked)
    engine = drive(COPIES, max_total_tokens=POOL)
    leash = Leash(monkeypatch, direction)
    leash.fails = 2
    assert serve(engine, asked) == answers
    store = residency_of(engine).store
    assert residency_of(engine).failures["CopyError"] == store.counts().failures == 2
    assert store.counts().loads > 0, "it went on after that"
    assert all(state is Residency.HOST for state in store.agents().values())


@LOOPS
def test_what_the_core_gives_up_is_free_at_once(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    overlap: bool,
) -> None:
    """After its requests are preempted: they lock it until then."""
    asked = load(rounds=4, new=20)
    answers = expected(asked)
    engine = drive(
        {**RESTLESS, **COPIES}, max_total_tokens=POOL, disable_overlap_schedule=not overlap
    )
    drop, match = PrefixCache.drop, PrefixCache.match
    left: list[int] = []

    def dropped(self: PrefixCache, *prefix: Any) -> None:
        drop(self, *prefix)
        left.append(match(self, *prefix).length)

    monkeypatch.setattr(PrefixCache, "drop", dropped)
    assert serve(engine, asked, 12) == answers
    assert left
    assert left.count(0) > 0.9 * len(left), left
