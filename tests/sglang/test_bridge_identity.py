"""Real requests with hints and without: who they are to the core, and that all of it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from driving import LOOPS, PREFIXES, VERSION, bridge_of, entries, finish, left_over, spy, tokens
from topas.sglang.ledger import Ledger

if TYPE_CHECKING:
    from driving import Start, Ticks
    from engine import InProcessEngine
    from topas.sglang.hints import Hints

CHAIN = {
    "name": "chain",
    "stages": [
        {"name": "plan", "agent": "planner"},
        {"name": "code", "agent": "coder", "after": ["plan"]},
        {"name": "test", "agent": "tester", "after": ["code"]},
    ],
}
FORK = {
    "name": "fork",
    "stages": [
        {"name": "s", "agent": "planner"},
        {"name": "x", "agent": "coder", "after": ["s"]},
        {"name": "y", "agent": "tester", "after": ["s"]},
        {"name": "j", "agent": "planner", "after": ["x", "y"]},
    ],
}
SYSTEM = dict(zip(("planner", "coder", "tester"), PREFIXES, strict=True))


def step(stage: str, task: str = "t", workflow: str = "chain", **more: Any) -> dict[str, Any]:
    """Return ``custom_params`` of a request of a stage."""
    hints = {"workflow_id": task, "step_id": stage, "workflow": workflow, **more}
    return {"agent_hints": json.dumps(hints)}


def ask(engine: InProcessEngine, rid: str, agent: str, params: Any = None, **fields: Any) -> None:
    """Submit a request on an agent's system prompt."""
    engine.submit(
        rid, SYSTEM[agent] + tokens(int.from_bytes(rid.encode(), "big"), 6), 4, params, **fields
    )


def agents(engine: InProcessEngine) -> dict[str, str]:
    """Return the agents of live requests."""
    ledger = bridge_of(engine).ledger
    return {rid: ledger.agent_of(entry.id) for rid, entry in entries(engine).items()}


# ---- carriers ----


def _kv_hints(payload: dict[str, Any]) -> Any:
    from sglang.srt.managers.kv_hints import decode_kv_hints_envelope

    action = {
        "action_id": "1",
        "action_type": "topas.meta",
        "action_version": "1",
        "payload": payload,
    }
    other = {**action, "action_type": "other", "payload": {"workflow_id": "wrong"}}
    return decode_kv_hints_envelope(
        {"protocol_version": "0.1", "message_id": "m", "actions": [other, action]}
    )


WHO = {"workflow_id": "t", "agent_id": "coder", "step_id": "s"}


