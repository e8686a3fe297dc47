"""Whole runs under every policy: nothing lost, nothing over the budget, always the same."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from sim_scenarios import ROUND_COSTS, random_workload, singles
from topas.config import PRESETS
from topas.errors import ConfigError, StateError
from topas.policies import POLICY_NAMES, Policy, make_policy
from topas.sim import (
    BUILTIN_WORKLOADS,
    Engine,
    EngineCosts,
    EngineOptions,
    RunResult,
    Workload,
    compare,
    make_workload,
    run_policy,
    summarise,
)
from topas.sim.builtin import Lengths, prefixes_at
from topas.sim.profiles import config_fields
from topas.sim.report import notes, to_json, to_tables

GROWING = dataclasses.replace(
    ROUND_COSTS, decode_fixed_s=0.05, decode_s_per_context_token=1e-5, prefill_s_per_token=0.002
)


def _engine(workload: Workload, name: str, costs: EngineCosts, options: EngineOptions) -> Engine:
    policy = make_policy(name, config_fields(workload, costs, options))
    return Engine(workload, policy, costs, options)


@pytest.mark.parametrize("name", POLICY_NAMES)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    huge=st.booleans(),
    redo=st.sampled_from(["decode", "prefill", "kept"]),
    over=st.sampled_from([1.0, 1.3]),
    limit=st.sampled_from([None, 30.0, 200.0]),
)
def test_no_task_is_lost_and_the_pool_is_kept(
    name: str, seed: int, huge: bool, redo: Any, over: float, limit: float | None
) -> None:
    workload = random_workload(seed, huge=huge)
    options = EngineOptions(
        redo_model=redo, over_reserve=over, max_time_s=limit, max_running=seed % 3 * 2
    )
    engine = _engine(workload, name, GROWING, options)
    result = engine.run()
    summarise(result)
    accounted = {*result.finish_s, *result.cancelled, *result.unfinished}
    arrived = {t.id for t in workload.tasks if limit is None or t.arrival_s <= limit}
    assert accounted == set(result.arrival_s) == arrived
    assert limit is not None or not result.unfinished
    assert result.peak_kv_tokens <= 1000
    if not result.unfinished:
        assert not engine.memory.running
        assert set(engine.pool.holders()) <= set(workload.agents)
    for task, end in result.finish_s.items():
        assert end > result.arrival_s[task]
    impossible = {
        t.id for t in workload.tasks if any(r.input_tokens == 2000 for s in t.stages for r in s)
    }
    assert set(result.cancelled) <= impossible


def _same(one: RunResult, other: RunResult) -> None:
    assert one.finish_s == pytest.approx(other.finish_s, rel=1e-9)
    assert one.cancelled == other.cancelled
    assert one.counters == other.counters


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_many_steps_at_once_equal_single_steps(name: str) -> None:
    for seed in range(40):
        workload = random_workload(seed, huge=seed % 4 == 0)
        at_once = _engine(workload, name, GROWING, EngineOptions()).run()
        single = _engine(workload, name, GROWING, EngineOptions(coalesce=False)).run()
        _same(at_once, single)
        assert at_once.end_s == pytest.approx(single.end_s, rel=1e-9)


@pytest.mark.parametrize("workload", BUILTIN_WORKLOADS)
def test_built_in_workloads_run_to_their_end(workload: str) -> None:
    built = make_workload(workload, tasks=12, rate=0.05, seed=2)
    rounds = sum(len(item) for task in built.tasks for item in task.stages)
    comparison = compare(built, POLICY_NAMES)
    for run in comparison.runs:
        assert run.arrived == run.finished == 12
        assert run.completed_requests == rounds
        assert run.peak_kv_tokens <= 40_000
        has_copies = run.policy.startswith("topas") or run.policy == "kvflow"
        assert run.recomputed_tokens == 0 if has_copies else run.swaps == 0


def test_policies_see_the_same_tasks() -> None:
    comparison = compare(make_workload("chain-3", tasks=10, rate=0.1, seed=1), POLICY_NAMES)
    assert len({tuple(run.jct_s) for run in comparison.runs}) == 1
    assert len({run.completed_requests for run in comparison.runs}) == 1


def _json(workload: str = "metagpt-sop", policies: tuple[str, ...] = POLICY_NAMES) -> str:
    built = make_workload(workload, tasks=10, rate=0.05, seed=3)
    report = json.loads(to_json(compare(built, policies)))
    assert set(report.pop("decision_us")) == set(policies)
    return json.dumps(report)


def test_same_seed_same_bytes_in_another_process() -> None:
    code = "import test_sim_runs as t; print(t._json())"
    here = os.path.dirname(__file__)
    outputs = set()
    for hash_seed in ("0", "12345"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=here,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(done.stdout.strip())
    assert outputs == {_json()}


def test_the_simulator_needs_numpy_only() -> None:
    code = (
        "import sys\n"
        "for name in ('rich', 'typer', 'pydantic', 'yaml', 'matplotlib', 'torch', 'sglang'):\n"
        "    sys.modules[name] = None\n"
        "from topas.sim import make_workload, compare\n"
        "from topas.policies import POLICY_NAMES\n"
        "runs = compare(make_workload('dag-4', tasks=2, rate=1.0), POLICY_NAMES).runs\n"
        "print([run.finished for run in runs])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([2] * len(POLICY_NAMES))


def test_results_do_not_depend_on_the_speed_of_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _json()
    ticks = itertools.count(0, 10**10)  # each decision seems to take ten seconds
    monkeypatch.setattr("topas.sim.engine.time.perf_counter_ns", lambda: next(ticks))
    built = make_workload("metagpt-sop", tasks=10, rate=0.05, seed=3)
    report = compare(built, POLICY_NAMES).to_dict()
    assert set(report.pop("decision_us").values()) == {1e7}
    assert json.dumps(json.loads(json.dumps(report))) == expected


def test_another_seed_is_another_run() -> None:
    one = compare(make_workload("metagpt-sop", tasks=5, rate=0.05, seed=3), ["fcfs"])
    two = compare(make_workload("metagpt-sop", tasks=5, rate=0.05, seed=4), ["fcfs"])
    assert one.runs[0].jct_s != two.runs[0].jct_s


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_case_5_an_impossible_request_blocks_nobody(name: str) -> None:
    tasks = [("Z", 0.0, 90, 10), ("A", 1.0, 850, 50), ("A", 2.0, 50, 50), ("A", 2.0, 50, 50)]
    workload = singles({"Z": 1200, "A": 200}, tasks)
    metrics, _ = run_policy(workload, name, costs=ROUND_COSTS)
    assert sorted(metrics.cancelled_tasks) == [0, 1]
    assert "1200 + reservation 100 = 1300 tokens, capacity 1000" in metrics.cancelled_tasks[0]
    assert "200 + reservation 900 = 1100 tokens, capacity 1000" in metrics.cancelled_tasks[1]
    assert metrics.jct_s[2] == pytest.approx(2.5 + 0.5 + 50)
    assert metrics.finished == 2


def _case_7(gap: float) -> Workload:
    """A big request arrives while one runs; small ones keep coming, one each ``gap`` seconds."""
    small = [("A", 40.0 + gap * i, 50, 50) for i in range(20)]
    return singles({"A": 100}, [("A", 0.0, 100, 100), ("A", 30.0, 800, 50), *small])


@pytest.mark.parametrize("name", ["topas", "topas-paper"])
@pytest.mark.parametrize("gap", [5.0, 60.0])
def test_case_7_small_requests_pass_a_big_one_at_the_head(name: str, gap: float) -> None:
    metrics, _ = run_policy(_case_7(gap), name, costs=ROUND_COSTS)
    assert metrics.finished == 22
    # at once, beside the first; a step and the prefills of later ones may come in between
    assert 50.5 <= metrics.jct_s[2] < 50.5 + 1.0 + 12 * 0.5
    blocked, _ = run_policy(_case_7(gap), "fcfs", costs=ROUND_COSTS)
    assert blocked.jct_s[2] > 100.0  # behind the big one


@pytest.mark.parametrize("name", ["topas", "topas-paper"])
def test_case_7_the_big_one_gets_its_turn_when_the_small_ones_leave_a_gap(name: str) -> None:
    # the first small one with nothing running beside it ends at 150.5, the next comes at 160
    metrics, _ = run_policy(_case_7(60.0), name, costs=ROUND_COSTS)
    assert 30.0 + metrics.jct_s[1] < 40.0 + 60.0 * 3


@pytest.mark.parametrize("scale", [1.0, 60.0, None])
def test_case_3_the_default_preset_does_not_go_in_circles(scale: float | None) -> None:
    # 60 s each on prefixes of which one fits at a time
    workload = singles({"A": 500, "B": 500}, [("A", 0.0, 0, 60), ("B", 0.0, 0, 60)])
    costs = dataclasses.replace(ROUND_COSTS, kv_capacity=700, kv_bytes_per_token=0.002)
    metrics, _ = run_policy(workload, "topas", costs=costs, config={"age_scale_s": scale})
    assert metrics.finished == 2
    assert metrics.makespan_s is not None
    assert metrics.makespan_s < 3 * 120.0
    assert metrics.preemptions <= 2


def _result(**fields: Any) -> RunResult:
    result = RunResult("p", arrival_s={0: 1.0, 1: 2.0, "a": 3.0, 2: 4.0})
    for name, value in fields.items():
        setattr(result, name, value)
    return result


def test_backlogs_keep_prefixes_from_coming_in_for_one_request_each() -> None:
    """Of chain-3 one prefix fits at a time: beside it six requests of A, one of B, ten of C."""
    prefixes = prefixes_at("chain-3", 2.0, EngineCosts().kv_capacity)
    lengths = Lengths(prefix_tokens=prefixes)
    workload = make_workload("chain-3", tasks=40, rate=0.05, seed=1, lengths=lengths)
    runs = {
        weight: run_policy(workload, "topas", config={"backlog_weight": weight})[0]
        for weight in (0.0, 1.0)
    }
    lpm, _ = run_policy(workload, "lpm+host")
    assert runs[0.0].swaps > 2 * runs[1.0].swaps
    for metric in ("mean_jct_s", "p99_jct_s"):
        at_once, weighed = (getattr(run, metric) for run in runs.values())
        assert at_once > getattr(lpm, metric) > weighed


def test_figures_of_a_run() -> None:
    result = _result(finish_s={1: 12.0, 0: 21.0}, cancelled={"a": "too large"}, unfinished=[2])
    result.counters.decode_steps, result.counters.decode_tokens = 4, 10
    result.counters.completed_requests = 5
    result.counters.admitted(300, hit=False)
    result.counters.admitted(300, hit=True)
    result.counters.admitted(600, hit=True)
    metrics = summarise(result)
    assert (metrics.arrived, metrics.finished, metrics.cancelled, metrics.unfinished) == (
        4,
        2,
        1,
        1,
    )
    assert metrics.jct_s == {0: 20.0, 1: 10.0}
    assert metrics.mean_jct_s == 15.0
    assert metrics.p99_jct_s == pytest.approx(19.9)
    assert metrics.makespan_s == 20.0
    assert metrics.first_task_s == 11.0
    assert metrics.requests_per_s == 0.25
    assert metrics.mean_batch == 2.5
    assert metrics.hit_rate == 0.75


def test_a_run_in_which_nothing_finished_has_no_figures() -> None:
    metrics = summarise(_result(unfinished=[0, 1, "a", 2]))
    assert metrics.mean_jct_s is metrics.p99_jct_s is metrics.makespan_s is None
    assert metrics.hit_rate is metrics.mean_batch is None


@pytest.mark.parametrize(
    "fields",
    [
        {"finish_s": {0: 2.0, 1: 3.0}, "unfinished": [2]},
        {"finish_s": {0: 2.0, 1: 3.0, 2: 9.0, "a": 9.0}, "unfinished": [2]},
        {"finish_s": {0: 2.0, 1: 3.0, 2: 9.0, 7: 9.0}},
    ],
)
def test_a_lost_or_doubled_task_is_an_error(fields: dict[str, Any]) -> None:
    with pytest.raises(StateError, match="4 tasks arrived"):
        summarise(_result(**fields))


def test_report_lists_what_did_not_finish() -> None:
    tasks = [("A", 0.0, 900, 100), ("A", 1.0, 10, 10), ("A", 90.0, 10, 100)]
    workload = singles({"A": 100}, tasks)
    options = EngineOptions(max_time_s=100.0)
    comparison = compare(workload, ["fcfs", "topas"], costs=ROUND_COSTS, options=options)
    lines = notes(comparison)
    assert [line for line in lines if "task 0 cancelled: request 0 of stage only" in line]
    assert "fcfs: unfinished: 2" in lines
    assert "topas: unfinished: 2" in lines
    (wide,) = to_tables(comparison, Console(width=160))
    narrow = to_tables(comparison, Console(width=80))
    assert [table.row_count for table in (wide, *narrow)] == [2, 2, 2]
    assert len(wide.columns) == sum(len(table.columns) for table in narrow) - 1
    report = json.loads(to_json(comparison))
    assert list(report) == ["workload", "engine", "config", "policies", "decision_us"]
    assert report["policies"][0]["unfinished_tasks"] == [2]


def test_options_of_topas_reach_the_core() -> None:
    workload = make_workload("metagpt-sop", tasks=40, rate=0.05, seed=1)
    default, _ = run_policy(workload, "topas")
    paper, _ = run_policy(workload, "topas-paper")
    same, _ = run_policy(workload, "topas", config=PRESETS["paper"])
    assert dataclasses.replace(same, policy="topas-paper") == paper
    assert default.jct_s != paper.jct_s
    with pytest.raises(ConfigError, match="reuse_weight"):
        run_policy(workload, "topas", config={"reuse_weight": -1.0})


def test_no_policy_at_all() -> None:
    with pytest.raises(ConfigError, match="policies: none"):
        compare(make_workload("chain-3", tasks=1, rate=1.0), [])


def test_progress_is_reported_for_each_task() -> None:
    ended: list[str] = []
    seen: list[str] = []
    tick: Callable[[], None] = lambda: ended.append(seen[-1])  # noqa: E731
    workload = make_workload("chain-3", tasks=4, rate=0.1)
    compare(workload, ["fcfs", "lpm"], on_policy=seen.append, on_task_end=tick)
    assert ended == ["fcfs"] * 4 + ["lpm"] * 4


def test_a_policy_can_be_run_twice() -> None:
    workload = make_workload("chain-3", tasks=6, rate=0.1, seed=1)
    costs, options = EngineCosts(), EngineOptions()
    for name in POLICY_NAMES:
        policy: Policy = make_policy(name, config_fields(workload, costs, options))
        first = Engine(workload, policy, costs, options).run()
        again = Engine(workload, policy, costs, options).run()
        assert first.finish_s == again.finish_s
