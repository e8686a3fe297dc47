"""The readable reference policy: the handed-out vectors, hand-computed cases, and its draws."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from handmade import EXACT, Json, request, running, snapshot, stage
from hypothesis import given, settings
from strategies import random_snapshot, snapshots
from topas import reference
from topas.reference.expectation import (
    blocks,
    hash_id,
    mix,
    residual_support,
    stage_draws,
)
from topas.reference.pack import Allocation, emissions
from topas.reference.score import Scorer, Terms
from topas.reference.search import Search, choose
from topas.reference.state import Stage, State, id_key, read_state, tie

Id = int | str

VECTORS = Path(__file__).resolve().parents[2].parent / "shared" / "vectors" / "decisions_11.jsonl"

# ------------------------------------------------------------------------------ the vectors


@cache
def vectors() -> list[Json]:
    if not VECTORS.exists():
        pytest.skip(f"{VECTORS.name} is not here: it is handed out beside the repository")
    with VECTORS.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("line", range(300))
def test_vector(line: int) -> None:
    snapshot = vectors()[line]
    expected = snapshot["expect"]
    decision = reference.decide(
        snapshot, {**snapshot["config"], "exact_limit": EXACT}, preset="paper"
    )
    for key in ("resident", "admit", "preempt"):
        assert decision[key] == expected[key]
    assert decision["score"] == pytest.approx(expected["score"], rel=1e-9, abs=1e-9)
    assert decision["terms"] == pytest.approx(expected["terms"], rel=1e-9, abs=1e-9)
    granted = {str(name): value for name, value in decision["credits"].items()}
    assert granted == pytest.approx(expected["credits"], rel=1e-9, abs=1e-9)


def test_there_are_300_vectors() -> None:
    assert len(vectors()) == 300


def singles(count: int, **config: Any) -> Json:
    """Tasks 0 … count-1 of one stage on agent 0, each with one waiting request 100 + task."""
    tasks = {task: [stage(0)] for task in range(count)}
    return snapshot(tasks, [request(100 + task, task, 0) for task in range(count)], **config)


# ---------------------------------------------------------------- SPEC section 2: expectation


@pytest.mark.parametrize(
    ("totals", "served", "support"),
    [
        ((20.0, 10.0, 10.0), 0.0, (10.0, 10.0, 20.0)),
        ((0.0, 10.0), 0.0, (0.0, 10.0)),
        ((30.0, 10.0, 20.0), 15.0, (5.0, 15.0)),
        ((10.0, 20.0), 20.0, (3.0,)),
        ((10.0, 20.0), 25.0, (3.0,)),
    ],
)
def test_residual_is_conditioned_on_the_service_given(
    totals: tuple[float, ...], served: float, support: tuple[float, ...]
) -> None:
    row = Stage(0, (), totals, request_s=3.0, completed=False, service_s=served)
    assert residual_support(row) == support


def test_a_completed_stage_has_no_residual() -> None:
    assert residual_support(Stage(0, (), (10.0,), 3.0, completed=True, service_s=4.0)) == (0.0,)


def test_a_chain_is_reduced_by_what_is_left_of_its_stage() -> None:
    tasks = {0: [stage(0, totals=(10.0, 20.0)), stage(1, (0,), totals=(5.0,))]}
    case = snapshot(tasks, [request(1, 0, 0, 4.0), request(2, 0, 0, 12.0)])
    assert reference.expected_longest_path(case, 0) == 20.0
    assert reference.expected_longest_path(case, 0, [1]) == 16.0
    assert reference.expected_longest_path(case, 0, [2]) == pytest.approx(5.0 + 4.0)
    assert reference.expected_longest_path(case, 0, [1, 2]) == pytest.approx(5.0 + 2.0)


def test_a_fork_is_as_long_as_its_longer_branch() -> None:
    tasks = {0: [stage(0, totals=(10.0,)), stage(1, totals=(6.0,)), stage(2, (0, 1), (1.0,))]}
    case = snapshot(tasks, [request(1, 0, 0, 10.0), request(2, 0, 1, 6.0)])
    assert reference.expected_longest_path(case, 0) == 11.0
    assert reference.expected_longest_path(case, 0, [2]) == 11.0
    assert reference.expected_longest_path(case, 0, [1]) == 7.0
    assert reference.expected_longest_path(case, 0, [1, 2]) == 1.0
    assert reference.decide(case)["credits"] == {1: 4.0, 2: 6.0}


def test_the_expectation_is_outside_the_longest_path() -> None:
    """Two branches of 0 or 10 s: the mean of the longer one is 7.5 s, not 5 s."""
    branch = (0.0, 10.0)
    case = snapshot({0: [stage(0, totals=branch), stage(1, totals=branch)]}, [])
    assert reference.expected_longest_path(case, 0) == 7.5


def test_a_request_whose_stage_is_not_ready_counts_in_the_whole_dag() -> None:
    tasks = {0: [stage(0, totals=(10.0,)), stage(1, (0,), totals=(5.0,))]}
    case = snapshot(tasks, [request(1, 0, 1, 4.0)])
    assert reference.decide(case)["credits"] == {1: 4.0}


def test_a_skipped_stage_joins_what_is_before_and_after_it() -> None:
    """0 -> 1 (skipped) -> 2 beside 3: the path through the skipped stage is the longer one."""
    chain = [stage(0), stage(0, (0,), completed=True), stage(0, (1,)), stage(1, totals=(15.0,))]
    case = snapshot({0: chain}, [request(1, 0, 0, 10.0)])
    assert reference.expected_longest_path(case, 0) == 20.0
    assert reference.expected_longest_path(case, 0, [1]) == 15.0


def brute_expectation(state: State, task_id: Id, done: Iterable[Id]) -> float:
    """E[LP] by following every path under every joint outcome of the whole DAG."""
    task = state.tasks[task_id]
    reduction = dict.fromkeys(range(len(task.stages)), 0.0)
    for r in state.waiting + state.running:
        if r.task == task_id and r.id in set(done):
            reduction[r.stage] += r.expected_service_s
    joint = list(itertools.product(*map(residual_support, task.stages)))

    def longest_to(v: int, z: tuple[float, ...]) -> float:
        before = max((longest_to(u, z) for u in task.stages[v].after), default=0.0)
        return before + max(z[v] - reduction[v], 0.0)

    paths = [max(longest_to(v, z) for v in range(len(task.stages))) for z in joint]
    return math.fsum(paths) / len(joint)


@pytest.mark.parametrize("seed", range(60))
def test_blocks_add_up_to_the_whole_dag(seed: int) -> None:
    case = random_snapshot(seed)
    case["config"]["exact_limit"] = EXACT
    state = read_state(case)
    for task in state.tasks:
        outcomes = math.prod(len(residual_support(row)) for row in state.tasks[task].stages)
        if outcomes > 1000:
            continue
        own = [r.id for r in state.waiting + state.running if r.task == task]
        for done in ((), own[:1], own):
            expected = brute_expectation(state, task, done)
            found = reference.expected_longest_path(case, task, done)
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_blocks_are_cut_at_stages_that_all_paths_can_pass() -> None:
    diamond = [stage(0), stage(1, (0,)), stage(2, (0,)), stage(3, (1, 2)), stage(4, (3,))]
    task = read_state(snapshot({0: diamond}, [])).tasks[0]
    assert [sorted(block) for block in blocks(task)] == [[0], [1, 2], [3], [4]]


# ---------------------------------------------------------------- SPEC section 2: Monte Carlo


def test_hashes_are_the_published_ones() -> None:
    assert mix(0) == 0xE220A8397B1DCDAF  # SplitMix64, first output of seed 0
    assert hash_id("a") == mix(~0xAF63DC4C8601EC8C & (2**64 - 1))  # FNV-1a of "a"
    assert hash_id(-1) == mix(2**64 - 1)
    assert len({hash_id(7), hash_id("7"), hash_id("")}) == 3


@pytest.mark.parametrize("samples", [1, 7, 32, 128])
def test_each_stratum_is_drawn_once(samples: int) -> None:
    support = [float(value) for value in range(samples)]
    tasks: tuple[Id, ...] = (3, "three")
    for seed, task, index in itertools.product((0, 2**64 - 1), tasks, (0, 5)):
        assert sorted(stage_draws(support, samples, seed, task, index)) == support


def test_a_value_is_drawn_as_often_as_its_share() -> None:
    draws = stage_draws([1.0, 1.0, 1.0, 2.0], 128, 0, "task", 0)
    assert (draws.count(1.0), draws.count(2.0)) == (96, 32)


def test_draws_depend_on_seed_task_and_stage() -> None:
    support = [float(value) for value in range(64)]
    places: list[tuple[int, Id, int]] = [(0, 1, 0), (1, 1, 0), (0, 2, 0), (0, "1", 0), (0, 1, 1)]
    draws = {tuple(stage_draws(support, 64, *place)) for place in places}
    assert len(draws) == len(places)
    assert stage_draws(support, 64, 0, 1, 0) == stage_draws(support, 64, 0, 1, 0)


def random_dag(rng: random.Random) -> Json:
    """One task of 4 to 6 stages with 2 to 4 totals each, requests at two of them."""
    count = rng.randint(4, 6)
    stages = [
        stage(
            v,
            [u for u in range(v) if rng.random() < 0.35],
            [round(rng.uniform(1.0, 30.0), 3) for _ in range(rng.randint(2, 4))],
        )
        for v in range(count)
    ]
    requests = [request(10 + v, 0, v, rng.uniform(2.0, 20.0)) for v in rng.sample(range(count), 2)]
    return snapshot({0: stages}, requests)


@pytest.mark.parametrize("dag", range(12))
def test_monte_carlo_is_unbiased(dag: int) -> None:
    """Mean over many seeds against the exact value, for the path and for a marginal."""
    case = random_dag(random.Random(dag))
    done = [case["requests"][0]["id"]]
    exact = [reference.expected_longest_path(case, 0, h) for h in ((), done)]
    paths, reductions = [], []
    for seed in range(400):
        config = {**case["config"], "exact_limit": 1, "samples": 16, "seed": seed}
        before, after = (reference.expected_longest_path(case, 0, h, config) for h in ((), done))
        paths.append(before)
        reductions.append(before - after)
    for estimates, truth in ((paths, exact[0]), (reductions, exact[0] - exact[1])):
        error = stdev(estimates) / math.sqrt(len(estimates))
        assert abs(fmean(estimates) - truth) <= 3.0 * error + 1e-9


def test_stratified_draws_are_exact_for_a_single_stage() -> None:
    """A chain has one stage a block, so 128 draws of 4 totals are exactly the profile."""
    totals = (3.0, 5.0, 11.0, 13.0)
    case = snapshot({0: [stage(0, totals=totals), stage(1, (0,), totals)]}, [])
    sampled = {**case["config"], "exact_limit": 1, "samples": 128}
    assert reference.expected_longest_path(case, 0, (), sampled) == 16.0


# ---------------------------------------------------------------------- SPEC section 3: score


def test_progress_is_weighted_by_age_and_nothing_else_is() -> None:
    case = singles(1, now=30.0, age_weight=0.5, age_scale_s=10.0)
    decision = reference.decide(case)
    assert decision["terms"]["admit"] == pytest.approx(10.0 * 2.5)
    assert decision["terms"]["move"] == 1.0
    assert decision["credits"] == {100: pytest.approx(25.0)}
    assert decision["score"] == pytest.approx(24.0)


def test_a_task_from_the_future_is_not_aged() -> None:
    case = singles(1, now=1.0, age_weight=1.0, age_scale_s=10.0, arrivals={0: 5.0})
    assert reference.decide(case)["credits"] == {100: 10.0}


def test_ageing_needs_a_scale() -> None:
    case = singles(1, age_weight=1.0)
    with pytest.raises(ValueError, match="age_scale_s"):
        reference.decide(case)
    assert reference.decide({**case, "age_scale_s": 5.0})["credits"] == {100: 10.0}


def test_each_task_that_needs_an_incoming_prefix_waits_for_all_transfers() -> None:
    tasks = {0: [stage("a")], 1: [stage("a")], 2: [stage("b")]}
    requests = [request(1, 0, 0), request(2, 1, 0), request(3, 2, 0), request(4, 2, 0)]
    case = snapshot(tasks, requests, resident=["b", "c"], prefix={"a": 200, "b": 300, "c": 100})
    decision = reference.decide(case)
    assert decision["resident"] == ["a", "b"]
    assert decision["terms"]["move"] == 2 * (200 + 100) / 100.0


def test_reuse_counts_fork_children_but_a_join_only_at_its_last_branch() -> None:
    fork = [stage("a"), stage("b", (0,)), stage("b", (0,)), stage("b", (1, 2))]
    join = [
        stage("a"),
        stage("c", completed=True),
        stage("c"),
        stage("b", (0, 1)),
        stage("b", (0, 2)),
    ]
    requests = [running(1, 0, 0), running(2, 1, 0), request(3, 2, 0)]
    tasks = {0: fork, 1: join, 2: [stage("b")]}
    case = snapshot(tasks, requests, resident=["a"], prefix={"b": 50}, reuse_weight=4.0)
    decision = reference.decide(case)
    assert decision["resident"] == ["a", "b"]
    assert decision["terms"]["reuse"] == 4.0 * 3 * 50 / 100.0


def test_reuse_leaves_out_what_runs_and_what_waits_for_two() -> None:
    """Stage 2 waits for two running stages; stage 3 has a running request of its own."""
    stages = [stage("a"), stage("a"), stage("a", (0, 1)), stage("a", (0,)), stage("a", (1,))]
    rows = [running(10 + index, 0, index) for index in (0, 1, 3)]
    case = snapshot({0: stages}, rows, ["a"], reuse_weight=1.0)
    assert reference.decide(case)["terms"]["reuse"] == 1.0


@pytest.mark.parametrize(
    ("model", "weight", "cost"),
    [("decode", 1.0, 5.0), ("decode", 3.0, 15.0), ("prefill", 3.0, 3 * 0.9), ("kept", 3.0, 0.0)],
)
def test_the_cost_of_redoing_is_the_engines_to_say(model: str, weight: float, cost: float) -> None:
    """Agent b (100 s of progress) throws out agent a's request, 50 tokens in."""
    tasks = {0: [stage("a")], 1: [stage("b", totals=(100.0,))]}
    victim = running(1, 0, 0, generated_tokens=50, input_tokens=30, credit=2.0, kv_tokens=800)
    case = snapshot(
        tasks,
        [victim, request(2, 1, 0, 100.0)],
        resident=["a"],
        prefill_fixed_s=0.1,
        prefill_s_per_token=0.01,
        redo_model=model,
        redo_weight=weight,
    )
    decision = reference.decide(case)
    assert (decision["admit"], decision["preempt"]) == ([2], [1])
    assert decision["terms"]["redo"] == pytest.approx(cost)
    assert decision["terms"]["revoke"] == 2.0


