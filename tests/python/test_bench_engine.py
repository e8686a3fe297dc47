"""``topas bench-engine`` without an engine: workloads, results, calibration, the simulated twin."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import topas
import typer
from topas.cli import bench_engine as command
from topas.enginebench import (
    WORKLOADS,
    BenchSettings,
    BenchWorkload,
    EnginePlan,
    EngineRun,
    Figures,
    Report,
    fit_costs,
    launch,
    simulate_run,
)
from topas.enginebench.learned import learned_costs, learned_lines
from topas.enginebench.model import BENCH, config, vocabulary
from topas.enginebench.results import RequestRecord
from topas.enginebench.simulated import SglangLpm, SglangMemory
from topas.enginebench.tables import against_simulator, notes
from topas.enginebench.workload import check_fits
from topas.errors import ConfigError, StateError
from topas.policies import Fcfs, Plan, Setup
from topas.sglang import Arrival, Carriers, HeadTable, Ledger, read_hints
from topas.sglang.settings import Settings
from topas.sim import Engine, EngineCosts, EngineOptions
from topas.sim.compute import Compute
from topas.sim.cost.fit import least_squares
from topas.sim.counters import Counters
from topas.sim.memory.pool import KvPool
from topas.sim.memory.prefix import Prefix
from topas.sim.request import Request
from typer.testing import CliRunner

SIMULATED = ("fcfs", "lpm", "topas")
COSTS = EngineCosts(
    kv_capacity=4096,
    kv_bytes_per_token=1.0,
    swap_bytes_per_s=5000.0,
    decode_fixed_s=0.01,
    decode_s_per_context_token=3e-6,
    prefill_fixed_s=0.005,
    prefill_s_per_token=2e-4,
)


def workload(name: str = "single", **fields: Any) -> BenchWorkload:
    return BenchWorkload(BenchSettings(workload=name, **{"tasks": 20, **fields}))


def agents_of(bench: BenchWorkload, task: int) -> list[str]:
    flow = bench.shape.workflows[bench.shape.tasks[task].workflow]
    return [stage.agent for stage in flow.stages]


def outputs_of(bench: BenchWorkload) -> dict[int, list[int]]:
    return {stage: [100 + stage] * bench.settings.output_tokens for stage in range(4)}


# ---- workloads


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_seed_gives_the_tokens(name: str) -> None:
    one, two, other = workload(name), workload(name), workload(name, seed=1)
    assert one.shape == two.shape
    for task in range(20):
        for stage in range(len(agents_of(one, task))):
            prompt = one.prompt(task, stage, outputs_of(one))
            assert prompt == two.prompt(task, stage, outputs_of(one))
    assert one.prefix("agent-0") == two.prefix("agent-0") != other.prefix("agent-0")
    assert one.prefix("agent-0") != one.prefix("agent-1")


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_longer_run_begins_with_the_same_tasks(name: str) -> None:
    short, long = workload(name, tasks=5), workload(name, tasks=20)
    kinds = [task.workflow for task in short.shape.tasks]
    if name != "mixed-no-hints":
        assert kinds == [task.workflow for task in long.shape.tasks[:5]]
        assert short.shape.tasks == long.shape.tasks[:5]
        assert short.prompt(3, 0, {}) == long.prompt(3, 0, {})


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_prompt_is_prefix_own_tokens_and_earlier_outputs(name: str) -> None:
    bench = workload(name)
    outputs = outputs_of(bench)
    for task, entry in enumerate(bench.shape.tasks):
        flow = bench.shape.workflows[entry.workflow]
        for index, stage in enumerate(flow.stages):
            prompt = bench.prompt(task, index, outputs)
            prefix = bench.prefix(stage.agent)
            earlier = [token for before in stage.after for token in outputs[before]]
            assert prompt[: len(prefix)] == prefix
            assert prompt[len(prompt) - len(earlier) :] == earlier
            assert len(prompt) == len(prefix) + entry.stages[index][0].input_tokens
            assert len(prompt) > len(prefix) + len(earlier)
            assert all(3 <= token < 1024 for token in prompt)


def test_stages_of_single_have_one_agent_those_of_the_others_change() -> None:
    for task in range(20):
        assert len(set(agents_of(workload("single"), task))) == 1
        assert len(set(agents_of(workload("chain-3"), task))) == 3
        assert len(set(agents_of(workload("dag-4"), task))) == 4
    assert len({agents_of(workload("chain-3"), task)[0] for task in range(20)}) > 3


def test_the_mixed_workload_has_popular_and_unique_prompts() -> None:
    bench = workload("mixed-no-hints", tasks=2000)
    counts = Counter(task.workflow for task in bench.shape.tasks)
    assert counts["unique"] / 2000 == pytest.approx(0.25, abs=0.03)
    assert counts["flow-0"] > 1.5 * counts["flow-1"] > 1.5 * counts["flow-4"]
    unique = [i for i, task in enumerate(bench.shape.tasks) if task.workflow == "unique"][:50]
    assert len({tuple(bench.prompt(task, 0, {})[:16]) for task in unique}) == 50


def test_arrivals_come_at_the_rate_or_all_at_once() -> None:
    arrivals = [task.arrival_s for task in workload(rate=10.0, tasks=1000).shape.tasks]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(100.0, rel=0.15)
    assert {task.arrival_s for task in workload().shape.tasks} == {0.0}


@pytest.mark.parametrize("name", ["single", "chain-3", "dag-4"])
def test_the_plugin_understands_the_hints(name: str) -> None:
    """Every task is placed in its workflow and ends with its last stage."""
    bench = workload(name, tasks=6)
    core = topas.Scheduler(
        topas.Config(
            kv_capacity_tokens=100_000,
            kv_bytes_per_token=1.0,
            swap_bytes_per_s=1e6,
            decode_s_per_token=0.01,
        )
    )
    ended: list[str | None] = []
    ledger = Ledger(
        core,
        HeadTable(64, 1),
        profile_s=lambda *_: 1.0,
        on_task_end=lambda flow, _: ended.append(flow),
    )
    for task in range(6):
        for stage in range(len(agents_of(bench, task))):
            hints = bench.agent_hints(task, stage)
            assert hints is not None
            read = read_hints(Carriers(custom_params={"agent_hints": json.dumps(hints)}))
            assert read.agent == agents_of(bench, task)[stage]
            prompt = bench.prompt(task, stage, outputs_of(bench))
            rid = 10 * task + stage
            ledger.arrived(float(rid), Arrival(rid, prompt, 12, (), read))
            assert ledger.tasks == 1
            ledger.completed(rid + 0.5, rid, 0.1)
    assert ended == [task.workflow for task in bench.shape.tasks]
    assert not ledger.hint_errors
    assert ledger.tasks == 0


def test_no_hints_where_none_are_wanted() -> None:
    assert workload("chain-3", hints=False).agent_hints(0, 0) is None
    assert workload("mixed-no-hints").agent_hints(0, 0) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workload": "chain-4"}, "workload: unknown 'chain-4'"),
        ({"tasks": 0}, "tasks: must be an integer of at least 1"),
        ({"output_tokens": 1}, "output_tokens: must be an integer of at least 2"),
        ({"rate": 0.0}, "rate: must be a finite number above 0"),
        ({"concurrency": 0}, "concurrency"),
    ],
)
def test_a_wrong_setting_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchSettings(**fields)


def test_a_pool_that_cannot_hold_a_request_is_refused() -> None:
    settings = BenchSettings(workload="dag-4", prefix_tokens=1000, input_tokens=20)
    check_fits(settings, 4096)
    with pytest.raises(ConfigError, match="pool: 1020 tokens, but a request needs"):
        check_fits(settings, 1020)


# ---- starting an engine


def test_only_the_topas_run_has_the_plugin(tmp_path: Path) -> None:
    plan = EnginePlan(model=Path("m"))
    outer = {"TOPAS_ENABLE": "1", "SGLANG_PLUGINS": "topas", "PROMETHEUS_MULTIPROC_DIR": "/x"}
    for policy in ("fcfs", "lpm"):
        variables = launch.environment(plan, policy, outer, tmp_path)
        assert (variables["TOPAS_ENABLE"], variables["SGLANG_PLUGINS"]) == ("0", "none")
    variables = launch.environment(plan, "topas", {}, tmp_path)
    assert (variables["TOPAS_ENABLE"], variables["SGLANG_PLUGINS"]) == ("1", "topas")
    assert variables["SGLANG_PLATFORM"] == "topas-test-cpu"
    assert variables["OMP_NUM_THREADS"] == "1"
    threads = launch.environment(plan, "fcfs", {"OMP_NUM_THREADS": "2"}, tmp_path)
    assert threads["OMP_NUM_THREADS"] == "2"
    assert "PROMETHEUS_MULTIPROC_DIR" not in launch.environment(plan, "topas", outer, tmp_path)
    gpu = EnginePlan(model=Path("m"), device="cuda")
    assert "SGLANG_PLATFORM" not in launch.environment(gpu, "topas", {}, tmp_path)


def test_copies_are_a_setting_on_top_of_the_users(tmp_path: Path) -> None:
    plan, own = EnginePlan(model=Path("m")), tmp_path / "own.yaml"
    own.write_text("policy: {samples: 16}\n")
    for outer, expected in (({}, {}), ({"TOPAS_CONFIG": str(own)}, {"samples": 16})):
        variables = launch.environment(plan, "topas+copies", outer, tmp_path)
        assert (variables["TOPAS_ENABLE"], variables["SGLANG_PLUGINS"]) == ("1", "topas")
        settings = Settings.from_environment(variables)
        assert settings is not None
        assert settings.prefix_copies is not None
        assert settings.policy == expected
    own.write_text("prefix_copies: {host_bytes: 77}\n")
    settings = Settings.from_environment(
        launch.environment(plan, "topas+copies", {"TOPAS_CONFIG": str(own)}, tmp_path)
    )
    assert settings is not None
    assert settings.prefix_copies is not None
    assert settings.prefix_copies.host_bytes == 77
    assert "TOPAS_CONFIG" not in launch.environment(plan, "topas", {}, tmp_path)


def test_topas_goes_with_fcfs_and_arguments_are_passed_on() -> None:
    plan = EnginePlan(model=Path("m"), arguments={"page_size": 16, "dtype": "bfloat16"})
    found = {p: launch.engine_arguments(plan, p)["schedule_policy"] for p in launch.POLICIES}
    assert found == {"fcfs": "fcfs", "lpm": "lpm", "topas": "fcfs", "topas+copies": "fcfs"}
    arguments = launch.engine_arguments(plan, "topas")
    assert (arguments["page_size"], arguments["dtype"]) == (16, "bfloat16")
    assert (arguments["max_total_tokens"], arguments["device"]) == (4096, "cpu")
    bare = EnginePlan(model=Path("m"), device="cuda", pool=None, max_running=None)
    assert "max_total_tokens" not in launch.engine_arguments(bare, "lpm")
    assert "attention_backend" not in launch.engine_arguments(bare, "lpm")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"SGLang is not installed.*install\.sh"):
        launch.check_engine("cpu")
    monkeypatch.setattr(launch, "find_spec", lambda name: object())
    monkeypatch.setattr(launch, "entry_points", lambda group: ())
    with pytest.raises(ConfigError, match=r"topas-test-cpu, which tests/sglang/install\.sh"):
        launch.check_engine("cpu")
    launch.check_engine("cuda")
    monkeypatch.setenv("SGLANG_PLATFORM", "mine")
    launch.check_engine("cpu")


def test_a_run_that_fails_says_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "engine_arguments", lambda plan, policy: {})
    monkeypatch.setattr(
        launch,
        "environment",
        lambda *_: {**os.environ, "PYTHONWARNINGS": "bad"},
    )
    monkeypatch.setattr(launch.sys, "executable", "/bin/ls")
    with pytest.raises(StateError, match="the engine for lpm ended with status"):
        launch.run_engine(EnginePlan(model=Path("m")), BenchSettings(), "lpm")


def test_a_run_that_takes_too_long_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sleeper, pids = tmp_path / "sleeper", tmp_path / "pids"
    sleeper.write_text(f"#!/bin/sh\necho asleep\nsleep 60 &\necho $! $$ >{pids}\nwait\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(launch.sys, "executable", str(sleeper))
    begin = time.monotonic()
    with pytest.raises(StateError, match=r"took too long(.|\n)*asleep"):
        launch.run_engine(EnginePlan(model=Path("m"), timeout_s=2.0), BenchSettings(), "fcfs")
    assert time.monotonic() - begin < 30.0
    deadline = time.monotonic() + 10.0
    while any(map(is_there, pids.read_text().split())):  # nothing of it is left
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_there(pid: str) -> bool:
    try:
        state = Path("/proc", pid, "stat").read_text().split(")")[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "XZ"


def test_the_vocabulary_is_that_of_the_model(tmp_path: Path) -> None:
    assert vocabulary(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps(config(BENCH)))
    assert vocabulary(tmp_path) == 1024
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 7}}))
    assert vocabulary(tmp_path) == 7


# ---- results


def record(task: int, stage: int, end_s: float, **fields: Any) -> RequestRecord:
    given = {
        "agent": "agent-0",
        "submit_s": 0.0,
        "prompt_tokens": 100,
        "cached_tokens": 60,
        "output_tokens": 12,
        "retractions": 0,
        "entry_s": None,
        "prefilled_s": None,
        "finished_s": None,
        "digest": f"{task}{stage}",
    }
    return RequestRecord(task=task, stage=stage, end_s=end_s, **{**given, **fields})


def run(policy: str = "fcfs", delay_s: float = 0.0, **fields: Any) -> EngineRun:
    requests = [
        record(0, 0, 2.0 + delay_s),
        record(0, 1, 4.0 + delay_s, retractions=2),
        record(1, 0, 6.0 + delay_s, cached_tokens=0),
    ]
    given = {"start_s": 1.0, "cpu_s": 4.8, "arrivals": [1.0, 2.0], "requests": requests}
    return EngineRun(policy=policy, **{**given, **fields})


def test_figures_of_a_run() -> None:
    figures = run().figures()
    assert run().jct_s == [3.0, 4.0]
    assert (figures.mean_jct_s, figures.p50_jct_s, figures.makespan_s) == (3.5, 3.5, 5.0)
    assert figures.p99_jct_s == pytest.approx(3.99)
    assert figures.requests_per_s == pytest.approx(0.6)
    assert figures.hit_rate == pytest.approx(120 / 300)
    assert (figures.computed_tokens, figures.retractions) == (180, 2)
    assert figures.decisions is None
    assert figures.decision_share is None


def test_what_decisions_cost() -> None:
    counters = {
        "topas:decision_seconds_count": 50.0,
        "topas:decision_seconds_sum": 0.01,
        "topas:bridge_seconds_total": 0.05,
        "topas:preemptions_total": 3.0,
    }
    figures = run("topas", counters=counters).figures()
    assert (figures.decisions, figures.preemptions, figures.fallbacks) == (50, 3, 0)
    assert figures.decision_us == pytest.approx(200.0)
    assert figures.decision_share == pytest.approx(0.002)
    assert figures.topas_share == pytest.approx(0.01)
    assert run("lpm", counters=counters).figures().decisions is None


def test_medians_are_taken_figure_by_figure() -> None:
    runs = [run(delay_s=delay).figures() for delay in (0.0, 10.0, 1.0)]
    assert Figures.median(runs).mean_jct_s == 4.5
    assert Figures.median(runs).decision_us is None
    with pytest.raises(StateError, match="no run"):
        Figures.median([])


def test_one_other_token_is_seen() -> None:
    report = Report({}, ["fcfs", "lpm"], [run("fcfs"), run("lpm", delay_s=3.0)])
    assert report.same_outputs
    assert report.different_requests() == 0
    changed = [*run().requests[:2], record(1, 0, 6.0, digest="other")]
    report.runs.append(run("lpm", requests=changed))
    assert not report.same_outputs
    assert report.different_requests() == 1
    assert [len(found) for found in report.output_hashes.values()] == [1, 2]


def test_an_engine_that_had_to_wait_for_the_processor_is_named() -> None:
    settings = {"device": "cpu", "rate": None}
    runs = [run("fcfs"), run("lpm", cpu_s=3.0)]  # both took 5 s
    assert len(notes(Report(settings, ["fcfs"], runs))) == 1
    assert notes(Report(settings, ["fcfs", "lpm"], runs))[1].endswith("fcfs 96 %, lpm 60 %")
    assert len(notes(Report({**settings, "rate": 1.0}, ["fcfs", "lpm"], runs))) == 1


def test_the_order_of_ends_does_not_change_the_hash() -> None:
    assert run(requests=run().requests[::-1]).output_hash == run().output_hash


def test_a_lost_task_is_no_result() -> None:
    with pytest.raises(StateError, match=r"tasks without an end: \[1\]"):
        run(requests=run().requests[:2]).figures()


# ---- calibration


def test_least_squares_has_no_negative_coefficients() -> None:
    x = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    assert least_squares(x, np.array([1.0, 3.0, 5.0])) == pytest.approx([1.0, 2.0])
    found = least_squares(x, np.array([5.0, 3.0, 1.0]))
    assert found[1] == 0.0
    assert found[0] == pytest.approx(3.0)


class Recorder(Compute):
    """The simulator's arithmetic, writing down what an engine would report."""

    def __init__(self, costs: EngineCosts, prefixes: dict[str, Prefix]) -> None:
        super().__init__(costs, prefixes, Counters(), coalesce=False)
        self.times: dict[int, list[float]] = {}

    def advance(self, now: float, until: float) -> tuple[float, list[Request]]:
        first = self._prefill[0] if self._prefill else None
        after, done = super().advance(now, until)
        if first is not None:
            self.times[first.id] = [now, after]
        for request in done:
            self.times[request.id].append(after)
        return after, done


