"""Topas drives the real engine: outputs stay, also of preempted requests, and nothing is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from driving import (
    LOOPS,
    OLD,
    PREFIXES,
    VERSION,
    Asked,
    Tyrant,
    always_due,
    bridge_of,
    entries,
    finish,
    load,
    token_ids,
    tokens,
)
from topas.sglang.bridge import Bridge
from topas.sglang.roster import Roster
from topas.sglang.view import View

if TYPE_CHECKING:
    from pathlib import Path

    from driving import Expected, Start
    from engine import InProcessEngine
    from topas.sglang.metrics import Counts
    from topas.sglang.roster import Entry

PAGED = pytest.mark.skipif(OLD, reason="on a CPU, page_size > 1 needs SGLang 0.5.22 or later")
GRAMMAR = pytest.mark.skipif(OLD, reason="on a CPU, grammars need SGLang 0.5.22 or later")
TIGHT: dict[str, Any] = {"max_total_tokens": 600}
CHUNKED = {**TIGHT, "chunked_prefill_size": 64}
#: Requests replace each other all the time: the published score without the guard, ageing fast.
RESTLESS = {
    "preset": "paper",
    "policy": {"age_scale_s": 0.02, "age_weight": 2.0, "swap_bytes_per_s": 1e9},
}


# ---- outputs ----


@LOOPS
@pytest.mark.parametrize(
    ("server_args", "config"),
    [
        pytest.param({}, None, id="roomy"),
        pytest.param(TIGHT, None, id="tight"),
        pytest.param(TIGHT, {"preset": "paper"}, id="paper"),
        pytest.param(TIGHT, {"policy": {"action_cap": 2}}, id="capped"),
        pytest.param({"max_running_requests": 1}, None, id="one by one"),
        pytest.param(CHUNKED, None, id="chunked"),
        pytest.param({**CHUNKED, "enable_mixed_chunk": True}, None, id="mixed"),
        pytest.param({"page_size": 16, "max_total_tokens": 640}, None, id="paged", marks=PAGED),
    ],
)
def test_outputs_are_those_of_stock_sglang(
    drive: Start, expected: Expected, overlap: bool, server_args: dict[str, Any], config: Any
) -> None:
    asked = load(12, 10)
    right = expected(asked)
    engine = drive(config, disable_overlap_schedule=not overlap, **server_args)
    for one in asked:
        one.submit_to(engine)
    assert finish(engine) == right
    counts = bridge_of(engine).counts
    assert counts.admissions >= len(asked)
    assert counts.tasks == len(asked)


@LOOPS
def test_adapters_keys_and_salts_share_no_prefix(
    start: Start, drive: Start, adapters: dict[str, Path], overlap: bool
) -> None:
    spaces: list[dict[str, Any]] = [{}, {"extra_key": "x"}, {"lora_id": "a"}, {"lora_id": "b"}]
    spaces.append({"lora_id": "a", "extra_key": "x"})
    if VERSION >= (0, 5, 18):
        spaces.append({"cache_salt": "s"})
    asked = [
        Asked(f"{at}{name}", PREFIXES[0] + tokens(at, 7), 6, fields)
        for at, name in enumerate(["first", "second", "third"])
        for fields in spaces
        for name in [f"{name} {fields}"]
    ]

    def run(build: Start) -> InProcessEngine:
        engine = build(
            adapters=adapters, max_loras_per_batch=3, disable_overlap_schedule=not overlap
        )
        for one in asked:
            one.submit_to(engine)
            if one.rid.startswith("0"):
                engine.run()  # the first of each space, alone
        return engine

    stock = run(start)
    stock.run()
    right = token_ids(stock)
    cached = {rid: output.cached_tokens for rid, output in stock.outputs.items()}
    assert len({tuple(ids) for rid, ids in right.items() if rid.startswith("0")}) == 3
    engine = run(drive)
    agents: set[str] = set()

    def look(_: InProcessEngine) -> None:
        live = bridge_of(engine).ledger._live
        agents.update(live[entry.id].agent for entry in entries(engine).values())

    assert finish(engine, look) == right
    assert {rid: output.cached_tokens for rid, output in engine.outputs.items()} == cached
    assert {rid: n for rid, n in cached.items() if rid.startswith("0")} == {
        one.rid: 0 for one in asked[: len(spaces)]
    }
    assert len(agents) == len(spaces), "one agent for the shared head of each space"


@GRAMMAR
@LOOPS
def test_grammars_shape_the_same_outputs(start: Start, drive: Start, overlap: bool) -> None:
    options = {"grammar_backend": "xgrammar", "skip_tokenizer_init": False, **TIGHT}

    def submit(engine: InProcessEngine) -> None:
        for i in range(10):
            sampling: dict[str, Any] = {"ignore_eos": False}
            if i % 2:
                sampling["regex"] = f"[0-9]{{{3 + i}}}[a-f]*z"
            engine.submit(f"r{i}", PREFIXES[i % 3] + tokens(i, 9), 14, sampling=sampling)

    stock = start(**options)
    submit(stock)
    stock.run()
    engine = drive(disable_overlap_schedule=not overlap, **options)
    submit(engine)
    assert finish(engine) == token_ids(stock)
    assert bridge_of(engine).counts.admissions >= 10


@LOOPS
def test_parallel_samples_of_one_prompt(drive: Start, expected: Expected, overlap: bool) -> None:
    """As the tokenizer process sends them: the prompt once without output, then n times."""
    prompt = PREFIXES[0] + tokens(5, 12)
    hints = {"agent_hints": {"workflow_id": "t", "agent_id": "coder"}}
    right = expected([Asked("s0", prompt, 9)])["s0"]
    engine = drive(disable_overlap_schedule=not overlap, **TIGHT)
    engine.submit("prompt", prompt, 0, hints)
    engine.run()
    for i in range(6):
        engine.submit(f"s{i}", prompt, 9, hints)
    outputs = finish(engine)
    assert [outputs[f"s{i}"] for i in range(6)] == [right] * 6
    assert engine.outputs["s5"].cached_tokens >= 96


# ---- preempted requests ----


def _passes_until_readmission(patch: pytest.MonkeyPatch, counts: Counts) -> list[int]:
    """Return a list that grows: how long after it was thrown out each request was admitted."""
    thrown_out: dict[str, int] = {}
    apart: list[int] = []
    release, start = View.release, Roster.start

    def released(view: View, batch: Any, victims: Any) -> None:
        thrown_out.update({req.rid: counts.passes for req in victims})
        release(view, batch, victims)

    def started(roster: Roster, entry: Entry) -> None:
        if entry.req.rid in thrown_out:
            apart.append(counts.passes - thrown_out.pop(entry.req.rid))
        start(roster, entry)

    patch.setattr(View, "release", released)
    patch.setattr(Roster, "start", started)
    return apart


@LOOPS
@pytest.mark.parametrize(
    "server_args",
    [
        pytest.param({"max_total_tokens": 900}, id="plain"),
        pytest.param(CHUNKED, id="chunked"),
        pytest.param({**CHUNKED, "enable_mixed_chunk": True}, id="mixed"),
        pytest.param({"page_size": 16, "max_total_tokens": 960}, id="paged", marks=PAGED),
    ],
)
def test_preempted_requests_keep_their_outputs(
    drive: Start,
    expected: Expected,
    monkeypatch: pytest.MonkeyPatch,
    overlap: bool,
    server_args: dict[str, Any],
) -> None:
    asked = load(18, 20)
    right = expected(asked)
    engine = drive(disable_overlap_schedule=not overlap, **server_args)
    counts = bridge_of(engine).counts
    apart = _passes_until_readmission(monkeypatch, counts)
    Tyrant(monkeypatch, seed=overlap, share=0.15)
    for one in asked:
        one.submit_to(engine)
    assert finish(engine, always_due) == right
    thrown_out = sum(output.retractions for output in engine.outputs.values())
    assert counts.preemptions >= thrown_out >= len(apart) > 30
    assert min(apart) == 1, "never in the pass that threw it out"


@LOOPS
def test_the_policy_itself_preempts_and_all_outputs_stay(
    drive: Start, expected: Expected, overlap: bool
) -> None:
    asked = load(24, 24)
    right = expected(asked)
    engine = drive(RESTLESS, disable_overlap_schedule=not overlap, **TIGHT)

    def trickle(engine: InProcessEngine) -> bool:
        if engine.passes % 4 == 1 and len(engine.outputs) < len(asked):
            asked[len(engine.outputs)].submit_to(engine)
        return len(engine.outputs) < len(asked)

    assert finish(engine, trickle) == right
    assert sum(output.retractions for output in engine.outputs.values()) > 5


class _Hasty:
    """Shows SGLang the victims again in the pass that throws them out, which is the mistake."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        plan, shown, requeue = Bridge._plan, Bridge._shown, View.requeue
        victims: list[Any] = []

        def planned(bridge: Bridge, *args: Any) -> list[Any]:
            victims[:] = plan(bridge, *args)
            return list(victims)

        def also_shown(bridge: Bridge, *args: Any) -> list[Any]:
            return [*shown(bridge, *args), *victims]

        def requeued(view: View, req: Any) -> None:
            if req.is_retracted:  # SGLang has not admitted it again
                requeue(view, req)

        patch.setattr(Bridge, "_plan", planned)
        patch.setattr(Bridge, "_shown", also_shown)
        patch.setattr(View, "requeue", requeued)


@LOOPS
def test_readmission_in_the_same_pass_corrupts_outputs_with_overlap(
    drive: Start, expected: Expected, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    """The negative control: the tests of preemption see the corruption that they guard against."""
    asked = load(18, 20)
    right = expected(asked)
    engine = drive(disable_overlap_schedule=not overlap, max_total_tokens=900)
    Tyrant(monkeypatch, share=0.15)
    _Hasty(monkeypatch)
    for one in asked:
        one.submit_to(engine)
    engine.run(always_due)
    got = token_ids(engine)
    wrong = [rid for rid in right if got[rid] != right[rid]]
    assert bool(wrong) is overlap