@pytest.mark.parametrize(
    ("on", "factor", "revoked"),
    [(False, 1.0, 2.0), (True, 1.0, 8.0), (True, 2.0, 4.0), (True, 5.0, 2.0), (True, None, 2.0)],
)
def test_a_revoked_credit_has_aged_with_its_task(
    on: bool, factor: float | None, revoked: float
) -> None:
    tasks = {0: [stage("a")], 1: [stage("b", totals=(100.0,))]}
    victim = running(1, 0, 0, credit=2.0, age_factor_at_admission=factor, kv_tokens=800)
    case = snapshot(
        tasks,
        [victim, request(2, 1, 0, 100.0)],
        resident=["a"],
        now=30.0,
        age_weight=1.0,
        age_scale_s=10.0,
        age_credit=on,
    )
    assert reference.decide(case)["terms"]["revoke"] == revoked


def test_running_requests_count_as_completions_when_asked() -> None:
    """A second request of the same stage gains only what the running one leaves."""
    case = snapshot({0: [stage("a")]}, [running(1, 0, 0, 7.0), request(2, 0, 0, 7.0)], ["a"])
    assert reference.decide(case)["credits"] == {2: 7.0}
    case["config"]["count_running"] = True
    assert reference.decide(case)["credits"] == {2: 3.0}