def recorded(costs: EngineCosts) -> list[RequestRecord]:
    """Requests of a simulated run, as records of an engine with these costs."""
    bench = workload("chain-3", tasks=40, rate=4.0)
    engine = Engine(bench.shape, Fcfs(), costs, EngineOptions(max_running=6, coalesce=False))
    prefixes = engine.memory.prefixes
    recorder = Recorder(costs, dict(prefixes))
    recorder._prefixes = prefixes
    engine._compute = engine.memory.compute = recorder
    finished: list[tuple[Request, int]] = []
    add = recorder.add

    def note(request: Request) -> None:
        prefix = prefixes[request.agent]
        cold = not prefix.computed and not any(r.agent == request.agent for r in recorder._prefill)
        finished.append((request, prefix.tokens if cold else 0))
        add(request)

    recorder.add = note  # type: ignore[method-assign]
    engine.run()
    records = []
    for request, missing in finished:
        entry, prefilled, end = recorder.times[request.id]
        prompt = request.prefix_tokens + request.input_tokens
        records.append(
            record(
                *(0, request.id, end),
                prompt_tokens=prompt,
                cached_tokens=request.prefix_tokens - missing,
                output_tokens=request.output_tokens + 1,
                entry_s=entry,
                prefilled_s=prefilled,
                finished_s=end,
            )
        )
    return records


