"""Sampled expectations: unbiased, the same everywhere, and additive within a candidate."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import sqrt
from pathlib import Path
from random import Random
from statistics import fmean, stdev

import pytest
from agreement import Json, close, shuffled
from strategies import random_snapshot
from topas import Config, Snapshot, decide, expected_longest_path

SEEDS = 400
GRAPHS = 24
ROUNDING = 1e-12  # a single uncertain stage is exact whenever its totals divide the samples
HERE = Path(__file__).resolve().parent
PLAIN: Json = {
    "kv_capacity_tokens": 10_000,
    "kv_bytes_per_token": 1.0,
    "swap_bytes_per_s": 1e9,
    "decode_s_per_token": 0.02,
    "reuse_weight": 0.0,
    "age_weight": 0.0,
}


def random_dag(rng: Random) -> Json:
    """Draw a task of parallel stages, some begun, with requests that shorten some of them."""
    count = rng.randint(4, 9)
    stages, profiles, requests = [], [], []
    for index in range(count):
        after = rng.sample(range(index), rng.choice((0, 1, 1, 2)) if index > 2 else 0)
        totals = [round(rng.uniform(1.0, 40.0), 3) for _ in range(rng.randint(2, 4))]
        service = rng.choice((0.0, 0.0, round(rng.uniform(0.5, 15.0), 3)))
        profiles.append({"id": index, "totals_s": totals, "request_s": 2.0})
        stages.append(
            {
                "agent": "a",
                "after": after,
                "profile": index,
                "completed": False,
                "service_s": service,
            }
        )
        if not after:
            requests.append(waiting(f"r{index}", "task", index, round(rng.uniform(1.0, 12.0), 3)))
    return {
        "now": 0.0,
        "agents": [{"id": "a", "prefix_tokens": 100}],
        "profiles": profiles,
        "tasks": [{"id": "task", "arrival": 0.0, "stages": stages}],
        "requests": requests,
        "resident": [],
    }


def waiting(name: str, task: str, stage: int, service_s: float) -> Json:
    return {
        "id": name,
        "task": task,
        "stage": stage,
        "agent": "a",
        "kv_tokens": 100,
        "expected_service_s": service_s,
        "running": False,
        "generated_tokens": 0,
        "credit": 0.0,
    }


@cache
def deviation(graph: int, completions: bool) -> tuple[float, float]:
    """Mean difference of sampled and exact expectation over many seeds, and its standard error."""
    fields = random_dag(Random(graph))
    snapshot = Snapshot.from_dict(fields)
    done = [request["id"] for request in fields["requests"]] if completions else []
    exact = expected_longest_path(
        snapshot, Config(**PLAIN, exact_limit=2**20, samples=0), "task", done
    )
    sampled = [
        expected_longest_path(
            snapshot, Config(**PLAIN, exact_limit=1, samples=16, seed=seed), "task", done
        )
        for seed in range(SEEDS)
    ]
    return fmean(sampled) - exact, stdev(sampled) / sqrt(SEEDS)


@pytest.mark.parametrize("graph", range(GRAPHS))
@pytest.mark.parametrize("completions", [False, True], ids=["nothing done", "requests done"])
def test_unbiased(graph: int, completions: bool) -> None:
    error, standard_error = deviation(graph, completions)
    assert abs(error) <= max(3.0 * standard_error, ROUNDING)


def test_no_bias_in_common() -> None:
    """Small biases of one sign would hide in single graphs: standardised, they must cancel."""
    deviations = [deviation(graph, False) for graph in range(GRAPHS)]
    scores = [error / deviated for error, deviated in deviations if deviated > ROUNDING]
    assert len(scores) >= GRAPHS - 4
    assert abs(fmean(scores)) <= 3.0 / sqrt(len(scores))
    assert 0.5 < stdev(scores) < 1.5


def test_stratified_draws_err_less_than_independent_ones() -> None:
    """What the strata are for: compare with the error of as many independent draws."""
    better = 0
    for graph in range(GRAPHS):
        fields = random_dag(Random(graph))
        rng = Random(graph)
        independent = [
            fmean(independent_path(fields, rng) for _ in range(16)) for _ in range(SEEDS // 2)
        ]
        better += deviation(graph, False)[1] * sqrt(SEEDS) < stdev(independent)
    assert better >= GRAPHS - 2


def independent_path(fields: Json, rng: Random) -> float:
    """Draw every residual on its own and give the longest path."""
    reach: list[float] = []
    for stage in fields["tasks"][0]["stages"]:
        profile = fields["profiles"][stage["profile"]]
        e = stage["service_s"]
        left = [x - e for x in profile["totals_s"] if x > e] or [profile["request_s"]]
        behind = max((reach[v] for v in stage["after"]), default=0.0)
        reach.append(behind + rng.choice(left))
    return max(reach)


def test_more_samples_come_closer() -> None:
    fields = random_dag(Random(1))
    snapshot = Snapshot.from_dict(fields)
    exact = expected_longest_path(snapshot, Config(**PLAIN, exact_limit=2**20), "task")
    errors = []
    for samples in (8, 128, 2048):
        values = [
            expected_longest_path(
                snapshot, Config(**PLAIN, exact_limit=1, samples=samples, seed=seed), "task"
            )
            for seed in range(60)
        ]
        errors.append(sqrt(fmean((value - exact) ** 2 for value in values)))
    assert errors[0] > 2.0 * errors[1] > 4.0 * errors[2] > 0.0


def test_draws_depend_on_seed_task_and_stage() -> None:
    """Equal stages of one task, equal tasks and other seeds get draws of their own."""
    totals = [float(2**k) for k in range(8)]
    stage = {"agent": "a", "after": [], "profile": 0, "completed": False, "service_s": 0.0}
    fields = {
        "now": 0.0,
        "agents": [{"id": "a", "prefix_tokens": 0}],
        "profiles": [{"id": 0, "totals_s": totals, "request_s": 1.0}],
        "tasks": [{"id": task, "arrival": 0.0, "stages": [stage, stage]} for task in (7, "7", 8)],
        "requests": [],
        "resident": [],
    }
    snapshot = Snapshot.from_dict(fields)
    values = {
        (task, seed): expected_longest_path(
            snapshot, Config(**PLAIN, exact_limit=1, samples=8, seed=seed), task
        )
        for task in (7, "7", 8)
        for seed in range(4)
    }
    assert len(set(values.values())) == len(values)
    # With eight strata and eight values each stage takes every value once. Were the two stages
    # drawn alike, the longer of them would be the mean of the values.
    assert all(value > fmean(totals) for value in values.values())


# -------------------------------------------------------------- the same everywhere


def sampled_states(count: int = 40) -> list[Json]:
    """Give states whose every uncertain expectation is sampled."""
    states = [random_snapshot(4_000_000 + number) for number in range(count)]
    return [{**s, "config": {**s["config"], "exact_limit": 1, "samples": 33}} for s in states]


def answers(states: list[Json]) -> list[Json]:
    return [
        decide(Snapshot.from_dict(fields), Config.from_dict(fields["config"])).to_dict()
        for fields in states
    ]


def digest() -> str:
    """Give a hash of the answers that tells every bit of their numbers."""
    return hashlib.sha256(repr(answers(sampled_states())).encode()).hexdigest()


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_the_same_bits_in_a_fresh_process(hash_seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import test_monte_carlo as t; print(t.digest())"],
        cwd=HERE,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == digest()


def test_the_same_bits_in_any_order_of_the_input() -> None:
    states = sampled_states()
    wanted = answers(states)
    rng = Random(8)
    for _ in range(3):
        assert answers([shuffled(fields, rng) for fields in states]) == wanted


def test_the_same_bits_from_several_threads() -> None:
    """Both with one snapshot object shared by all and with one for each call."""
    states = sampled_states()
    wanted = answers(states)
    shared = [(Snapshot.from_dict(s), Config.from_dict(s["config"])) for s in states]

    def all_shared(turn: int) -> list[Json]:
        order = Random(turn).sample(range(len(shared)), len(shared))
        found = {at: decide(*shared[at]).to_dict() for at in order}
        return [found[at] for at in range(len(shared))]

    with ThreadPoolExecutor(4) as pool:
        rounds = [pool.submit(all_shared, turn) for turn in range(12)]
        rounds += [pool.submit(answers, states) for _ in range(4)]
        assert all(one.result(timeout=60) == wanted for one in rounds)


def test_seed_matters() -> None:
    """Otherwise the tests above would prove nothing."""
    states = sampled_states()
    others = [{**s, "config": {**s["config"], "seed": s["config"]["seed"] ^ 1}} for s in states]
    assert answers(others) != answers(states)


# -------------------------------------------------------------- marginals of a candidate


def test_marginals_add_up_to_the_joint_reduction() -> None:
    """The credits of a task's admissions are its marginals; without ageing they sum to what the
    admissions shorten its expected path by, together, under the very same draws."""
    summed = several = 0
    for fields in sampled_states(400):
        changes = {"age_weight": 0.0, "max_running_requests": 0, "action_cap": 0}
        changes |= {"gain_model": "path", "urgency": 0.0}
        config = Config.from_dict({**fields["config"], **changes})
        snapshot = Snapshot.from_dict(fields)
        granted = decide(snapshot, config).credits
        requests = {request["id"]: request for request in fields["requests"]}
        resident = set(decide(snapshot, config).resident)
        for task in fields["tasks"]:
            mine = [name for name in granted if requests[name]["task"] == task["id"]]
            kept = [
                name
                for name, request in requests.items()
                if request["running"]
                and request["agent"] in resident
                and request["task"] == task["id"]
            ]
            before = kept if config.count_running else []
            joint = expected_longest_path(snapshot, config, task["id"], before)
            joint -= expected_longest_path(snapshot, config, task["id"], [*before, *mine])
            assert close(sum(granted[name] for name in mine), joint)
            summed += bool(mine)
            several += len(mine) > 1
    assert summed > 200
    assert several > 40