# --------------------------------------------------------------------- SPEC section 4: packing


def test_density_decides_not_gain() -> None:
    tasks = {0: [stage(0, totals=(10.0,))], 1: [stage(0, totals=(6.0,))]}
    requests = [request(1, 0, 0, kv_tokens=200), request(2, 1, 0, kv_tokens=100)]
    assert reference.decide(snapshot(tasks, requests))["admit"] == [2, 1]


def test_tie_rule_a_task_already_represented_comes_first() -> None:
    """Both branches of task 1 end before the older task 0, although all gain nothing."""
    idle = [stage(0, totals=(0.0,))]
    fork = [stage(0, totals=(5.0,)), stage(0, totals=(0.0,))]
    requests = [request(1, 0, 0), request(2, 1, 0), request(3, 1, 1)]
    case = snapshot({0: idle, 1: fork}, requests, [0], arrivals={0: 0.0, 1: 9.0}, now=9.0)
    assert reference.decide(case)["admit"] == [2, 3, 1]


def test_tie_rule_a_running_request_does_not_represent_its_task() -> None:
    """Nothing is gained either way; the waiting request of the earlier task goes first."""
    fork = [stage("a", totals=(5.0,)), stage("a", totals=(1.0,))]
    rows = [running(1, 0, 0), request(2, 0, 1), request(3, 1, 0)]
    tasks = {0: fork, 1: [stage("a", totals=(0.0,))]}
    case = snapshot(tasks, rows, ["a"], arrivals={0: 2.0, 1: 1.0}, now=2.0, action_cap=1)
    assert reference.decide(case)["admit"] == [3]


