"""Requests that start while their prefix is copied in: the answers stay the same."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import driving
import pytest
from driving import LOOPS, Asked, bridge_of, tokens
from residents import (
    COPIES,
    EARLY,
    LENGTH,
    POOL,
    PREFIXES,
    Leash,
    agree,
    at_rest,
    load,
    push_out,
    residency_of,
    serve,
    settle,
    trickle,
    warm,
)
from topas.sglang.layers import LayerWaits
from topas.sglang.prefix_copy import PrefixStore, Residency
from topas.sglang.prefix_copy.backends import CpuLane

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine import InProcessEngine

    Setup = dict[str, Any]

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def _one_layer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PrefixStore.__init__.__kwdefaults__, "group_bytes", 1)


def layers_of(engine: InProcessEngine) -> LayerWaits:
    """Return what forward passes ask before they read a layer."""
    layers = residency_of(engine)._layers
    assert layers is not None
    return layers


def pool_of(engine: InProcessEngine) -> Any:
    return engine.scheduler.token_to_kv_pool_allocator.get_kvcache()


def first_on_host(engine: InProcessEngine) -> None:
    """Have the first prefix restored once, so that layers are trusted, and pushed out again."""
    warm(engine, PREFIXES[0], "a")
    push_out(engine)
    engine.submit("b", PREFIXES[0] + tokens(3, 4), 4)
    engine.run()
    settle(engine)
    assert layers_of(engine).is_proven
    push_out(engine)
    assert len(engine.cached_slots(PREFIXES[0])) < LENGTH


class Race:
    """Writes down which layers are copied and read, and holds layer 1 back until 0 was read.

    Parameters
    ----------
    patch
        Takes the places of both.
    engine
        Whose pool is watched.
    """

    def __init__(self, patch: pytest.MonkeyPatch, engine: InProcessEngine) -> None:
        self.seen: list[tuple[str, int]] = []
        self.then: Callable[[Any], None] = lambda lane: None  # before layer 1 is copied
        read_first = threading.Event()
        copy_group, get_key = CpuLane.copy_group, pool_of(engine).get_key_buffer

        def copied(lane: Any, index: int) -> Any:
            if lane._job.direction == "load" and index == 1:
                assert read_first.wait(PATIENCE_S), "layer 0 is not read before layer 1 is copied"
                self.then(lane)
            mark = copy_group(lane, index)
            self.seen.append(("copied", index))
            return mark

        def read(layer: int) -> Any:
            buffer = get_key(layer)
            self.seen.append(("read", layer))
            read_first.set()
            return buffer

        patch.setattr(CpuLane, "copy_group", copied)
        patch.setattr(pool_of(engine), "get_key_buffer", read)


def ask(engine: InProcessEngine, one: Asked, cached: int | None = LENGTH) -> list[int]:
    """Have one request served alone, and return its answer."""
    one.submit_to(engine)
    engine.run(pass_limit=driving.PASSES)
    assert cached in (None, engine.outputs[one.rid].cached_tokens)
    return engine.outputs[one.rid].token_ids


ONE = Asked("m", PREFIXES[0] + tokens(1, 5), 6)


@LOOPS
def test_the_first_layer_is_read_before_the_last_is_copied(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    overlap: bool,
) -> None:
    answers = expected([ONE])
    engine = drive(COPIES, max_total_tokens=POOL, disable_overlap_schedule=not overlap)
    first_on_host(engine)
    race = Race(monkeypatch, engine)
    assert ask(engine, ONE) == answers["m"]
    assert race.seen[:4] == [("copied", 0), ("read", 0), ("copied", 1), ("read", 1)]
    assert layers_of(engine).overtaken >= 1
    at_rest(engine)


@pytest.mark.parametrize(
    "setup",
    [
        {},
        {"disable_overlap_schedule": False},
        {"chunked_prefill_size": 64, "disable_overlap_schedule": False},
        {"chunked_prefill_size": 64, "enable_mixed_chunk": True},
        {"max_total_tokens": 260},
        pytest.param(
            {"page_size": 16, "disable_overlap_schedule": False},
            marks=pytest.mark.skipif(driving.OLD, reason="pages need triton before 0.5.22"),
        ),
    ],
    ids=lambda setup: "-".join(f"{k}={v}" for k, v in setup.items()) or "plain",
)
def test_slow_copies_are_overtaken_and_the_answers_stay(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    setup: Setup,
) -> None:
    asked = load()
    answers = expected(asked)
    engine = drive(EARLY, **{"max_total_tokens": POOL, **setup})
    Leash(monkeypatch, "load").delay_s = 0.005
    assert serve(engine, asked) == answers
    residency = residency_of(engine)
    assert residency.store.counts().loads >= len(PREFIXES)
    assert not residency.failures
    assert layers_of(engine).overtaken > 0


def test_a_spoilt_layer_changes_the_answers(
    drive: driving.Start, expected: driving.Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = load()
    answers = expected(asked)
    copy_group = CpuLane.copy_group

    def copied(lane: Any, index: int) -> Any:
        if lane._job.direction == "load" and index == 1:
            lane._job.host.memory[index].zero_()
        return copy_group(lane, index)

    monkeypatch.setattr(CpuLane, "copy_group", copied)
    outputs = serve(drive(EARLY, max_total_tokens=POOL), asked)
    assert sum(outputs[rid] != answers[rid] for rid in outputs) >= len(PREFIXES)


def test_without_the_waits_the_answers_are_wrong(
    drive: driving.Start, expected: driving.Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = load()
    answers = expected(asked)
    engine = drive(EARLY, max_total_tokens=POOL)
    Leash(monkeypatch, "load").delay_s = 0.2
    monkeypatch.setattr(LayerWaits, "_wait", lambda *_: None)
    outputs = driving.finish(engine, trickle(asked))
    settle(engine)
    assert sum(outputs[rid] != answers[rid] for rid in outputs) >= len(PREFIXES)


def test_the_whole_is_waited_for_where_attention_asks_for_no_layer(
    drive: driving.Start, expected: driving.Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = load()
    answers = expected(asked)
    engine = drive(EARLY, max_total_tokens=POOL)
    Leash(monkeypatch, "load").delay_s = 0.02
    for kind, buffers in (("key", pool_of(engine).k_buffer), ("value", pool_of(engine).v_buffer)):
        monkeypatch.setattr(pool_of(engine), f"get_{kind}_buffer", buffers.__getitem__)
    assert serve(engine, asked) == answers
    assert residency_of(engine).store.counts().loads >= len(PREFIXES)
    assert not layers_of(engine).is_proven
    assert layers_of(engine).overtaken == 0


# ---- who waits


def is_through(engine: InProcessEngine, rid: str) -> bool:
    return rid in engine.outputs and engine.outputs[rid].finish is not None


def hide(
    engine: InProcessEngine, patch: pytest.MonkeyPatch, rid: str, until: Callable[[], bool]
) -> None:
    """Let SGLang not see a request that it may admit."""
    leaders = bridge_of(engine)._leaders
    select = leaders.select

    def selected(planned: Any) -> Any:
        return [entry for entry in select(planned) if entry.req.rid != rid or until()]

    patch.setattr(leaders, "select", selected)


def test_others_decode_while_the_whole_is_waited_for(
    drive: driving.Start, expected: driving.Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``idle`` a prefix is in transit while somebody runs."""
    other = Asked("z", PREFIXES[1] + tokens(50, 5), 20)
    answers = expected([ONE, other])
    engine = drive(COPIES, max_total_tokens=900)
    warm(engine, PREFIXES[0], "a")
    push_out(engine, 840)
    leash = Leash(monkeypatch, "load")
    leash.go.clear()
    other.submit_to(engine)
    for _ in range(3):
        engine.step()
    ONE.submit_to(engine)
    seen: list[int] = []

    def on_pass(engine: InProcessEngine) -> None:
        agree(engine)
        seen.append(residency_of(engine)._cache.in_transit)
        if engine.outputs["z"].finish is not None:
            leash.go.set()

    outputs = driving.finish(engine, on_pass)
    assert max(seen) == LENGTH
    assert {rid: outputs[rid] for rid in answers} == answers
    at_rest(engine)