def test_costs_are_recovered_from_requests_that_ran_beside_each_other() -> None:
    fit = fit_costs([recorded(COSTS)], 4096)
    assert fit.requests > 100
    assert fit.costs.prefill_fixed_s == pytest.approx(COSTS.prefill_fixed_s, rel=0.02)
    assert fit.costs.prefill_s_per_token == pytest.approx(COSTS.prefill_s_per_token, rel=0.02)
    assert fit.costs.decode_fixed_s == pytest.approx(COSTS.decode_fixed_s, rel=0.1)
    context = fit.costs.decode_s_per_context_token
    assert context == pytest.approx(COSTS.decode_s_per_context_token, rel=0.1)
    assert fit.costs.swap_s(1000) == pytest.approx(1000 * fit.costs.prefill_s_per_token)
    assert fit.prefill_error < 0.01
    assert fit.decode_error < 0.05


def test_requests_without_times_are_not_fitted() -> None:
    with pytest.raises(StateError, match="0 requests have the engine's times, 8 are needed"):
        fit_costs([run().requests], 4096)


LEARNED = {
    "prefill_fixed_seconds": COSTS.prefill_fixed_s,
    "prefill_token_seconds": COSTS.prefill_s_per_token,
    "decode_token_seconds": 0.02,
}


def test_what_topas_has_learned_stands_beside_what_its_requests_took() -> None:
    records = recorded(COSTS)
    report = Report({}, ["fcfs", "topas"])
    report.runs = [run(), run("topas", requests=records, learned=LEARNED)]
    (learned,) = learned_costs(report, 4096)
    assert learned["profile"] == LEARNED
    batch, step = learned["prefill_batch"], learned["decode_step"]
    computed = sum(one.computed_tokens for one in records)
    assert 0 < batch["tokens"] < computed
    assert batch["learned_s"] == COSTS.prefill_s(batch["tokens"])
    assert batch["difference_percent"] == pytest.approx(0.0, abs=2.0)
    lengths = [one.prompt_tokens + one.output_tokens for one in records]
    least_s = COSTS.decode_fixed_s + COSTS.decode_s_per_context_token * min(lengths) / 2
    assert (
        least_s
        < step["measured_s"]
        < COSTS.decode_fixed_s + (COSTS.decode_s_per_context_token * 8 * max(lengths))
    )
    assert step["difference_percent"] == pytest.approx(100 * (0.02 / step["measured_s"] - 1))
    (line,) = learned_lines([learned])
    assert f"a prefill of {batch['tokens']:.0f} tokens" in line
    assert "decode step 20.00 ms" in line