def test_tie_rule_then_the_earlier_arrival_then_the_smaller_id() -> None:
    case = singles(3, arrivals={0: 2.0, 1: 1.0, 2: 1.0}, now=3.0)
    assert reference.decide(case)["admit"] == [101, 102, 100]


def test_ids_are_ordered_integers_first_then_strings_by_bytes() -> None:
    names: list[Id] = ["é", "z", "10", 9, "9", -4]
    tasks = {index: [stage(0)] for index in range(len(names))}
    requests = [request(name, index, 0) for index, name in enumerate(names)]
    assert reference.decide(snapshot(tasks, requests))["admit"] == [-4, 9, "10", "9", "z", "é"]


def test_an_exact_fit_is_a_fit() -> None:
    assert reference.decide(singles(3, kv_capacity_tokens=400))["admit"] == [100, 101, 102]
    assert reference.decide(singles(3, kv_capacity_tokens=399))["admit"] == [100, 101]


def test_the_cap_bounds_admissions_and_preemptions_apart() -> None:
    assert reference.decide(singles(3, action_cap=2))["admit"] == [100, 101]
    tasks = {0: [stage("a")], 1: [stage("a")], 2: [stage("b", totals=(500.0,))]}
    rows = [running(1, 0, 0), running(2, 1, 0), request(3, 2, 0, 500.0, kv_tokens=800)]
    case = snapshot(tasks, rows, resident=["a"])
    assert reference.decide(case)["preempt"] == [1, 2]
    case["config"]["action_cap"] = 1
    assert reference.decide(case)["preempt"] == []