@LOOPS
def test_a_batch_that_reads_other_prefixes_waits_for_nothing(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    overlap: bool,
) -> None:
    """The copy is held until a request that is none of its own has been served."""
    other = Asked("z", PREFIXES[1] + tokens(50, 5), 12)
    answers = expected([ONE, other])
    engine = drive(EARLY, max_total_tokens=900, disable_overlap_schedule=not overlap)
    warm(engine, PREFIXES[0], "a")
    push_out(engine, 840)
    leash = Leash(monkeypatch, "load")
    leash.go.clear()
    ONE.submit_to(engine)
    hide(engine, monkeypatch, "m", until=lambda: is_through(engine, "z"))
    served: list[bool] = []

    def on_pass(engine: InProcessEngine) -> None:
        agree(engine)
        if residency_of(engine).loading[0] and "z" not in engine.outputs:
            other.submit_to(engine)
        if is_through(engine, "z"):
            served.append(leash.go.is_set())
            leash.go.set()

    outputs = driving.finish(engine, on_pass)
    assert served[0] is False
    assert {rid: outputs[rid] for rid in answers} == answers
    assert engine.outputs["m"].cached_tokens == LENGTH
    at_rest(engine)


@pytest.mark.parametrize("decodes_wait", [True, False])
def test_who_computes_a_prefix_itself_is_handed_over_to_one_that_arrives(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    decodes_wait: bool,
) -> None:
    """It comes between launch and result of the prompt: the decodes have to wait for it.

    SGLang then finds the prefix in the tree, and lets the request go on with the slots there.
    """
    name = {"custom_params": {"agent_hints": {"agent_id": "new"}}}  # its prefix is not known yet
    other = Asked("z", PREFIXES[0] + tokens(2, 60), 6, name)
    answers = expected([ONE, other])
    engine = drive(EARLY, max_total_tokens=900, disable_overlap_schedule=False)
    warm(engine, PREFIXES[0], "a")
    push_out(engine, 840)
    leash = Leash(monkeypatch, "load")
    leash.delay_s = 0.3
    other.submit_to(engine)
    mine: list[int] = []

    def on_pass(engine: InProcessEngine) -> None:
        agree(engine)
        if not mine and "z" in driving.entries(engine) and driving.entries(engine)["z"].running:
            mine.append(engine.passes)
            ONE.submit_to(engine)

    hide(engine, monkeypatch, "m", until=lambda: is_through(engine, "z"))
    loads = driving.spy(monkeypatch, PrefixStore, "load")
    launch = LayerWaits.launch

    def launched(self: LayerWaits, batch: Any, prompts: Any, is_decode: bool) -> None:
        launch(self, batch, prompts if decodes_wait or not is_decode else [], is_decode)

    monkeypatch.setattr(LayerWaits, "launch", launched)
    outputs = driving.finish(engine, on_pass)
    assert [skip for _, _, skip, _ in loads] == [0], "while nothing of it is in the tree"
    assert outputs["m"] == answers["m"]
    assert (outputs["z"] == answers["z"]) is decodes_wait
    settle(engine)
    at_rest(engine)


