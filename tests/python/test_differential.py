"""The core against the readable reference on random states, both doors' settings, ties and all."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random

import pytest
from agreement import (
    Json,
    close,
    differences,
    disagreement,
    is_feasible,
    shuffled,
)
from hypothesis import given, settings
from strategies import PRESETS, random_snapshot, snapshots
from topas import Config, Snapshot, decide, expected_longest_path, explain, reference

STATES = 2400
CHUNKS = 12
FIRST_SEED = 1_000_000  # apart from the states of the other tests


def kind_of(fields: Json) -> list[str]:
    """Name what is special about a state, for the census below."""
    config = fields["config"]
    prefix = {agent["id"]: agent["prefix_tokens"] for agent in fields["agents"]}
    stages = Counter((request["task"], request["stage"]) for request in fields["requests"])
    active = {request["agent"] for request in fields["requests"]}
    kinds = [f"redo by {config['redo_model']}", f"move by {config['move_model']}"]
    kinds += ["work conserving"] * config["work_conserving"]
    kinds += [f"gains by {config['gain_model']}", f"admitted by {config['admit_order']}"]
    kinds += ["urgent"] * (config["urgency"] > 0) + ["firm"] * (config["preempt_limit"] > 0)
    kinds += ["overtaking limited"] * (config["overtake_limit"] > 0)
    weighed = config["gain_model"] == "service" and config["backlog_weight"] > 0
    kinds += ["backlogs weighed"] * weighed
    kinds += ["room reserved"] * (config["reserve_limit"] > 0)
    kinds.append("paper" if not config["count_running"] else "guarded")
    kinds.append("enumerated" if len(active) <= config["enumerate_max_agents"] else "greedy")
    kinds += ["capped"] * (config["action_cap"] > 0)
    kinds += ["limited"] * (config["max_running_requests"] > 0)
    kinds += ["empty prefix"] * any(prefix[agent] == 0 for agent in active)
    kinds += ["several requests a stage"] * (max(stages.values(), default=0) > 1)
    kinds += ["aged"] * (config["age_weight"] > 0)
    kinds += ["idle prefix"] * any(agent not in active for agent in fields["resident"])
    return kinds


def census_of(chunk: int) -> Counter[str]:
    """Compare one share of the states; count the kinds of states and of answers."""
    census: Counter[str] = Counter()
    size = STATES // CHUNKS
    for seed in range(FIRST_SEED + chunk * size, FIRST_SEED + (chunk + 1) * size):
        fields = random_snapshot(seed)
        config = Config.from_dict(fields["config"])
        snapshot = Snapshot.from_dict(fields)
        got = decide(snapshot, config).to_dict()
        assert differences(got, reference.decide(fields)) == [], f"seed {seed}"
        census.update(kind_of(fields))
        census["admits"] += bool(got["admit"])
        census["preempts"] += bool(got["preempt"])
        census["reuses"] += got["terms"]["reuse"] > 0
        census["moves"] += got["terms"]["move"] > 0
        if config.work_conserving:
            searched = decide(snapshot, config.replace(work_conserving=False))
            census["filled"] += got["admit"] != searched.admit
        census["unschedulable"] += bool(got["unschedulable"])
        if not got["admit"] and not got["preempt"]:
            census["nothing feasible"] += not is_feasible(fields)
    return census


@cache
def cached_census(chunk: int) -> Counter[str]:
    return census_of(chunk)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_core_decides_like_the_reference(chunk: int) -> None:
    assert cached_census(chunk)["admits"] > 0


def test_random_states_are_of_every_kind() -> None:
    census = sum((cached_census(chunk) for chunk in range(CHUNKS)), Counter[str]())
    common = [
        *("paper", "guarded", "enumerated", "greedy", "capped", "limited", "empty prefix", "aged"),
        *("redo by decode", "redo by prefill", "redo by kept", "several requests a stage"),
        *("move by tasks", "move by once", "work conserving"),
        *("gains by path", "gains by service", "admitted by density", "admitted by arrival"),
        *("urgent", "firm", "overtaking limited", "room reserved", "backlogs weighed"),
        *("idle prefix", "admits", "moves", "reuses", "preempts", "unschedulable"),
    ]
    assert {kind: census[kind] for kind in common if census[kind] < STATES / 50} == {}
    assert census["nothing feasible"] > 0
    assert census["filled"] > 0


@given(snapshots)
@settings(max_examples=300)
def test_core_decides_like_the_reference_on_drawn_states(fields: Json) -> None:
    assert disagreement(fields) == []


@pytest.mark.parametrize("guard", PRESETS, ids=["paper", "guarded"])
@pytest.mark.parametrize("most", [0, 20], ids=["greedy", "enumerated"])
def test_both_searches_under_both_presets(guard: Json, most: int) -> None:
    compared = 0
    for seed in range(2_000_000, 2_000_080):
        fields = random_snapshot(seed)
        if len({request["agent"] for request in fields["requests"]}) > 7:
            continue  # all subsets would keep the reference busy for long
        changes = {**guard, "enumerate_max_agents": most}
        assert disagreement({**fields, "config": {**fields["config"], **changes}}) == []
        compared += 1
    assert compared > 40


@pytest.mark.parametrize("exact_limit", [1, 2**20], ids=["sampled", "exact"])
def test_expectations_agree(exact_limit: int) -> None:
    """Exact ones up to the order of additions, sampled ones because the draws are the same."""
    tolerance = 1e-12 if exact_limit == 1 else 1e-9
    compared = 0
    for seed in range(3_000_000, 3_000_250):
        fields = random_snapshot(seed)
        changes = {"exact_limit": exact_limit, "age_scale_s": 60.0}
        config = Config.from_dict({**fields["config"], **changes})
        snapshot = Snapshot.from_dict(fields)
        rng = Random(seed)
        for task in fields["tasks"]:
            mine = [r["id"] for r in fields["requests"] if r["task"] == task["id"]]
            done = rng.sample(mine, rng.randint(0, len(mine)))
            got = expected_longest_path(snapshot, config, task["id"], done)
            wanted = reference.expected_longest_path(fields, task["id"], done, config)
            assert close(got, wanted, tolerance), f"seed {seed}, task {task['id']!r}, done {done}"
            compared += 1
    assert compared > 500


def test_a_budget_is_kept_and_more_of_it_is_never_worse_than_the_present_set() -> None:
    better = 0
    for seed in range(5_000_000, 5_000_300):
        fields = random_snapshot(seed)
        config = Config.from_dict({**fields["config"], "work_conserving": False})
        config = config.replace(
            overtake_limit=0.0, reserve_limit=0.0
        )  # the present set is feasible
        snapshot = Snapshot.from_dict(fields)
        full = decide(snapshot, config)
        one, few = (decide(snapshot, config.replace(max_evaluations=n)) for n in (1, 5))
        assert (one.evaluated_sets <= 1, few.evaluated_sets <= 5) == (True, True)
        assert explain(snapshot, config.replace(max_evaluations=1)).decision == one
        if full.evaluated_sets <= 5:
            assert few.to_dict() == full.to_dict()
        serves = [bool(d.resident) and d.evaluated_sets > 0 for d in (one, few)]
        if all(serves):
            assert few.score >= one.score
            better += few.score > one.score
    assert better > 30


@given(snapshots)
@settings(max_examples=200)
def test_order_of_the_input_changes_nothing(fields: Json) -> None:
    config = Config.from_dict(fields["config"])
    decision = decide(Snapshot.from_dict(fields), config)
    assert decide(Snapshot.from_dict(shuffled(fields, Random(5))), config) == decision


@given(snapshots)
@settings(max_examples=200)
def test_explanation_has_the_same_decision_and_the_best_candidate_first(fields: Json) -> None:
    config = Config.from_dict(fields["config"])
    snapshot = Snapshot.from_dict(fields)
    explanation = explain(snapshot, config, top=1000)
    decision = decide(snapshot, config)
    assert explanation.decision == decision
    left = {entry.request for entry in explanation.left_waiting}
    waiting = {request["id"] for request in fields["requests"] if not request["running"]}
    assert left == waiting - set(decision.admit)
    assert bool(explanation.candidates) == is_feasible(fields)
    if explanation.candidates:
        first = explanation.candidates[0]  # as the search found it, not yet filled
        decision = decide(snapshot, config.replace(work_conserving=False))
        assert (first.resident, first.admit, first.preempt, first.terms) == (
            decision.resident,
            decision.admit,
            decision.preempt,
            decision.terms,
        )
        serving = [c for c in explanation.candidates if c.admit or c.resident]
        assert all(
            c.terms.score <= decision.score or close(c.terms.score, decision.score, 1e-12)
            for c in serving
        )


@given(snapshots)
@settings(max_examples=200)
def test_decision_is_feasible(fields: Json) -> None:
    """SPEC section 1, checked apart from both implementations."""
    if not is_feasible(fields):
        return
    config = Config.from_dict(fields["config"])
    decision = decide(Snapshot.from_dict(fields), config)
    requests = {request["id"]: request for request in fields["requests"]}
    running = {name for name, request in requests.items() if request["running"]}
    prefix = {agent["id"]: agent["prefix_tokens"] for agent in fields["agents"]}
    served = (running - set(decision.preempt)) | set(decision.admit)
    used = sum(prefix[agent] for agent in decision.resident)
    used += sum(requests[name]["kv_tokens"] for name in served)
    assert used <= config.kv_capacity_tokens
    assert {requests[name]["agent"] for name in served} == set(decision.resident)
    assert set(decision.preempt) == {
        name for name in running if requests[name]["agent"] not in decision.resident
    }
    if config.action_cap:
        assert max(len(decision.admit), len(decision.preempt)) <= config.action_cap
    if config.max_running_requests:
        assert len(served) <= config.max_running_requests
    assert set(decision.load) == set(decision.resident) - set(fields["resident"])
    assert set(decision.drop) == set(fields["resident"]) - set(decision.resident)