def test_the_running_limit_counts_kept_requests() -> None:
    tasks = {task: [stage("a")] for task in range(3)}
    rows = [running(1, 0, 0), request(2, 1, 0), request(3, 2, 0)]
    case = snapshot(tasks, rows, resident=["a"], max_running_requests=2)
    assert reference.decide(case)["admit"] == [2]


def test_uncovered_agents_keep_room_and_a_slot_each() -> None:
    """The dense requests of a may not take what b's only request needs."""
    tasks = {0: [stage("a")], 1: [stage("a")], 2: [stage("b", totals=(8.0,))]}
    rows = [request(1, 0, 0), request(2, 1, 0), request(3, 2, 0, 8.0, kv_tokens=200)]
    case = snapshot(tasks, rows, kv_capacity_tokens=500, prefix={"a": 100, "b": 100})
    state = read_state(case)
    found = [[r.id for r in e.admit] for e in emissions(Scorer(state), frozenset("ab"))]
    assert found == [[1, 3]]


def test_choices_without_gain_go_on_and_the_fuller_allocation_wins() -> None:
    """Two equal branches: the first choice gains nothing, both together gain all."""
    fork = [stage("a"), stage("a"), stage("a", (0, 1), (1.0,))]
    decision = reference.decide(snapshot({0: fork}, [request(1, 0, 0), request(2, 0, 1)]))
    assert decision["credits"] == {1: 0.0, 2: 10.0}
    useless = snapshot({0: [stage("a"), stage("a", totals=(1.0,))]}, [request(1, 0, 1)])
    assert reference.decide(useless)["admit"] == [1]


def test_an_emission_on_the_way_may_be_the_best() -> None:
    """Another task that waits for the transfer costs more than its progress is worth."""
    tasks = {0: [stage("a")], 1: [stage("a", totals=(0.5,))]}
    assert reference.decide(snapshot(tasks, [request(1, 0, 0), request(2, 1, 0)]))["admit"] == [1]