def test_a_short_run_has_costs_but_nothing_to_set_beside_them() -> None:
    report = Report({}, ["topas"], [run("topas", learned=LEARNED), run("topas")])
    learned = learned_costs(report, 4096)
    assert learned == [{"profile": LEARNED}]
    assert "requests' times" not in learned_lines(learned)[0]


# ---- the run once more in the simulator


def test_so_many_tasks_are_in_flight_and_all_end() -> None:
    bench = workload("chain-3", tasks=30, concurrency=5)
    for policy in SIMULATED:
        metrics = simulate_run(bench, policy, COSTS, 8)
        assert (metrics.arrived, metrics.finished) == (30, 30)
        assert metrics.makespan_s is not None
        in_flight = sum(metrics.jct_s.values()) / metrics.makespan_s
        assert 4.0 < in_flight <= 5.0 + 1e-9


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("hints", [True, False])
def test_every_workload_ends_in_the_simulator(name: str, hints: bool) -> None:
    bench = workload(name, tasks=40, hints=hints)
    for policy in SIMULATED:
        metrics = simulate_run(bench, policy, COSTS, 8)
        assert metrics.finished == 40
        assert metrics.peak_kv_tokens <= COSTS.kv_capacity


def test_locality_saves_prefills_in_the_simulator() -> None:
    bench = workload("single", tasks=60)
    spans = {p: simulate_run(bench, p, COSTS, 8).makespan_s for p in SIMULATED}
    assert spans["fcfs"] is not None
    assert all(spans[p] is not None and spans[p] < 0.8 * spans["fcfs"] for p in ("lpm", "topas"))


