"""The topas policy in the engine: both hold the same state; both doors of the core agree on it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import topas
from sim_scenarios import ROUND_COSTS, random_workload
from topas.config import Config
from topas.policies import Plan, QueueView
from topas.policies.topas import TopasPolicy
from topas.sim import Engine, EngineCosts, EngineOptions, Workload, make_workload
from topas.sim.profiles import config_fields

FAST = dataclasses.replace(ROUND_COSTS, decode_fixed_s=0.05, prefill_s_per_token=0.002)


class _Checked(TopasPolicy):
    """Compares the scheduler's state with what the engine shows, before and after each decision."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        self.decisions = 0
        self.target: frozenset[str] = frozenset()

    def _state(self, now: float) -> dict[str, Any]:
        return self._scheduler.snapshot(now).to_dict()

    def plan(self, now: float, view: QueueView) -> Plan:
        state = self._state(now)
        by_id = {request["id"]: request for request in state["requests"]}
        assert {i for i, r in by_id.items() if r["running"]} == {r.id for r in view.running}
        assert {i for i, r in by_id.items() if not r["running"]} == {r.id for r in view.waiting}
        for request in (*view.running, *view.waiting):
            kept = by_id[request.id]
            assert kept["kv_tokens"] == request.input_tokens + request.max_new_tokens
            assert kept["agent"] == request.agent
        assert set(state["resident"]) == self.target
        plan = super().plan(now, view)
        after = {r["id"]: r for r in self._state(now)["requests"]}
        stopped = set(plan.preempt)
        running = {r.id for r in view.running} - stopped | set(plan.admit)
        assert {i for i, r in after.items() if r["running"]} == running
        assert plan.resident is not None
        self.target = plan.resident
        self.decisions += 1
        return plan


class _BothDoors(TopasPolicy):
    """Asks the pure door as well."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        self.decisions = 0

    def plan(self, now: float, view: QueueView) -> Plan:
        for request in view.running:
            self._scheduler.request_progress(now, request.id, request.generated_tokens)
        pure = topas.decide(self._scheduler.snapshot(now), self.config)
        plan = super().plan(now, view)
        assert (list(pure.admit), list(pure.preempt)) == (list(plan.admit), list(plan.preempt))
        assert frozenset(pure.resident) == plan.resident
        self.decisions += 1
        return plan


def _run(
    kind: type[_Checked] | type[_BothDoors],
    workload: Workload,
    costs: EngineCosts,
    preset: str,
    **options: Any,
) -> Any:
    engine_options = EngineOptions(**options)
    config = Config.preset(preset, **config_fields(workload, costs, engine_options))
    policy = kind(config)
    result = Engine(workload, policy, costs, engine_options).run()
    assert not result.stopped
    assert policy.decisions == result.counters.decisions
    return policy


@pytest.mark.parametrize("preset", ["paper", "guarded"])
@pytest.mark.parametrize("redo_model", ["decode", "prefill", "kept"])
def test_engine_and_scheduler_hold_the_same_state(preset: str, redo_model: str) -> None:
    for seed in range(25):
        workload = random_workload(seed, huge=seed % 3 == 0)
        policy = _run(_Checked, workload, FAST, preset, redo_model=redo_model)
        usage = policy._scheduler.usage()
        assert (usage.tasks, usage.waiting, usage.running, usage.credits) == (0, 0, 0, 0)


@pytest.mark.parametrize("preset", ["paper", "guarded"])
@pytest.mark.parametrize("name", ["dag-10-wide", "metagpt-sop"])
def test_both_doors_agree_on_the_states_of_a_run(preset: str, name: str) -> None:
    workload = make_workload(name, tasks=15, rate=0.03, seed=1)
    policy = _run(_BothDoors, workload, EngineCosts(), preset)
    assert policy.decisions > 100
