"""The harness itself: what the other tests lean on is shown here, with its negative controls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import ranks
import tiny_model
from driving import LOOPS, OLD, PREFIXES, submit_all, token_ids, tokens

if TYPE_CHECKING:
    from pathlib import Path

    from driving import Start
    from engine import InProcessEngine


# ---- outputs ----


def run_all(start: Start, **server_args: Any) -> InProcessEngine:
    engine = start(**server_args)
    submit_all(engine)
    engine.run()
    engine.check_idle()
    return engine


def test_outputs_are_the_same_in_every_loop_and_engine(start: Start) -> None:
    engine = run_all(start)
    first = token_ids(engine)
    assert {rid: len(ids) for rid, ids in first.items()} == {
        f"r{i:02}": 10 + i % 4 for i in range(12)
    }
    assert len({tuple(ids[:8]) for ids in first.values()}) == 12, "the model must tell them apart"

    assert token_ids(run_all(start)) == first
    assert token_ids(run_all(start, disable_overlap_schedule=False)) == first
    assert token_ids(run_all(start, max_running_requests=2)) == first
    engine = start()
    submit_all(engine)
    while not engine.idle:
        engine.step()
    assert token_ids(engine) == first


@LOOPS
def test_the_loop_is_the_one_asked_for(start: Start, overlap: bool) -> None:
    engine = start(disable_overlap_schedule=not overlap)
    assert engine.scheduler.enable_overlap is overlap
    in_flight: list[int] = []
    engine.submit("a", tokens(1, 20), 6)
    engine.run(lambda e: in_flight.append(len(getattr(e.scheduler, "result_queue", ()))))
    assert max(in_flight) == int(overlap), "overlap has one result in flight between passes"


@LOOPS
def test_the_engine_retracts_and_the_output_stays(start: Start, overlap: bool) -> None:
    def run(**server_args: Any) -> InProcessEngine:
        engine = start(disable_overlap_schedule=not overlap, **server_args)

        def trickle(engine: InProcessEngine) -> bool:
            # One by one: SGLang reserves a new request's whole output, but of a running one that
            # may end early only a share.
            at = engine.passes - 1
            if at % 3 == 0 and at < 15:
                engine.submit(f"r{at}", tokens(at, 30), 60, sampling={"ignore_eos": False})
            return at < 15

        engine.run(trickle)
        engine.check_idle()
        return engine

    roomy = run()
    tight = run(max_total_tokens=300, schedule_conservativeness=0.05)
    assert {output.reason for output in roomy.outputs.values()} == {"length"}
    assert sum(output.retractions for output in roomy.outputs.values()) == 0
    assert sum(output.retractions for output in tight.outputs.values()) > 0
    assert token_ids(tight) == token_ids(roomy)


# ---- the prefix cache ----


@LOOPS
def test_a_prefix_hit_is_reported(start: Start, overlap: bool) -> None:
    engine = start(disable_overlap_schedule=not overlap)
    prompts = [PREFIXES[0] + tokens(7, 9), PREFIXES[0] + tokens(8, 9), PREFIXES[1] + tokens(8, 9)]
    for i, prompt in enumerate(prompts):
        engine.submit(f"r{i}", prompt, 6)
        engine.run()
    assert [engine.outputs[f"r{i}"].cached_tokens for i in range(3)] == [0, 96, 0]
    hit = engine.outputs["r1"].token_ids
    fresh = start()
    fresh.submit("r1", prompts[1], 6)
    fresh.run()
    assert fresh.outputs["r1"].cached_tokens == 0
    assert fresh.outputs["r1"].token_ids == hit


def test_a_fresh_engine_has_nothing_cached(start: Start) -> None:
    for _ in range(2):
        engine = start()
        engine.submit("a", PREFIXES[0] + [5], 3)
        engine.run()
        assert engine.outputs["a"].cached_tokens == 0


@pytest.mark.parametrize("victim", [0, 50, 95])
def test_one_corrupted_cached_token_changes_the_output(start: Start, victim: int) -> None:
    def second_output(corrupt: bool) -> list[int]:
        engine = start()
        engine.submit("a", PREFIXES[0] + tokens(7, 9), 4)
        engine.run()
        slots = engine.cached_slots(PREFIXES[0])
        assert len(slots) == 96
        if corrupt:
            cache = engine.scheduler.token_to_kv_pool_allocator.get_kvcache()
            for values in cache.v_buffer:
                values[slots[victim]] *= -4
        engine.submit("b", PREFIXES[0] + tokens(8, 9), 24)
        engine.run()
        assert engine.outputs["b"].cached_tokens == 96
        return engine.outputs["b"].token_ids

    assert second_output(corrupt=False) != second_output(corrupt=True)


@pytest.mark.skipif(OLD, reason="on a CPU, page_size > 1 needs SGLang 0.5.22 or later")
@LOOPS
def test_pages_of_sixteen_tokens(start: Start, overlap: bool) -> None:
    expected = token_ids(run_all(start))
    engine = run_all(start, page_size=16, disable_overlap_schedule=not overlap)
    assert token_ids(engine) == expected
    engine.submit("again", [*PREFIXES[0][:90], 5], 3)
    engine.run()
    assert engine.outputs["again"].cached_tokens == 80


@LOOPS
@pytest.mark.parametrize("mixed", [False, True], ids=["chunked", "mixed"])
def test_chunked_prefill(start: Start, overlap: bool, mixed: bool) -> None:
    expected = token_ids(run_all(start))
    engine = run_all(
        start,
        chunked_prefill_size=64,
        enable_mixed_chunk=mixed,
        disable_overlap_schedule=not overlap,
    )
    assert token_ids(engine) == expected


def test_adapters_and_extra_keys_share_no_prefix(start: Start, tmp_path: Path) -> None:
    adapters = {
        name: tiny_model.write_adapter(tmp_path / name, seed=i) for i, name in enumerate("ab")
    }
    engine = start(adapters=adapters, max_loras_per_batch=3)
    asked: dict[str, dict[str, Any]] = {
        "plain": {},
        "a1": {"lora_id": "a"},
        "b": {"lora_id": "b"},
        "a2": {"lora_id": "a"},
    }
    asked |= {"x": {"extra_key": "x"}, "x2": {"extra_key": "x"}}
    for rid, fields in asked.items():
        engine.submit(rid, [*PREFIXES[0], 7], 6, **fields)
        engine.run()
    assert {rid: output.cached_tokens for rid, output in engine.outputs.items()} == {
        "plain": 0,
        "a1": 0,
        "b": 0,
        "a2": 96,
        "x": 0,
        "x2": 96,
    }
    got = token_ids(engine)
    assert got["a1"] == got["a2"]
    assert got["plain"] == got["x"] == got["x2"]
    assert len({tuple(got[rid]) for rid in ("plain", "a1", "b")}) == 3
    engine.check_idle()


@pytest.mark.skipif(OLD, reason="on a CPU, grammars need SGLang 0.5.22 or later")
def test_a_grammar_shapes_the_output(start: Start) -> None:
    engine = start(grammar_backend="xgrammar", skip_tokenizer_init=False)
    digits = {ord(character) + 2 for character in "0123456789"}
    sampling = {"regex": "[0-9]{6}", "ignore_eos": False}
    engine.submit("grammar", tokens(1, 20), 12, sampling=sampling)
    engine.submit("plain", tokens(1, 20), 12)
    engine.run()
    assert engine.outputs["grammar"].reason == "stop"
    assert len(engine.outputs["plain"].token_ids) == 12
    assert set(engine.outputs["grammar"].token_ids[:6]) <= digits
    engine.check_idle()


# ---- requests ----


def test_custom_params_reach_the_request(start: Start) -> None:
    engine = start()
    hints = {"agent_hints": '{"workflow_id": "w1", "agent_id": "coder"}', "flat": {"stage": 2}}
    engine.submit("a", tokens(1, 8), 3, hints, session_id="s1", routing_key="k1", extra_key="x")
    seen: list[tuple[Any, ...]] = []

    def look(engine: InProcessEngine) -> None:
        for req in engine.scheduler.running_batch.reqs:
            # up to 0.5.21 SGLang adds the request itself, as "__req__"
            sent = {key: req.sampling_params.custom_params[key] for key in hints}
            seen.append((sent, req.session_id, req.routing_key, req.extra_key))

    engine.run(look)
    assert (hints, "s1", "k1", "x") in seen


@LOOPS
def test_aborts_of_queued_and_running_requests(start: Start, overlap: bool) -> None:
    engine = start(disable_overlap_schedule=not overlap, max_running_requests=2)
    for rid in ("running", "stays", "queued"):
        engine.submit(rid, PREFIXES[0] + tokens(len(rid), 4), 20)

    def on_pass(engine: InProcessEngine) -> None:
        if engine.passes == 5:
            assert [req.rid for req in engine.scheduler.waiting_queue] == ["queued"]
            engine.abort("running")
            engine.abort("queued")

    engine.run(on_pass)
    assert {rid: output.reason for rid, output in engine.outputs.items()} == {
        "running": "abort",
        "stays": "length",
        "queued": "abort",
    }
    assert 0 < len(engine.outputs["running"].token_ids) < 20
    engine.check_idle()


def test_everything_can_be_aborted(start: Start) -> None:
    engine = start(max_running_requests=2)
    submit_all(engine, 5)
    engine.step()
    engine.abort(everything=True)
    engine.run()
    assert {output.reason for output in engine.outputs.values()} == {"abort"}
    engine.check_idle()


# ---- checks that must be able to fail ----


def test_the_pool_is_whole_at_idle(start: Start) -> None:
    engine = run_all(start)
    allocator, tree = engine.scheduler.token_to_kv_pool_allocator, engine.scheduler.tree_cache
    assert allocator.available_size() + tree.evictable_size() == 4096
    assert tree.evictable_size() > 3 * 96


def test_a_leaked_token_is_noticed_at_idle(start: Start) -> None:
    engine = run_all(start)
    engine.scheduler.token_to_kv_pool_allocator.alloc(1)
    with pytest.raises(ValueError, match="leak"):
        engine.check_idle()


@LOOPS
def test_a_leaked_token_is_noticed_while_busy(start: Start, overlap: bool) -> None:
    engine = start(disable_overlap_schedule=not overlap)
    submit_all(engine)

    def leak(engine: InProcessEngine) -> None:
        if engine.passes == 4:
            engine.scheduler.token_to_kv_pool_allocator.alloc(1)

    with pytest.raises(AssertionError, match="Leak"):
        engine.run(leak)


def run_on_rank(engine: InProcessEngine) -> tuple[dict[str, list[int]], int]:
    if engine.rank == 0:
        submit_all(engine, 5)
    engine.run()
    engine.check_idle()
    return token_ids(engine), engine.scheduler.forward_ct


def fail_on_rank_1(engine: InProcessEngine) -> None:
    if engine.rank == 1:
        raise ValueError("a bad rank")
    engine.run(lambda _engine: True)


def test_two_ranks_agree_with_one(start: Start, model: Path) -> None:
    alone = start()
    submit_all(alone, 5)
    alone.run()
    (first, passes), (second, same_passes) = ranks.run_ranks(run_on_rank, model_path=str(model))
    assert first == second == token_ids(alone)
    assert passes == same_passes > 0


def test_a_rank_that_fails_is_reported(model: Path) -> None:
    with pytest.raises(RuntimeError, match=r"rank 1: (.|\n)*a bad rank"):
        ranks.run_ranks(fail_on_rank_1, model_path=str(model))


def test_an_engine_with_requests_left_is_not_idle(start: Start) -> None:
    engine = start()
    engine.submit("a", tokens(1, 8), 4)
    with pytest.raises(AssertionError, match="requests are left"):
        engine.check_idle()
    engine.step()
    assert not engine.idle


def test_a_run_without_end_is_stopped_and_can_go_on(start: Start) -> None:
    engine = start()
    with pytest.raises(RuntimeError, match="no end after 50 passes"):
        engine.run(lambda _engine: True, pass_limit=50)
    engine.submit("a", tokens(1, 8), 4)
    engine.run()
    assert engine.outputs["a"].reason == "length"


def test_a_failed_start_leaves_room_for_another(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object) -> None:
        raise ValueError("refused")

    with monkeypatch.context() as patch:
        # one of the last things a scheduler makes
        patch.setattr("sglang.srt.managers.scheduler.Scheduler.init_output_streamer", refuse)
        with pytest.raises(ValueError, match="refused"):
            start()
    engine = start()
    engine.submit("a", tokens(1, 8), 4)
    engine.run()
    assert engine.outputs["a"].reason == "length"
