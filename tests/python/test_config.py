"""Settings: what is legal in each field (cases 33 and 34), presets, copies."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
from agreement import Json
from busy import NOW, busy_scheduler, fingerprint
from scenarios import Engine, case_config
from strategies import random_snapshot
from topas import (
    PRESETS,
    Config,
    ConfigError,
    Decision,
    Scheduler,
    Snapshot,
    TopasError,
    decide,
    reference,
)
from topas.reference.state import read_settings

REQUIRED: Json = {
    "kv_capacity_tokens": 1000,
    "kv_bytes_per_token": 262144.0,
    "swap_bytes_per_s": 2e10,
    "decode_s_per_token": 0.02,
}
NAMES = [field.name for field in dataclasses.fields(Config)]
NAN, INF = math.nan, math.inf

# Which of the values 0, -1, NaN, inf, "5", True, None are legal, field by field.
LEGAL: dict[str, tuple[Any, ...]] = {
    "kv_capacity_tokens": (0,),
    "kv_bytes_per_token": (0,),
    "swap_bytes_per_s": (),
    "decode_s_per_token": (0,),
    "prefill_fixed_s": (0,),
    "prefill_s_per_token": (0,),
    "enumerate_max_agents": (0,),
    "max_evaluations": (0,),
    "action_cap": (0,),
    "max_running_requests": (0,),
    "reuse_weight": (0,),
    "age_weight": (0,),
    "age_scale_s": (None,),
    "exact_limit": (),
    "samples": (0,),
    "seed": (0,),
    "count_running": (True,),
    "age_credit": (True,),
    "redo_weight": (0,),
    "redo_model": (),
    "move_model": (),
    "move_weight": (0,),
    "work_conserving": (True,),
    "gain_model": (),
    "urgency": (0,),
    "admit_order": (),
    "preempt_limit": (0,),
    "overtake_limit": (0,),
    "backlog_weight": (0,),
    "reserve_limit": (0,),
    "rollout_scenarios": (0,),
    "rollout_steps": (0,),
    "rollout_margin": (0,),
    "rollout_power": (),
}
TRIED: tuple[Any, ...] = (0, -1, NAN, INF, "5", True, None)
MORE_BAD: dict[str, tuple[Any, ...]] = {
    "kv_capacity_tokens": (1.0, 2**48 + 1, 2**63, [], "1000"),
    "kv_bytes_per_token": (-0.5, -INF, 10**400, b"1"),
    "swap_bytes_per_s": (0.0, -0.0, -2e10, 1e-320),
    "decode_s_per_token": (-1e-9,),
    "prefill_fixed_s": (-1e-9,),
    "prefill_s_per_token": (-1e-9,),
    "enumerate_max_agents": (21, 8.0),
    "max_evaluations": (-1, 1.0, 2**40),
    "action_cap": (1.0, 2**40),
    "max_running_requests": (1.0, 2**40),
    "reuse_weight": (-1e-9,),
    "age_weight": (-1e-9,),
    "age_scale_s": (0.0, -5.0),
    "exact_limit": (2**20 + 1, 16.0),
    "samples": (2**20 + 1, 16.0),
    "seed": (2**64, 1.0),
    "count_running": (1, "yes", np.True_),
    "age_credit": (1, "no"),
    "redo_weight": (-1e-9,),
    "redo_model": ("", "Decode", "none", b"decode"),
    "move_model": ("", "Tasks", "twice", b"once"),
    "move_weight": (-1e-9, "1"),
    "work_conserving": (1, "yes"),
    "gain_model": ("", "Path", "worth", b"path"),
    "urgency": (-1e-9, "1"),
    "admit_order": ("", "Arrival", "fcfs", b"arrival"),
    "preempt_limit": (-1e-9, "1"),
    "overtake_limit": (-1e-9, "1"),
    "backlog_weight": (-1e-9, "1"),
    "reserve_limit": (-1e-9, "1"),
    "rollout_scenarios": (1.0, 1025),
    "rollout_steps": (-1, 1.0, 2**40),
    "rollout_margin": (-1e-9, "1"),
    "rollout_power": (0.99, 8.01, "1"),
}


def considered(decision: Decision) -> int:
    """Count the prefix sets that were packed or could not be chosen."""
    return decision.evaluated_sets + decision.pruned_sets


def same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and left == right


def is_legal(name: str, value: Any) -> bool:
    return any(same(value, legal) for legal in LEGAL[name])


def unchecked(name: str, value: Any) -> Config:
    """Get a bad value past the constructor, as a careless caller could."""
    config = Config(**REQUIRED)
    object.__setattr__(config, name, value)
    return config


class TestCase33ZeroNegativeAndNaN:
    """Each is legal in a field or refused by its name, at every door."""

    def test_the_table_has_every_field(self) -> None:
        assert list(LEGAL) == NAMES
        assert list(MORE_BAD) == NAMES

    @pytest.mark.parametrize("name", NAMES)
    def test_each_value_is_legal_or_refused_by_name(self, name: str) -> None:
        for value in TRIED:
            fields = {**REQUIRED, name: value}
            if is_legal(name, value):
                assert same(getattr(Config(**fields), name), value)
                continue
            with pytest.raises(ValueError, match=f"^{name}: ") as caught:
                Config(**fields)
            assert type(caught.value) is ConfigError, value
            with pytest.raises(ConfigError, match=f"^{name}: "):
                Config.preset("paper", **fields)
            with pytest.raises(ConfigError, match=f"^{name}: "):
                Config.from_dict(fields)
            with pytest.raises(ConfigError, match=f"^{name}: "):
                Config(**REQUIRED).replace(**{name: value})

    @pytest.mark.parametrize("name", NAMES)
    def test_further_bad_values_are_refused_by_name(self, name: str) -> None:
        for value in MORE_BAD[name]:
            with pytest.raises(ConfigError, match=f"^{name}: "):
                Config(**{**REQUIRED, name: value})

    @pytest.mark.parametrize("name", NAMES)
    def test_core_checks_for_itself(self, name: str) -> None:
        """A bad setting that comes past the constructor is refused by each door, by name."""
        scheduler = busy_scheduler()
        snapshot = scheduler.snapshot(NOW)
        before = fingerprint(scheduler)
        for value in (*TRIED, *MORE_BAD[name]):
            if is_legal(name, value):
                continue
            config = unchecked(name, value)
            with pytest.raises(ConfigError, match=f"^{name}: "):
                Scheduler(config)
            with pytest.raises(ConfigError, match=f"^{name}: "):
                decide(snapshot, config)
            with pytest.raises(ConfigError, match=f"^{name}: "):
                scheduler.reconfigure(config)
        assert fingerprint(scheduler) == before, "the old settings are in force"

    @pytest.mark.parametrize("name", NAMES)
    def test_live_scheduler_takes_legal_values(self, name: str) -> None:
        for value in LEGAL[name]:
            scheduler = busy_scheduler()
            scheduler.reconfigure(Config(**{**REQUIRED, name: value}))
            scheduler.decide(NOW)

    def test_no_legal_zero_makes_a_number_that_is_not_finite(self) -> None:
        """With everything at zero that may be zero, decisions stay plain numbers."""
        zeros = {name: 0 for name, legal in LEGAL.items() if any(same(value, 0) for value in legal)}
        for seed in range(60):
            fields = random_snapshot(5_000_000 + seed)
            for name in zeros:
                config = Config.from_dict({**fields["config"], "age_scale_s": 9.0, name: 0})
                if name == "samples":
                    config = config.replace(exact_limit=2**20)
                decision = decide(Snapshot.from_dict(fields), config).to_dict()
                numbers = [
                    decision["score"],
                    *decision["terms"].values(),
                    *decision["credits"].values(),
                ]
                assert all(map(math.isfinite, numbers)), name

    def test_zero_capacity_runs_nothing_and_says_so(self) -> None:
        scheduler = busy_scheduler()
        scheduler.task_cancelled(NOW, "t")
        scheduler.reconfigure(Config(**{**REQUIRED, "kv_capacity_tokens": 0}))
        decision = scheduler.decide(NOW)
        assert (decision.admit, decision.resident) == ([], [])
        assert decision.unschedulable == ["rs"]

    def test_numpy_numbers_are_numbers(self) -> None:
        config = Config(
            kv_capacity_tokens=np.int64(1000),
            kv_bytes_per_token=np.float32(262144.0),
            swap_bytes_per_s=np.float64(2e10),
            decode_s_per_token=0.02,
            seed=np.uint64(2**64 - 1),
        )
        assert config == Config(**REQUIRED, seed=2**64 - 1)


def admitted(count: int = 50, **fields: Any) -> list[int]:
    """Give the sizes of the first three decisions over so many requests that all fit."""
    engine = Engine(case_config(100_000, **fields), {"A": 100, "B": 200})
    for number in range(count):
        engine.arrive(number, "AB"[number % 2])
    return [len(engine.decide().admit) for _ in range(3)]


class TestCase34WhatZeroMeans:
    """0 is "no cap" or "never enumerate", never a small number rounded down."""

    def test_no_cap_admits_all_that_fit(self) -> None:
        assert admitted(action_cap=0) == [50, 0, 0]

    def test_cap_of_one_admits_one_a_decision(self) -> None:
        assert admitted(action_cap=1) == [1, 1, 1]

    def test_no_running_limit_admits_all_that_fit(self) -> None:
        assert admitted(max_running_requests=0) == [50, 0, 0]

    def test_running_limit_counts_what_runs(self) -> None:
        assert admitted(max_running_requests=1) == [1, 0, 0]
        assert admitted(max_running_requests=7) == [7, 0, 0]
        assert admitted(max_running_requests=7, action_cap=3) == [3, 3, 1]

    def test_no_enumeration_is_the_greedy_search_and_exact_for_two_agents(self) -> None:
        """M=0 always searches greedily. With at most two active agents the climb, its pair test,
        drops and swaps see every set that matters: the decision is that of the enumeration."""
        compared = different = 0
        for seed in range(6_000_000, 6_002_500):
            fields = random_snapshot(seed)
            active = {request["agent"] for request in fields["requests"]}
            greedy, full = (
                decide(
                    Snapshot.from_dict(fields),
                    Config.from_dict({**fields["config"], "enumerate_max_agents": most}),
                )
                for most in (0, 8)
            )
            if len(active) <= 2:
                assert greedy.to_dict() == full.to_dict(), seed
                compared += 1
            elif len(active) <= 8:
                different += greedy.to_dict() != full.to_dict()
        assert compared > 400
        assert different > 0, "else M would mean nothing"

    def test_enumeration_limit_counts_active_agents(self) -> None:
        """At M agents every subset is tried, above it the bounded search."""
        engine = Engine(case_config(100_000, enumerate_max_agents=3), dict.fromkeys("ABCD", 10))
        for number, agent in enumerate("ABC"):
            engine.arrive(number, agent)
        assert considered(engine.scheduler.decide(0.0)) == 2**3
        engine.arrive(3, "D")
        assert considered(engine.scheduler.decide(0.0)) != 2**4


# -------------------------------------------------------------- presets and copies


def test_default_values_are_those_of_the_preset_default() -> None:
    assert Config(**REQUIRED) == Config.preset("default", **REQUIRED)
    assert {name: getattr(Config(**REQUIRED), name) for name in PRESETS["default"]} == {
        "count_running": True,
        "age_credit": True,
        "redo_weight": 6.0,
        "reuse_weight": 0.0,
        "move_weight": 0.0,
        "gain_model": "service",
        "urgency": 0.25,
        "admit_order": "arrival",
        "preempt_limit": 1.0,
        "overtake_limit": 2.0,
        "backlog_weight": 1.0,
        "rollout_scenarios": 0,
        "rollout_power": 1.0,
        "rollout_steps": 0,
    }


def test_preset_paper_is_the_published_score() -> None:
    paper = Config.preset("paper", **REQUIRED)
    assert (paper.count_running, paper.age_credit, paper.redo_weight) == (False, False, 1.0)
    assert (paper.reuse_weight, paper.move_weight, paper.age_weight) == (1.0, 1.0, 1.0)
    assert (paper.gain_model, paper.admit_order) == ("path", "density")
    assert (paper.urgency, paper.preempt_limit, paper.overtake_limit) == (0.0, 0.0, 0.0)
    assert paper.backlog_weight == 0.0


def test_preset_guarded_is_the_papers_with_three_options() -> None:
    paper, guarded = (Config.preset(name, **REQUIRED) for name in ("paper", "guarded"))
    changed = {"count_running": True, "age_credit": True, "redo_weight": 3.0}
    assert guarded == paper.replace(**changed)


def test_a_limit_on_overtaking_needs_an_order_of_arrival() -> None:
    with pytest.raises(ConfigError, match=r"^overtake_limit: "):
        Config(**REQUIRED, admit_order="density")
    Config(**REQUIRED, admit_order="density", overtake_limit=0.0)


def test_presets_set_the_same_fields() -> None:
    assert len({frozenset(fields) for fields in PRESETS.values()}) == 1
    rest = set(NAMES) - set(PRESETS["paper"])
    made = [Config.preset(name, **REQUIRED).to_dict() for name in PRESETS]
    assert all(fields[name] == made[0][name] for fields in made for name in rest)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_reference_gives_every_field_the_same_value(preset: str) -> None:
    """Both write presets and defaults down by themselves: a slip in one of them shows here."""
    assert reference.PRESETS.keys() == PRESETS.keys()
    settings = dataclasses.asdict(read_settings(REQUIRED, preset))
    assert settings == Config.preset(preset, **REQUIRED).to_dict()
    assert reference.PRESETS[preset] == PRESETS[preset]


def test_fields_win_over_the_preset() -> None:
    config = Config.preset("paper", **REQUIRED, redo_weight=2.0)
    assert (config.redo_weight, config.count_running) == (2.0, False)
    assert Config.from_dict({**REQUIRED, "age_credit": True}, preset="paper").age_credit


@pytest.mark.parametrize("name", ["", "Paper", None, 0, "guard"])
def test_unknown_preset_is_named(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"^preset: unknown .*default, guarded, paper"):
        Config.preset(name, **REQUIRED)
    with pytest.raises(ConfigError, match=r"^preset: unknown .*default, guarded, paper"):
        Config.from_dict(REQUIRED, preset=name)


@pytest.mark.parametrize("name", ["beta", "kv_capacity", "", 7])
def test_unknown_field_is_named(name: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: unknown config field"):
        Config.from_dict({**REQUIRED, name: 1})


@pytest.mark.parametrize("name", REQUIRED)
def test_missing_field_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: required"):
        Config.from_dict({key: value for key, value in REQUIRED.items() if key != name})


def test_unknown_field_in_replace_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^colour: unknown config field"):
        Config(**REQUIRED).replace(colour=1)


def varied() -> Config:
    """Make settings that are not the default in any field."""
    return Config(
        kv_capacity_tokens=1,
        kv_bytes_per_token=2.0,
        swap_bytes_per_s=3.0,
        decode_s_per_token=4.0,
        prefill_fixed_s=5.0,
        prefill_s_per_token=6.0,
        enumerate_max_agents=7,
        max_evaluations=18,
        action_cap=8,
        max_running_requests=9,
        reuse_weight=10.0,
        age_weight=11.0,
        age_scale_s=12.0,
        exact_limit=13,
        samples=14,
        seed=15,
        count_running=False,
        age_credit=False,
        redo_weight=16.0,
        redo_model="kept",
        move_model="once",
        move_weight=17.0,
        work_conserving=True,
        gain_model="path",
        urgency=18.0,
        admit_order="density",
        preempt_limit=19.0,
        overtake_limit=0.0,
        backlog_weight=20.0,
        reserve_limit=21.0,
        rollout_steps=23,
        rollout_margin=22.0,
        rollout_power=2.5,
    )


@pytest.mark.parametrize("config", [Config(**REQUIRED), varied()], ids=["plain", "varied"])
def test_copies_are_equal(config: Config) -> None:
    for copied in (
        Config.from_dict(config.to_dict()),
        Config.from_dict(config.to_dict(), preset="paper"),
        Config.from_dict(json.loads(json.dumps(config.to_dict()))),
        Config(**config.to_dict()),
        config.replace(),
        copy.copy(config),
        copy.deepcopy(config),
        pickle.loads(pickle.dumps(config)),
    ):
        assert copied == config
        assert hash(copied) == hash(config)
        assert copied.to_dict() == config.to_dict()
    assert list(config.to_dict()) == NAMES


def test_every_field_makes_a_difference() -> None:
    config = Config(**REQUIRED)
    for name, value in varied().to_dict().items():
        needed = {"overtake_limit": 0.0} if name == "admit_order" else {}
        if name == "rollout_scenarios":
            value = 21
        other = config.replace(**{**needed, name: value})
        assert other != config
        assert getattr(other, name) == value
        assert getattr(config, name) != value, "the original is as it was"


def test_settings_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config(**REQUIRED).action_cap = 5  # type: ignore[misc]


def test_config_error_is_a_value_error_and_a_topas_error() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ConfigError, TopasError)


@pytest.mark.parametrize(("fields", "preset"), [(None, "paper"), ([], "paper"), ({}, [])])
def test_from_dict_refuses_what_is_no_mapping_and_no_preset(fields: object, preset: object) -> None:
    with pytest.raises(ConfigError, match=r"config: |preset: "):
        Config.from_dict(fields, preset)