def test_a_prefix_of_length_zero_costs_nothing() -> None:
    case = singles(2, prefix={0: 0}, kv_capacity_tokens=200)
    decision = reference.decide(case)
    assert decision["admit"] == [100, 101]
    assert decision["terms"]["move"] == 0.0


# ---------------------------------------------------------------------- SPEC section 5: search


def test_an_empty_state_never_beats_one_that_serves() -> None:
    """Moving the prefix costs a hundred times the progress, and is done all the same."""
    case = singles(1, swap_bytes_per_s=0.1)
    decision = reference.decide(case)
    assert decision["admit"] == [100]
    assert decision["score"] == 10.0 - 1000.0
    assert reference.decide({**case, "requests": []})["resident"] == []


def test_an_impossible_request_is_named_and_blocks_no_one() -> None:
    tasks = {0: [stage("z")], 1: [stage("a")], 2: [stage("a")]}
    rows = [request(1, 0, 0), request(2, 1, 0, kv_tokens=901), request(3, 2, 0)]
    case = snapshot(tasks, rows, prefix={"z": 1200})
    for limit in (8, 0):
        case["config"]["enumerate_max_agents"] = limit
        decision = reference.decide(case)
        assert decision["admit"] == [3]
        assert decision["unschedulable"] == [1, 2]


def test_idle_prefixes_leave() -> None:
    case = snapshot({0: [stage("a"), stage("b", (0,))]}, [running(1, 0, 0)], ["a", "b"])
    assert reference.decide(case)["resident"] == ["a"]


@pytest.mark.parametrize("limit", [8, 0])
def test_pairs_are_tried_when_single_additions_stall(limit: int) -> None:
    """Each of two equal branches alone only costs a transfer; together they gain 10 s."""
    fork = [stage("b"), stage("c")]
    tasks = {0: [stage("a")], 1: fork}
    rows = [running(1, 0, 0), request(2, 1, 0), request(3, 1, 1)]
    case = snapshot(tasks, rows, ["a"], enumerate_max_agents=limit)
    decision = reference.decide(case)
    assert decision["resident"] == ["a", "b", "c"]
    assert decision["score"] == 10.0 - 2.0


def test_pairs_are_tried_only_once() -> None:
    """Of two pairs that pay off, the better one is taken, and the other is left to later events."""
    forks = {1: [stage("b"), stage("c")], 2: [stage("d", totals=(9.0,)), stage("e", totals=(9.0,))]}
    rows = [
        request(name, task, v) for name, (task, v) in enumerate([(1, 0), (1, 1), (2, 0), (2, 1)])
    ]
    case = snapshot({0: [stage("a")], **forks}, [running(9, 0, 0), *rows], ["a"])
    for limit, resident in ((0, ["a", "b", "c"]), (8, ["a", "b", "c", "d", "e"])):
        config = {**case["config"], "enumerate_max_agents": limit}
        assert reference.decide(case, config)["resident"] == resident


def test_an_equal_set_is_no_improvement() -> None:
    """Three prefixes of no length and no use: one pair is tried, and never all three."""
    useless = {name: [stage(name, totals=(0.0,))] for name in "bcd"}
    rows = [running(0, "a", 0), *(request(1 + i, name, 0) for i, name in enumerate("bcd"))]
    tasks = {"a": [stage("a")], **useless}
    case = snapshot(tasks, rows, ["a"], dict.fromkeys("bcd", 0), enumerate_max_agents=0)
    assert reference.decide(case)["resident"] == ["a", "b", "c"]


@pytest.mark.parametrize("limit", [8, 0])
def test_only_an_empty_state_may_be_left(limit: int) -> None:
    """Neither running request fits any more, not even alone, so that both must go."""
    rows = [running(1, 0, 0, kv_tokens=950), running(2, 1, 0, kv_tokens=950)]
    tasks = {0: [stage("a")], 1: [stage("b")]}
    case = snapshot(tasks, rows, ["a", "b"], enumerate_max_agents=limit)
    decision = reference.decide(case)
    assert (decision["resident"], decision["preempt"]) == ([], [1, 2])