# ---- prefixes with a common head


HEAD = tokens(60, 100)
TWINS = [HEAD + tokens(61, 92), HEAD + tokens(62, 92)]


def of_twin(at: int, rid: str, seed: int) -> Asked:
    """Return a request of one of two agents whose prefixes have a common head."""
    name = {"custom_params": {"agent_hints": {"agent_id": f"twin {at}"}}}
    return Asked(rid, TWINS[at] + tokens(seed, 5), 6, name)


def test_what_the_tree_has_of_a_prefix_is_not_written_again(
    drive: driving.Start, expected: driving.Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [of_twin(i // 3 % 2, f"r{i:02}", 200 + i) for i in range(18)]
    answers = expected(asked)
    engine = drive(EARLY, max_total_tokens=270)
    loads = driving.spy(monkeypatch, PrefixStore, "load")
    Leash(monkeypatch, "load").delay_s = 0.005
    assert serve(engine, asked, 3) == answers
    assert len(HEAD) in [skip for _, _, skip, is_shared in loads if is_shared]


def test_who_reads_a_head_waits_for_the_prefix_that_brings_it(
    drive: driving.Start, expected: driving.Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both twins arrive; the copy that has the head fails, and only the other one is read."""
    asked = [of_twin(at, f"m{at}", 5 + at) for at in range(2)]
    answers = expected(asked)
    engine = drive(EARLY, max_total_tokens=700)
    for i in range(4):
        ask(engine, of_twin(i // 2, f"a{i}", 20 + i), None)
    settle(engine)
    push_out(engine, 640)
    leash = Leash(monkeypatch, "load")
    leash.go.clear()
    for one in asked:
        one.submit_to(engine)
    shown = bridge_of(engine)._leaders.select
    first: list[str] = []

    def select(planned: Any) -> Any:
        """SGLang sees only one of the twins at a time, the one that came with less first."""
        arriving = sorted(layers_of(engine)._arriving.values(), key=lambda one: -one.skip)
        if len(arriving) == 2 and not first:
            assert [one.skip for one in arriving] == [len(HEAD), 0]
            last = int(arriving[0].tokens.tolist() == TWINS[1])
            first.append(f"m{last}")
            leash.fails = 1
            leash.go.set()
            settle_loads(engine)
        entries = shown(planned)
        done = first and engine.outputs[first[0]].finish is not None
        return entries if done else [e for e in entries if first and e.req.rid == first[0]]

    monkeypatch.setattr(bridge_of(engine)._leaders, "select", select)
    mended = driving.spy(monkeypatch, PrefixStore, "mend")
    outputs = driving.finish(engine, agree)
    assert first
    assert {rid: outputs[rid] for rid in answers} == answers
    assert len(mended) == 1
    settle(engine)
    at_rest(engine)


def settle_loads(engine: InProcessEngine) -> None:
    for arrival in layers_of(engine)._arriving.values():
        arrival.transfer.settle()


# ---- faults


@LOOPS
@pytest.mark.parametrize("layer", [0, 1])
def test_a_copy_that_fails_is_made_again_by_the_pass_that_reads_it(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    overlap: bool,
    layer: int,
) -> None:
    """The second layer fails when the pass has read the first."""
    answers = expected([ONE])
    engine = drive(COPIES, max_total_tokens=POOL, disable_overlap_schedule=not overlap)
    first_on_host(engine)
    mended: list[int] = []
    mend = PrefixStore.mend

    def mending(store: PrefixStore, key: str) -> None:
        mended.append(layers_of(engine).consumer_index)
        mend(store, key)

    monkeypatch.setattr(PrefixStore, "mend", mending)
    if layer == 0:
        Leash(monkeypatch, "load").fails = 1
    else:
        Race(monkeypatch, engine).then = _bus_is_gone
    assert ask(engine, ONE) == answers["m"]
    assert len(mended) == 1
    assert mended[0] >= 0, "in the forward pass"
    residency = residency_of(engine)
    settle(engine)
    assert residency.failures["CopyError"] == residency.store.counts().failures == 1
    at_rest(engine)
    push_out(engine)
    monkeypatch.undo()
    again = Asked("n", ONE.prompt, ONE.new)
    assert ask(engine, again) == answers["m"], "it can be restored after that"


def _bus_is_gone(lane: Any) -> None:
    raise OSError("the bus is gone")


@LOOPS
def test_every_third_copy_fails(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    overlap: bool,
) -> None:
    asked = load()
    answers = expected(asked)
    engine = drive(EARLY, max_total_tokens=POOL, disable_overlap_schedule=not overlap)
    copy_group = CpuLane.copy_group
    calls = 0

    def copied(lane: Any, index: int) -> Any:
        nonlocal calls
        calls += lane._job.direction == "load"
        if calls % 3 == 0 and lane._job.direction == "load":
            raise OSError("the bus is gone")
        return copy_group(lane, index)

    monkeypatch.setattr(CpuLane, "copy_group", copied)
    assert serve(engine, asked) == answers
    residency = residency_of(engine)
    assert residency.failures["CopyError"] == residency.store.counts().failures >= 2
    assert all(state is Residency.HOST for state in residency.store.agents().values())


def test_a_pass_without_its_prefix_gives_no_answer(
    drive: driving.Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy fails twice: the pass raises, as for any error of the device."""
    engine = drive(COPIES, max_total_tokens=POOL)
    first_on_host(engine)
    Leash(monkeypatch, "load").fails = 1
    monkeypatch.setattr(PrefixStore, "mend", _bus_is_gone_for_good)
    ONE.submit_to(engine)
    with pytest.raises(RuntimeError, match="gone for good"):
        engine.run()
    assert engine.outputs["m"].token_ids == []


def _bus_is_gone_for_good(store: PrefixStore, key: str) -> None:
    raise RuntimeError("gone for good")


def test_a_copy_that_nobody_reads_and_that_cannot_be_made_again(
    drive: driving.Start, expected: driving.Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays locked and torn, until somebody reads it or it leaves."""
    answers = expected([ONE])
    engine = drive(COPIES, max_total_tokens=POOL)
    first_on_host(engine)
    leash = Leash(monkeypatch, "load")
    leash.fails = 1
    mend = PrefixStore.mend
    failed: list[str] = []

    def mending(store: PrefixStore, key: str) -> None:
        if not failed:
            failed.append(key)
            raise RuntimeError("not now")
        mend(store, key)

    monkeypatch.setattr(PrefixStore, "mend", mending)
    hide(engine, monkeypatch, "m", until=lambda: bool(failed))
    outputs = _answers_of(engine, [ONE])
    assert failed
    assert residency_of(engine).failures["RuntimeError"] == 1
    assert outputs["m"] == answers["m"]
    at_rest(engine)


def _answers_of(engine: InProcessEngine, asked: list[Asked]) -> dict[str, list[int]]:
    for one in asked:
        one.submit_to(engine)
    engine.run(pass_limit=driving.PASSES)
    engine.check_idle()
    return driving.token_ids(engine)


# ---- aborts, flushes, room


def arriving(
    drive: driving.Start, leash: Leash, patch: pytest.MonkeyPatch, *, steps: int = 50
) -> InProcessEngine:
    """Start an engine; the first prefix arrives for a request that SGLang does not see yet."""
    engine = drive(COPIES, max_total_tokens=POOL)
    first_on_host(engine)
    leash.go.clear()
    hide(engine, patch, "m", until=leash.go.is_set)
    ONE.submit_to(engine)
    for _ in range(steps):
        engine.step()
        if residency_of(engine).loading[0]:
            assert residency_of(engine).pinned == residency_of(engine).loading == (1, LENGTH)
            return engine
    raise AssertionError("nothing arrives")


def test_an_abort_while_the_prefix_arrives(
    drive: driving.Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    leash = Leash(monkeypatch, "load")
    engine = arriving(drive, leash, monkeypatch)
    engine.abort("m")
    threading.Timer(0.1, leash.go.set).start()
    driving.finish(engine, agree)
    assert engine.outputs["m"].reason == "abort"
    settle(engine)
    at_rest(engine)


@LOOPS
def test_aborts_of_requests_that_read_prefixes_under_way(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    overlap: bool,
) -> None:
    asked = load(rounds=4, new=12)
    answers = expected(asked)
    engine = drive(EARLY, max_total_tokens=POOL, disable_overlap_schedule=not overlap)
    driving.Tyrant(monkeypatch, seed=3, share=0.05)
    Leash(monkeypatch, "load").delay_s = 0.005
    gone: set[str] = set()

    def abort(engine: InProcessEngine) -> None:
        live = [rid for rid, output in engine.outputs.items() if output.finish is None]
        if live and residency_of(engine).loading[0] and engine.passes % 3 == 0:
            gone.add(live[0])
            engine.abort(live[0])

    outputs = serve(engine, asked, 8, abort)
    assert gone
    for rid, ids in outputs.items():
        assert ids == (answers[rid][: len(ids)] if rid in gone else answers[rid]), rid


@pytest.mark.parametrize("fails", [False, True], ids=["goes on", "fails"])
def test_a_flush_while_a_prefix_arrives(
    drive: driving.Start, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    leash = Leash(monkeypatch, "load")
    engine = arriving(drive, leash, monkeypatch)
    engine.abort("m")
    engine.scheduler.process_input_requests(engine.scheduler.request_receiver.recv_requests())
    assert residency_of(engine).loading == (1, LENGTH), "nobody has looked yet"
    leash.fails = int(fails)
    threading.Timer(0.1, leash.go.set).start()
    assert engine.scheduler.flush_cache()
    residency = residency_of(engine)
    assert residency.store.agents() == {}
    assert residency.loading == residency.pinned == (0, 0)
    assert residency.store.host_bytes_used == 0
    at_rest(engine)
    engine.submit("n", ONE.prompt, 4)
    engine.run()
    assert engine.outputs["n"].cached_tokens == 0
    at_rest(engine)


@pytest.mark.parametrize("fails", [False, True], ids=["goes on", "fails"])
def test_one_that_arrives_is_given_up_when_it_is_whole(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    fails: bool,
) -> None:
    answers = expected([ONE])
    leash = Leash(monkeypatch, "load")
    engine = arriving(drive, leash, monkeypatch)
    leash.fails = int(fails)
    threading.Timer(0.1, leash.go.set).start()
    gave_way = residency_of(engine).gave_way
    residency_of(engine).give_way(())
    assert residency_of(engine).gave_way == gave_way + 1
    assert residency_of(engine).pinned == (0, 0)
    assert len(engine.cached_slots(PREFIXES[0])) == LENGTH
    engine.run()
    assert engine.outputs["m"].token_ids == answers["m"]
    assert engine.outputs["m"].cached_tokens == LENGTH
    at_rest(engine)


# ---- engines that cannot


def test_a_pool_without_the_hook_is_loaded_as_a_whole(
    drive: driving.Start,
    expected: driving.Expected,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from sglang.srt.mem_cache.memory_pool import KVCache

    asked = load(rounds=2)
    answers = expected(asked)
    monkeypatch.delattr(KVCache, "register_layer_transfer_counter")
    with caplog.at_level(logging.WARNING, "topas"):
        engine = drive(EARLY, max_total_tokens=POOL)
    assert "loaded as a whole before they are used: MHATokenToKVPool has no" in caplog.text
    assert serve(engine, asked) == answers
    assert residency_of(engine)._layers is None
    assert residency_of(engine).store.counts().loads >= len(PREFIXES)


def test_where_nobody_tells_of_batches_prefixes_are_loaded_as_a_whole(
    drive: driving.Start, expected: driving.Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = load()
    answers = expected(asked)
    monkeypatch.setattr(LayerWaits, "launch", lambda *_: None)
    engine = drive(EARLY, max_total_tokens=POOL)
    Leash(monkeypatch, "load").delay_s = 0.02
    assert serve(engine, asked) == answers
    assert residency_of(engine).store.counts().loads >= len(PREFIXES)
    assert layers_of(engine).overtaken == 0


def test_captured_prefills_read_whole_prefixes(drive: driving.Start) -> None:
    engine = drive(EARLY, max_total_tokens=POOL)
    view = bridge_of(engine).view
    assert view.reason_against_layer_waits() is None
    runner = engine.scheduler.tp_worker.model_runner
    for is_full in (False, True):
        runner.prefill_cuda_graph_runner = SimpleNamespace(_is_full_backend=is_full)
        assert bool(view.reason_against_layer_waits()) is is_full