def test_every_carrier_reaches_the_ledger(drive: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = drive()
    arrived = spy(monkeypatch, Ledger, "arrived")
    sent: dict[str, dict[str, Any]] = {
        "text": {"custom_params": {"agent_hints": json.dumps(WHO)}},
        "object": {"custom_params": {"agent_hints": WHO}},
        "key": {"routing_key": "t/coder/s"},
        "key object": {"routing_key": json.dumps(WHO)},
    }
    if VERSION >= (0, 5, 21):
        sent["kv_hints"] = {"kv_hints": _kv_hints(WHO)}
    for rid, fields in sent.items():
        engine.submit(rid, tokens(1, 20), 2, **fields)
    engine.submit("session", tokens(1, 20), 2, session_id="t")
    engine.submit("program", tokens(1, 20), 2, {"program_id": "t", "is_last_step": "true"})
    engine.submit("nobody", tokens(1, 20), 2)
    engine.submit("both", tokens(1, 20), 2, {"agent_hints": WHO}, session_id="u")
    finish(engine)
    hints: dict[str, Hints] = dict(
        zip(engine.outputs, (arrival.hints for _, arrival in arrived), strict=True)
    )
    for rid in [*sent, "both"]:
        assert (hints[rid].task, hints[rid].agent, hints[rid].stage) == ("t", "coder", "s"), rid
        assert hints[rid].source == "agent_hints"
    assert (hints["session"].source, hints["session"].task) == ("session", "t")
    assert (hints["program"].source, hints["program"].finishes_task) == ("program", True)
    assert hints["nobody"].source == "none"


def test_bad_hints_are_counted_and_change_nothing(drive: Start, ticks: Ticks) -> None:
    engine = drive()
    bad: list[Any] = [
        None,
        {"agent_hints": "{"},
        {"agent_hints": json.dumps({"workflow_id": [1], "agent_id": True, "step_id": 1 << 63})},
        {"agent_hints": json.dumps({**WHO, "workflow": "unheard of"})},
        {"agent_hints": json.dumps({**WHO, "workflow_graph": {"name": "w", "stages": [1]}})},
        {"agent_hints": "[" * 100_000},
        {"nvext": 3, "vllm_xargs": "no"},
        {"agent_hints": {"workflow_graph": CHAIN, "workflow_id": "t", "step_id": "no such"}},
    ]
    for number, params in enumerate(bad):
        engine.submit(f"r{number}", tokens(1, 30), 6, params)
        engine.run()
    ticks.now += 1000.0  # the task of the last one ends
    engine.submit("end", tokens(1, 30), 6)
    outputs = finish(engine)
    assert all(ids == outputs["r0"] for ids in outputs.values())
    errors = bridge_of(engine).counts.hint_errors
    assert errors["bad_agent_hints"] == 2
    assert errors["unknown_workflow"] == 1
    assert {"bad_workflow_id", "bad_agent_id", "bad_step_id", "bad_nvext"} <= set(errors)
    assert {"bad_workflow_WorkflowError", "bad_workflow_UnknownId"} <= set(errors)


# ---- workflows ----


def play_chain(engine: InProcessEngine, task: str, **first: Any) -> None:
    """Run the three stages of a task, one after the other."""
    ask(engine, f"{task}1", "planner", step("plan", task, **first))
    engine.run()
    assert bridge_of(engine).ledger.tasks == 1, "it goes on"
    ask(engine, f"{task}2", "coder", step("code", task))
    engine.run()
    ask(engine, f"{task}3", "tester", step("test", task, finish=True))
    engine.run()


@LOOPS
@pytest.mark.parametrize("known_by", ["file", "first request"])
def test_a_workflow_known_by(drive: Start, overlap: bool, known_by: str) -> None:
    config = {"workflows": [CHAIN]} if known_by == "file" else None
    engine = drive(config, disable_overlap_schedule=not overlap)
    bridge = bridge_of(engine)
    ended: list[tuple[str | None, float]] = []
    bridge.counts.task_ended = lambda *args: ended.append(args)  # type: ignore[method-assign]
    bridge.ledger._on_task_end = bridge.counts.task_ended
    first = {} if known_by == "file" else {"workflow_graph": CHAIN}
    for task in "tu":
        play_chain(engine, task, **first)
        assert left_over(engine) == {}
    finish(engine)
    assert [name for name, _ in ended] == ["chain", "chain"]
    assert all(0.1 < seconds < 10 for _, seconds in ended)
    assert bridge.counts.hint_errors == {}
    named = bridge.core.snapshot(1e9).to_dict()["agents"]
    lengths = {agent["id"]: agent["prefix_tokens"] for agent in named}
    assert {lengths[bridge.ledger.agents.key((None, None, None), name)] for name in SYSTEM} == {96}


def test_a_fork_and_its_join(drive: Start) -> None:
    engine = drive({"workflows": [FORK]})
    bridge = bridge_of(engine)
    ask(engine, "s", "planner", step("s", workflow="fork"))
    engine.run()
    ask(engine, "x", "coder", step("x", workflow="fork"))
    ask(engine, "yy", "tester", step("y", workflow="fork"))
    engine.step()
    stages = {live.stage for live in bridge.ledger._live.values()}
    assert stages == {"x", "y"}
    engine.run()
    ask(engine, "j", "planner", step("j", workflow="fork", finish=True))
    finish(engine)
    assert bridge.counts.tasks == 1
    assert bridge.counts.hint_errors == {}


def test_stages_that_are_skipped_end(drive: Start) -> None:
    engine = drive({"workflows": [CHAIN]})
    ask(engine, "1", "planner", step("plan"))
    engine.run()
    ask(engine, "3", "tester", step("test", finish=True))
    finish(engine)
    assert bridge_of(engine).counts.tasks == 1
    assert bridge_of(engine).counts.hint_errors == {}


def test_a_task_that_nobody_finishes_expires(drive: Start, ticks: Ticks) -> None:
    engine = drive({"workflows": [CHAIN], "idle_expiry_s": 60.0})
    bridge = bridge_of(engine)
    ask(engine, "1", "planner", step("plan", "lost"))
    engine.run()
    ticks.now += 50.0
    ask(engine, "2", "planner", step("plan", "kept"))
    engine.run()
    assert bridge.ledger.tasks == 2
    ticks.now += 30.0
    engine.submit("any", tokens(1, 20), 4)  # time does not pass in an idle engine
    engine.run()
    assert bridge.ledger.tasks == 1
    assert bridge.core.usage().tasks == 1
    ticks.now += 100.0
    engine.submit("other", tokens(1, 20), 4)
    finish(engine)


@LOOPS
def test_a_retry_with_the_same_id_is_a_request_of_its_own(drive: Start, overlap: bool) -> None:
    engine = drive({"workflows": [CHAIN]}, disable_overlap_schedule=not overlap)
    outputs = []
    for round_ in range(3):
        ask(engine, "same", "planner", step("plan"))

        def interrupt(engine: InProcessEngine, at: int = engine.passes + 3) -> bool:
            if engine.passes == at:
                engine.abort("same")
            return engine.passes < at

        engine.run(interrupt if round_ == 0 else None)
        outputs.append((engine.outputs["same"].reason, engine.outputs["same"].token_ids))
        assert entries(engine) == {}
    assert outputs[0][0] == "abort"
    assert outputs[1] == outputs[2]
    assert outputs[1][0] == "length"
    ask(engine, "end", "tester", step("test", finish=True))
    finish(engine)
    assert bridge_of(engine).counts.hint_errors == {}


# ---- without hints ----


def test_without_hints_the_shared_head_is_the_agent(drive: Start) -> None:
    engine = drive()
    seen: dict[str, str] = {}
    for i in range(3):
        for at, prefix in enumerate(PREFIXES):
            engine.submit(f"{at}{i}", prefix + tokens(10 * at + i, 8), 3)
        if i == 0:  # the first of each, alone
            engine.run(lambda engine: seen.update(agents(engine)))
    engine.submit("own", tokens(77, 90), 3)
    engine.submit("short", PREFIXES[0][:40], 3)
    finish(engine, lambda engine: seen.update(agents(engine)))
    ledger = bridge_of(engine).ledger
    private = seen["own"]
    assert seen["short"] == seen["00"] == private, "a head is an agent once it is shared"
    assert {ledger.agents.tokens(seen[f"{at}2"]) for at in range(3)} == {96}
    assert len({seen[f"{at}2"] for at in range(3)} | {private}) == 4
    assert all(seen[f"{at}1"] == seen[f"{at}2"] for at in range(3))
    assert ledger.agents.tokens(private) == 0


def test_two_hinted_agents_on_one_prompt_stay_two(drive: Start) -> None:
    engine = drive()
    seen: dict[str, str] = {}
    for i in range(2):
        for name in ("coder", "7", 7):
            engine.submit(
                f"{name!r}{i}", PREFIXES[0] + tokens(i, 5), 3, {"agent_hints": {"agent_id": name}}
            )
    finish(engine, lambda engine: seen.update(agents(engine)))
    assert len(set(seen.values())) == 3, '"7" is not 7'


def test_namespaces_are_never_glued_together(drive: Start) -> None:
    """Case 25: ("ab", "c") and ("a", "bc"), and an agent named like a namespace's."""
    engine = drive()
    pairs = [("ab", "c"), ("a", "bc"), ("abc", ""), (None, "abc"), ('a","b', "c"), ("a", 'b","c')]
    seen: dict[str, str] = {}
    for i in range(2):
        for at, (space, agent) in enumerate(pairs):
            hints = {"agent_hints": {"agent_id": agent, "workflow_id": "t"}}
            engine.submit(f"{at}{i}", PREFIXES[0] + tokens(i, 5), 3, hints, extra_key=space)
        finish(engine, lambda engine: seen.update(agents(engine)))
    assert len(seen) == 2 * len(pairs)
    assert len(set(seen.values())) >= len(pairs)
    first = {seen[f"{at}1"] for at in range(len(pairs))}
    assert len(first) == len(pairs)
    for at in range(len(pairs)):
        assert engine.outputs[f"{at}0"].cached_tokens == 0, "no space uses another's prefix"
        assert engine.outputs[f"{at}1"].cached_tokens >= 96