def test_both_ends_of_the_climb_are_repaired() -> None:
    """A drop and a swap at either end are candidates."""
    tasks = {index: [stage(agent)] for index, agent in enumerate("abcd")}
    rows = [running(0, 0, 0, kv_tokens=200), running(1, 1, 0, kv_tokens=200)]
    rows += [request(2, 2, 0, kv_tokens=200), request(3, 3, 0, kv_tokens=900)]
    case = snapshot(tasks, rows, ["a", "b", "idle"], {"idle": 0}, enumerate_max_agents=0)
    search = Search(Scorer(read_state(case)))
    search.run()
    single = ["abc", "abd"]  # from a and b; c fits, so the climb ends at a, b and c
    pair_and_stall = ["abcd"]
    start = ["a", "b", "ac", "bc", "ad", "bd"]
    end = ["ab", "ac", "bc", "abd", "acd", "bcd"]
    expected = {frozenset(agents) for agents in [*single, *pair_and_stall, *start, *end]}
    assert set(search.evaluated) == expected


def test_the_climb_starts_again_from_nothing_when_the_resident_set_is_infeasible() -> None:
    """Resident a and b cannot both be served, and no single repair of them leads to c and d."""
    tasks = {
        name: [stage(name, totals=(total,))]
        for name, total in zip("abcd", (1, 1, 9, 9), strict=True)
    }
    rows = [request(i, name, 0, 9.0, kv_tokens=300) for i, name in enumerate("abcd")]
    sizes = {"a": 400, "b": 400, "c": 150, "d": 150}
    case = snapshot(tasks, rows, ["a", "b"], sizes, enumerate_max_agents=0, kv_bytes_per_token=0.0)
    assert reference.decide(case)["resident"] == ["c", "d"]


def test_equal_states_are_settled_by_preemptions_admissions_and_ids() -> None:
    tasks = {name: [stage(name)] for name in "cab"}
    rows = [request(i, name, 0, kv_tokens=700) for i, name in enumerate("cab")]
    assert reference.decide(snapshot(tasks, rows))["resident"] == ["a"]
    two = {0: [stage("b")], 1: [stage("a")]}
    rows = [running(1, 0, 0, kv_tokens=700, credit=9.0), request(2, 1, 0, kv_tokens=700)]
    case = snapshot(two, rows, ["b"], prefix={"a": 50, "b": 50})
    assert reference.decide(case)["score"] == 0.0
    assert reference.decide(case)["resident"] == ["b"]


def test_equal_scores_prefer_fewer_preemptions_then_more_admissions() -> None:
    """Candidates are compared in three steps once their scores tie."""
    scorer = Scorer(read_state(singles(1)))

    def candidate(agents: str, admit: int, preempt: int, score: float = 1.0) -> Allocation:
        rows = scorer.state.waiting
        terms = Terms(score, 0.0, 0.0, 0.0, 0.0)
        gains = (0.0,) * admit
        return Allocation(frozenset(agents), rows * admit, gains, rows * preempt, True, terms)

    fewer, more = candidate("z", 1, 0), candidate("a", 3, 1)
    assert choose([more, fewer]) is fewer
    fuller = candidate("zz", 2, 0)
    assert choose([fewer, fuller, more]) is fuller
    smaller = candidate("b", 2, 0, 1.0 - 1e-13)
    assert choose([fuller, smaller, fewer]) is smaller
    assert choose([fuller, candidate("az", 2, 0), smaller]).agents == ["a", "z"]  # type: ignore[union-attr]
    higher = candidate("zzz", 1, 5, 1.1)
    assert choose([fuller, higher, smaller]) is higher
    assert choose([]) is None


def test_what_runs_stays_when_nothing_is_feasible() -> None:
    """Two requests run beyond the capacity and the cap lets only one of them go."""
    rows = [running(1, 0, 0, kv_tokens=600), running(2, 1, 0, kv_tokens=600)]
    case = snapshot({0: [stage("a")], 1: [stage("a")]}, rows, ["a", "x"], {"x": 10}, action_cap=1)
    decision = reference.decide(case)
    assert (decision["resident"], decision["admit"], decision["preempt"]) == (["a"], [], [])
    assert decision["score"] == 0.0


# ------------------------------------------------------------------------- whole decisions