def test_settings_of_the_plugin_reach_the_simulated_one() -> None:
    bench = workload("dag-4", tasks=60)
    cheap, dear = (
        simulate_run(bench, "topas", COSTS, 8, Settings(policy={"kv_bytes_per_token": factor}))
        for factor in (0.01, 8.0)
    )
    assert cheap.recomputed_tokens > 1.5 * dear.recomputed_tokens > 0


def simulated_memory(capacity: int) -> tuple[SglangMemory, dict[int, Request]]:
    prefixes = {name: Prefix(name, 100) for name in ("a", "b")}
    counters, pool = Counters(), KvPool(capacity)
    compute = Compute(COSTS, prefixes, counters)
    waiting = {
        id_: Request(id_, id_, 0, "s", agent, 0, 0, 0.0, 0.0, 100, 20, 10, 10)
        for id_, agent in enumerate("aab")
    }
    return SglangMemory(pool, prefixes, compute, counters, EngineOptions()), waiting


def test_a_prefix_is_computed_by_all_that_are_admitted_with_the_first() -> None:
    memory, waiting = simulated_memory(1000)
    requests = dict(waiting)
    memory.apply(0.0, Plan([0, 1]), waiting)
    memory.compute.advance(0.0, 0.0)
    assert memory.compute.advance(1.0, 1.0)[0] == pytest.approx(1.0 + COSTS.prefill_s(120))
    assert requests[1].prefill_tokens == 120
    memory.computes_again = False
    again, waiting = simulated_memory(1000)
    again.computes_again = False
    again.apply(0.0, Plan([0, 1]), waiting)
    again.compute.advance(0.0, 0.0)
    assert again.compute.advance(1.0, 1.0)[0] == pytest.approx(1.0 + COSTS.prefill_s(20))


