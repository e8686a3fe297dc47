"""Failures other systems had, under the simulator and every policy (numbers as in the log).

The core's part of these cases is in test_cases_policy.py and test_cases_state.py, the trace
loader's part of case 37 in test_trace.py.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from sim_scenarios import ROUND_COSTS, random_workload, singles
from topas.errors import ConfigError, StateError, WorkflowError
from topas.policies import BASELINE_NAMES, Plan, Policy, QueueView, make_policy, parse_policies
from topas.sim import (
    Engine,
    EngineCosts,
    EngineOptions,
    Round,
    RunResult,
    StageShape,
    Task,
    WorkflowShape,
    Workload,
    best_baseline,
    compare,
    run_policy,
    summarise,
)
from topas.sim.memory.pool import KvPool
from topas.sim.profiles import config_fields
from topas.sim.report import to_json

#: Every policy, each baseline without, with an unlimited and with a tight host cache.
EVERY_WAY = [*parse_policies("all+host"), *(f"{name}+host:350" for name in BASELINE_NAMES)]
#: Those that never preempt, so that nothing is ever redone.
CALM = [name for name in EVERY_WAY if not name.startswith("topas")]


@pytest.fixture(autouse=True)
def _pool_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """After every change of the pool: what is held adds up, and is no more than there is."""
    for name in ("charge", "release"):
        plain = getattr(KvPool, name)

        def watched(self: KvPool, *arguments: Any, _plain: Any = plain) -> None:
            _plain(self, *arguments)
            assert sum(self.holders().values()) == self.used <= self.capacity

        monkeypatch.setattr(KvPool, name, watched)


def _run(workload: Workload, name: str, costs: EngineCosts, **options: Any) -> RunResult:
    """A run by its parts, so that what is left in the engine at the end can be looked at."""
    given = EngineOptions(**options)
    suffix = name.partition("+")[2]
    if suffix:
        tokens = int(suffix.partition(":")[2]) if ":" in suffix else None
        given = dataclasses.replace(given, host_cache_tokens=tokens)
    policy = make_policy(name, config_fields(workload, costs, given))
    engine = Engine(workload, policy, costs, given)
    result = engine.run()
    summarise(result)  # arrived = finished + cancelled + unfinished, each once
    if not result.unfinished:
        assert not engine.memory.running
        assert set(engine.pool.holders()) <= set(workload.agents)
    return result


class TestCase3PreemptedInCircles:
    """A and B, one prefix at a time: replaced again and again, neither would ever finish."""

    @staticmethod
    def _workload(services: Sequence[tuple[str, int]]) -> Workload:
        tasks = [(agent, 0.0, 0, tokens) for agent, tokens in services]
        return singles({"A": 500, "B": 500}, tasks)

    @pytest.mark.parametrize("name", EVERY_WAY)
    @pytest.mark.parametrize(
        "services",
        [
            [("A", 60), ("B", 60)],
            [("A", 60), ("B", 1), ("A", 1), ("B", 60), ("B", 1), ("A", 60), ("A", 1)],
        ],
        ids=["two-long", "mixed"],
    )
    def test_all_finish_with_few_preemptions(
        self, name: str, services: Sequence[tuple[str, int]]
    ) -> None:
        costs = dataclasses.replace(ROUND_COSTS, kv_capacity=700, kv_bytes_per_token=0.002)
        result = _run(self._workload(services), name, costs, stall_limit=500)
        assert not result.stopped
        assert len(result.finish_s) == len(services)
        total = sum(tokens for _, tokens in services)
        assert result.end_s < 3 * total
        if name in CALM:
            assert result.counters.preemptions == 0
        else:
            assert result.counters.preemptions <= 2 * len(services)

    @pytest.mark.parametrize("name", EVERY_WAY)
    def test_prefixes_that_replace_each_other_still_make_progress(self, name: str) -> None:
        """Requests of two agents in turn, one prefix fits: a load each, but never two for one."""
        tasks = [("AB"[i % 2], 3.0 * i, 0, 2) for i in range(20)]
        costs = dataclasses.replace(ROUND_COSTS, kv_capacity=700)
        result = _run(singles({"A": 500, "B": 500}, tasks), name, costs, stall_limit=500)
        assert len(result.finish_s) == 20
        counters = result.counters
        assert counters.cold_prefixes == 2
        if name in CALM:
            assert counters.loads + counters.recomputed_prefixes <= counters.admissions == 20


def _branches(b_input: int = 10) -> Workload:
    """S -> (A | B) -> J -> T; the input of B decides whether it can ever run."""
    stages = (
        StageShape("S", "S"),
        StageShape("A", "A", (0,)),
        StageShape("B", "B", (0,)),
        StageShape("J", "J", (1, 2)),
        StageShape("T", "T", (3,)),
    )
    rounds = tuple((Round(b_input if s.name == "B" else 10, 5),) for s in stages)
    fine = tuple((Round(10, 5),) for _ in stages)
    tasks = (
        Task("broken", 0.0, "w", rounds),
        Task("fine", 1.0, "w", fine),
        Task("late", 200.0, "w", fine),
    )
    agents = dict.fromkeys("SABJT", 250)
    return Workload("branches", agents, {"w": WorkflowShape("w", stages)}, tasks)


class TestCase29ABranchThatWillNotRun:
    @pytest.mark.parametrize("name", EVERY_WAY)
    def test_a_branch_that_can_never_run_ends_its_task_by_name(self, name: str) -> None:
        result = _run(_branches(b_input=5000), name, ROUND_COSTS)
        assert list(result.cancelled) == ["broken"]
        assert "stage B can never fit: prefix 250 + reservation 5005" in result.cancelled["broken"]
        # the join of the others is not held up, and nothing is left for the broken task
        assert set(result.finish_s) == {"fine", "late"}
        assert not result.unfinished

    @pytest.mark.parametrize("name", EVERY_WAY)
    def test_a_join_waits_for_both_branches_and_no_longer(self, name: str) -> None:
        result = _run(_branches(), name, ROUND_COSTS)
        assert set(result.finish_s) == {"broken", "fine", "late"}
        # alone in the engine: S, A beside B, J, T at 5 steps each, and at most a load and a
        # prefill before each stage
        spent = result.finish_s["late"] - result.arrival_s["late"]
        assert 20.0 <= spent < 20.0 + 5 * (2.5 + 2.6 + 1.0)

    def test_a_stage_without_a_request_is_refused_by_name(self) -> None:
        fine = _branches()
        skipped = tuple(() if i == 2 else rounds for i, rounds in enumerate(fine.tasks[1].stages))
        task = dataclasses.replace(fine.tasks[1], stages=skipped)
        with pytest.raises(WorkflowError, match="task 'fine': needs at least one round"):
            dataclasses.replace(fine, tasks=(task,))


class _Forgetful(Policy):
    """Never admits the requests of one task."""

    name = "forgetful"

    def plan(self, now: float, view: QueueView) -> Plan:
        return Plan([r.id for r in view.waiting if r.task != "fine"])


class TestCase37TasksLostAndTwoClocks:
    @pytest.mark.parametrize("name", EVERY_WAY)
    @pytest.mark.parametrize("limit", [None, 40.0])
    def test_each_task_ends_in_exactly_one_way(self, name: str, limit: float | None) -> None:
        for seed in range(12):
            workload = random_workload(seed, huge=seed % 2 == 0)
            result = _run(workload, name, ROUND_COSTS, max_time_s=limit)
            arrived = {t.id for t in workload.tasks if limit is None or t.arrival_s <= limit}
            ended = [*result.finish_s, *result.cancelled, *result.unfinished]
            assert sorted(ended, key=str) == sorted(arrived, key=str)
            assert bool(result.unfinished) <= bool(result.stopped)

    def test_a_request_that_is_never_admitted_is_an_error_that_names_it(self) -> None:
        workload = _branches()
        with pytest.raises(StateError, match=r"leaves request \d+ \(task 'fine', stage 'S'"):
            Engine(workload, _Forgetful(), ROUND_COSTS).run()

    def test_results_are_the_same_when_decisions_are_slow(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        workload = random_workload(5, tasks=6)
        names = parse_policies("all+host")

        def report() -> dict[str, Any]:
            values: dict[str, Any] = json.loads(
                to_json(compare(workload, names, costs=ROUND_COSTS))
            )
            return values

        plain = report()
        ticks = iter(range(10**9))
        monkeypatch.setattr(time, "perf_counter_ns", lambda: next(ticks) * 10**9)
        slow = report()
        assert plain.pop("decision_us") != slow.pop("decision_us")
        assert plain == slow
        assert [run["policy"] for run in plain["policies"]] == names


class TestBestBaseline:
    """The comparator of every figure: it may not be flattered by what a run left undone."""

    @pytest.fixture
    def runs(self) -> list[Any]:
        workload = random_workload(3, tasks=10)
        names = ["fcfs", "lpm", "lpm+host", "kvflow", "topas"]
        return [run_policy(workload, name, costs=ROUND_COSTS)[0] for name in names]

    def test_the_better_of_the_two_kinds(self, runs: list[Any]) -> None:
        means = [3.0, 2.0, 1.5, 1.8, 0.1]
        runs = [
            dataclasses.replace(r, mean_jct_s=m, requests_per_s=m)
            for r, m in zip(runs, means, strict=True)
        ]
        assert best_baseline(runs).policy == "lpm+host"
        assert best_baseline(runs, host=False).policy == "lpm"
        assert best_baseline(runs, host=True).policy == "lpm+host"
        assert best_baseline(runs[:2] + runs[3:]).policy == "kvflow"
        assert best_baseline(runs, "requests_per_s").policy == "fcfs"

    def test_a_run_that_left_tasks_undone_does_not_win(self, runs: list[Any]) -> None:
        short = dataclasses.replace(runs[1], mean_jct_s=0.001, finished=9, unfinished=1)
        assert best_baseline([runs[0], short]).policy == "fcfs"

    def test_nothing_to_compare_is_an_error(self, runs: list[Any]) -> None:
        with pytest.raises(ConfigError, match="no baseline has a p99_jct_s"):
            best_baseline(runs[-1:], "p99_jct_s")
        with pytest.raises(ConfigError, match="unknown 'hit_rate'"):
            best_baseline(runs, "hit_rate")