def check_state(case: Json, decision: Json) -> None:
    """Check that a decision leads to a feasible state or changes nothing (SPEC section 1)."""
    config = case["config"]
    rows = {r["id"]: r for r in case["requests"]}
    prefix = {a["id"]: a["prefix_tokens"] for a in case["agents"]}
    now_running = {name for name, r in rows.items() if r["running"]}
    admit, preempt = set(decision["admit"]), set(decision["preempt"])
    assert not admit & now_running
    served = (now_running - preempt) | admit
    resident = set(decision["resident"])
    assert resident == {rows[name]["agent"] for name in served}
    assert preempt == {name for name in now_running if rows[name]["agent"] not in resident}
    assert max(len(admit), len(preempt)) <= (config["action_cap"] or len(rows))
    if admit or preempt:
        used = sum(prefix[a] for a in resident) + sum(rows[name]["kv_tokens"] for name in served)
        assert used <= config["kv_capacity_tokens"]
        assert len(served) <= (config["max_running_requests"] or len(rows))


def check_account(decision: Json) -> None:
    """Check the order of the ids and the sums of the score (SPEC section 3)."""
    for key in ("resident", "preempt", "unschedulable"):
        assert decision[key] == sorted(decision[key], key=id_key)
    assert len(set(decision["admit"])) == len(decision["admit"])
    terms = decision["terms"]
    costs = terms["move"] + terms["redo"] + terms["revoke"]
    assert decision["score"] == pytest.approx(terms["admit"] + terms["reuse"] - costs, abs=1e-9)
    assert list(decision["credits"]) == decision["admit"]
    assert sum(decision["credits"].values()) == pytest.approx(terms["admit"], abs=1e-9)


@settings(max_examples=150, deadline=None)
@given(snapshots)
def test_every_decision_is_feasible_and_adds_up(case: Json) -> None:
    decision = reference.decide(case)
    check_state(case, decision)
    check_account(decision)


@settings(max_examples=75, deadline=None)
@given(snapshots)
def test_the_order_of_rows_does_not_matter(case: Json) -> None:
    shuffled = dict(case)
    for key in ("agents", "profiles", "tasks", "requests", "resident"):
        shuffled[key] = case[key][::-1]
    assert reference.decide(shuffled) == reference.decide(case)


@settings(max_examples=75, deadline=None)
@given(snapshots)
def test_marginals_add_up_to_the_joint_reduction(case: Json) -> None:
    """In any order, exact or sampled: the draws are the same for every set of completions."""
    state = read_state(case)
    scorer = Scorer(state)
    for task in state.tasks:
        own = [r for r in state.waiting + state.running if r.task == task]
        expectation = scorer.expectation(task)
        joint = expectation.total() - expectation.total(own)
        for order in (own, own[::-1]):
            parts = [expectation.marginal(r, order[:i]) for i, r in enumerate(order)]
            assert sum(parts) == pytest.approx(joint, rel=1e-9, abs=1e-9)
            assert min(parts, default=0.0) >= -1e-9


@settings(max_examples=75, deadline=None)
@given(snapshots)
def test_enumeration_is_never_worse_than_the_bounded_search(case: Json) -> None:
    scores = []
    for limit in (0, 9):
        search = Search(Scorer(read_state(case, {**case["config"], "enumerate_max_agents": limit})))
        if len(search.active) > 9:
            return
        found = search.run()
        if found is None or not found.serves:
            continue
        scores.append(found.terms.score)
    if len(scores) == 2:
        assert scores[0] <= scores[1] or tie(*scores)
    else:
        assert len(scores) < 2


@pytest.mark.parametrize("preset", ["paper", "guarded"])
def test_a_preset_fills_only_what_is_absent(preset: str) -> None:
    case = singles(1)
    config = {k: v for k, v in case["config"].items() if k not in reference.PRESETS[preset]}
    full = {**config, **reference.PRESETS[preset]}
    assert reference.decide(case, config, preset=preset) == reference.decide(case, full)
    with pytest.raises(TypeError, match="redo_weight"):
        reference.decide(case, config)
    given_weight = {**config, "redo_weight": 7.0}
    assert read_state(case, given_weight, preset).settings.redo_weight == 7.0


def test_a_config_may_be_an_object() -> None:
    class Plain:
        def __init__(self, fields: Json) -> None:
            self.__dict__.update(fields)

    case = singles(2)
    assert reference.decide(case, Plain(case["config"])) == reference.decide(case)