def test_tails_stay_until_the_room_is_needed() -> None:
    memory, waiting = simulated_memory(240)
    memory.apply(0.0, Plan([0]), waiting)
    now, done = 0.0, []
    while not done:
        now, done = memory.compute.advance(now, now + 100.0)
    memory.finish(done[0])
    assert memory.pool.used == 100 + 30
    memory.apply(now, Plan([2]), waiting)  # needs 130, 110 are free
    assert memory.resident_tokens("a") == 100
    assert memory.pool.used == 100 + 130


def test_lpm_puts_those_last_that_would_compute_a_prefix_again() -> None:
    class Queue:
        def __init__(self) -> None:
            self.waiting = list(simulated_memory(1000)[1].values())
            self.running: list[Request] = []

        def resident_tokens(self, agent: str) -> int:
            return 0

        def cached_tokens(self, request: Request) -> int:
            return 0

    policy = SglangLpm()
    policy.begin(Setup({"a": 100, "b": 100}, {}))
    assert list(policy.plan(0.0, Queue()).admit) == [0, 2, 1]
    policy.begin(Setup({"a": 0, "b": 100}, {}))
    assert list(policy.plan(0.0, Queue()).admit) == [0, 1, 2]


# ---- the command

APP = typer.Typer()
APP.command()(command.bench_engine)


def invoke(monkeypatch: pytest.MonkeyPatch, *arguments: str, changed: bool = False) -> Any:
    """The command with an engine that is the simulator's arithmetic."""

    def run_engine(plan: EnginePlan, settings: BenchSettings, policy: str) -> EngineRun:
        records = recorded(COSTS)
        if changed and policy == "lpm":
            records[0] = record(0, 0, 1.0, digest="other")
        return EngineRun(policy=policy, start_s=1.0, cpu_s=1e3, arrivals=[0.0], requests=records)

    monkeypatch.setattr(command, "run_engine", run_engine)
    monkeypatch.setattr(command, "check_engine", lambda device: None)
    result = CliRunner().invoke(APP, ["--device", "cpu", "--model", "/nowhere", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_tables_and_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    arguments = ("chain-3", "--tasks", "6", "--repeat", "2", "--pool", "4096", "--json", str(path))
    result = invoke(monkeypatch, *arguments)
    assert result.exit_code == 0
    for word in ("mean", "p99", "hit", "span s", "medians of 2 runs", "outputs: the same tokens"):
        assert word in result.output
    assert "measured / simulated" in result.output
    fields = json.loads(path.read_text())
    order = [entry["policy"] for entry in fields["runs"]]
    assert order == ["fcfs", "lpm", "topas", "lpm", "topas", "fcfs"]
    assert list(fields["medians"]) == ["fcfs", "lpm", "topas"]
    assert fields["same_outputs"] is True
    assert fields["calibration"]["fitted_to"] == "fcfs"
    assert set(fields["calibration"]["comparison"]["topas"]) == {"mean JCT", "p99 JCT", "makespan"}


def test_other_outputs_are_shown_and_end_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke(monkeypatch, "single", "--no-calibrate", changed=True)
    assert result.exit_code == 1
    assert "outputs DIFFER" in result.output


def test_the_error_of_the_simulator_is_relative_to_what_was_measured() -> None:
    metrics = simulate_run(workload(tasks=3), "fcfs", COSTS, 8)
    assert metrics.mean_jct_s is not None
    real = Figures.median([run().figures()])
    row = against_simulator({"fcfs": real}, {"fcfs": metrics})["fcfs"]["mean JCT"]
    assert row["error_percent"] == pytest.approx(100 * (metrics.mean_jct_s - 3.5) / 3.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "fcfs,spf"], "policies: unknown 'spf'"),
        (["--policies", "fcfs,fcfs"], "'fcfs' is given twice"),
        (["--rate", "1", "--concurrency", "3"], "--concurrency: is for runs without --rate"),
        (["--device", "tpu"], "device: unknown 'tpu'"),
        (["--engine-arg", "page_size"], "--engine-arg page_size: must be KEY=VALUE"),
        (["--engine-arg", "schedule_policy=lpm"], "comes from --policies"),
        (["--repeat", "0"], "repeat: must be an integer of at least 1"),
        (["--pool", "1000"], "pool: 1000 tokens, but a request needs"),
    ],
)
def test_a_wrong_option_is_named(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=message):
        invoke(monkeypatch, *arguments)


def test_files_that_cannot_be_used_are_named_before_the_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"^--json {tmp_path}: Is a directory$"):
        invoke(monkeypatch, "single", "--json", str(tmp_path))
    settings = tmp_path / "topas.yaml"
    settings.write_text("reask_s: -1\n")
    monkeypatch.setenv("TOPAS_CONFIG", str(settings))
    with pytest.raises(ConfigError, match=rf"^TOPAS_CONFIG: {settings}: reask_s: .*, got -1$"):
        invoke(monkeypatch, "single", "--policies", "fcfs")


def test_engine_arguments_are_json_or_text() -> None:
    pairs = ["page-size=16", "enable_mixed_chunk=true", "dtype=float16"]
    found = command._engine_arguments(pairs)
    assert found == {"page_size": 16, "enable_mixed_chunk": True, "dtype": "float16"}
