"""What the plugin is told, and its small parts: the switch, the file, the clock, the counts."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import topas
from topas.sglang.clock import RankClock, Reading
from topas.sglang.metrics import Counts
from topas.sglang.settings import Settings
from topas.sglang.switch import is_enabled
from topas.sglang.view import FIRST, LAST, is_tested, reasons_against, refused_arguments

CHAIN: dict[str, Any] = {
    "name": "chain",
    "stages": [
        {"name": "one", "agent": "a", "service_s": 2},
        {"name": "two", "agent": "b", "after": ["one"], "request_s": 0.5},
    ],
}


def read(path: Path, text: str) -> Settings:
    path.write_text(text)
    return Settings.from_file(path)


# ---- the switch


@pytest.mark.parametrize("value", ["1", "true", "True", "YES", "on", " 1 "])
def test_spellings_of_on(value: str) -> None:
    assert is_enabled({"TOPAS_ENABLE": value})
    assert Settings.from_environment({"TOPAS_ENABLE": value}) == Settings()


@pytest.mark.parametrize("value", ["0", "false", "No", "OFF", "", "  "])
def test_spellings_of_off_win_over_a_file(value: str) -> None:
    environment = {"TOPAS_ENABLE": value, "TOPAS_CONFIG": "/not/there.yaml"}
    assert not is_enabled(environment)
    assert Settings.from_environment(environment) is None


@pytest.mark.parametrize("value", ["2", "maybe", "onn", "-1", "None"])
def test_any_other_spelling_is_refused(value: str) -> None:
    with pytest.raises(topas.ConfigError, match=f"TOPAS_ENABLE: .*got '{value}'"):
        is_enabled({"TOPAS_ENABLE": value})


def test_a_file_alone_switches_on_and_nothing_switches_off(tmp_path: Path) -> None:
    path = tmp_path / "topas.yaml"
    path.write_text("reask_s: 3")
    assert Settings.from_environment({"TOPAS_CONFIG": str(path)}) == Settings(reask_s=3.0)
    assert Settings.from_environment({"TOPAS_CONFIG": ""}) is None
    assert Settings.from_environment({}) is None


OFF_COSTS_NOTHING = """
import sys
from topas.sglang.plugin import activate
activate()
print([name for name in ("pydantic", "yaml", "sglang", "torch") if name in sys.modules])
"""


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_switched_off_it_imports_nothing_heavy() -> None:
    done = run_python(OFF_COSTS_NOTHING, TOPAS_CONFIG="/not/there.yaml", TOPAS_ENABLE="0")
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_a_wrong_switch_ends_the_process_with_the_reason() -> None:
    done = run_python(OFF_COSTS_NOTHING, TOPAS_ENABLE="perhaps")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "topas: TOPAS_ENABLE: must be one of 1, true, yes, on, 0, false, no, off, got 'perhaps'"
    )


# ---- the file

EVERYTHING = {
    "preset": "paper",
    "policy": {"action_cap": 3, "age_scale_s": 20.0, "prefill_s_per_token": 1e-3},
    "workflows": [CHAIN],
    "min_prefix_tokens": 16,
    "idle_expiry_s": 60,
    "reask_s": 0.5,
    "allow_untested_version": True,
    "prefix_copies": {"host_bytes": 1 << 30, "layer_wise": "always", "frees_at_once": True},
}


def test_every_field_is_read_from_json(tmp_path: Path) -> None:
    settings = read(tmp_path / "topas.json", json.dumps(EVERYTHING))
    assert settings.model_dump() == EVERYTHING
    assert set(EVERYTHING) == set(Settings.model_fields)


def test_yaml_is_read_and_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    settings = read(tmp_path / "a.yaml", "preset: paper\npolicy:\n  samples: 16\n")
    assert (settings.preset, settings.policy) == ("paper", {"samples": 16})
    assert read(tmp_path / "b.yaml", "") == Settings()
    assert read(tmp_path / "c.yaml", "# nothing yet\n") == Settings()


@pytest.mark.parametrize(
    ("text", "where", "value"),
    [
        ("preset: fast", "preset", "'fast'"),
        ("policy: 3", "policy", "3"),
        ("policy: {action_cap: -1}", "policy.action_cap", "-1"),
        ("policy: {samples: '9'}", "policy.samples", "'9'"),
        ("policy: {prefill_s_per_token: .nan}", "policy.prefill_s_per_token", "-?nan"),
        ("policy: {tau_s: 1}", "policy.tau_s", None),
        ("policy: {kv_capacity_tokens: 5}", "policy.kv_capacity_tokens", None),
        ("policy: {max_running_requests: 5}", "policy.max_running_requests", None),
        ("workflows: {}", "workflows", "{}"),
        ("workflows: [3]", "workflows.0", "3"),
        ("min_prefix_tokens: 0", "min_prefix_tokens", "0"),
        ("min_prefix_tokens: 1.5", "min_prefix_tokens", "1.5"),
        ("min_prefix_tokens: true", "min_prefix_tokens", "True"),
        ("min_prefix_tokens: '64'", "min_prefix_tokens", "'64'"),
        ("idle_expiry_s: 0", "idle_expiry_s", "0"),
        ("idle_expiry_s: .inf", "idle_expiry_s", "inf"),
        ("idle_expiry_s: soon", "idle_expiry_s", "'soon'"),
        ("reask_s: -1", "reask_s", "-1"),
        ("reask_s: .nan", "reask_s", "nan"),
        ("allow_untested_version: 2", "allow_untested_version", "2"),
        ("allow_untested_version: 'yes'", "allow_untested_version", "'yes'"),
        ("prefix_copies: true", "prefix_copies", "True"),
        ("prefix_copies: {}", "prefix_copies.host_bytes", "{}"),
        ("prefix_copies: {host_bytes: 0}", "prefix_copies.host_bytes", "0"),
        ("prefix_copies: {host_bytes: 1.5}", "prefix_copies.host_bytes", "1.5"),
        ("prefix_copies: {host_bytes: 64GiB}", "prefix_copies.host_bytes", "'64GiB'"),
        ("prefix_copies: {host_bytes: 9, colour: 1}", "prefix_copies.colour", "1"),
        ("prefix_copies: {host_bytes: 9, layer_wise: true}", "prefix_copies.layer_wise", "True"),
        ("prefix_copies: {host_bytes: 9, frees_at_once: 1}", "prefix_copies.frees_at_once", "1"),
        ("colour: red", "colour", "'red'"),
        ("- preset", "file", r"\['preset'\]"),
    ],
)
def test_a_bad_value_is_named_with_its_field_and_file(
    tmp_path: Path, text: str, where: str, value: str | None
) -> None:
    path = tmp_path / "topas.yaml"
    end = "" if value is None else f"got {value}$"
    with pytest.raises(topas.ConfigError, match=f"TOPAS_CONFIG: {path}: {where}: .*{end}"):
        read(path, text)


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        (None, "workflow.stages: is missing"),
        (3, "workflow.stages: must be a list, got 3"),
        ([], "'w' has no stage"),
        ([{"name": "x"}], "stages.0.agent: is missing"),
        ([{"name": "x", "agent": "a", "colour": 1}], "stages.0.colour: unknown field"),
        ([{"name": "x", "agent": "a", "after": "x"}], "after: must be a list, got 'x'"),
        ([{"name": "x", "agent": "a", "after": ["y"]}], "unknown"),
        ([{"name": "x", "agent": "a", "after": ["x"]}], "cycle"),
        ([{"name": "x", "agent": True}], "got True"),
        ([{"name": "x", "agent": "a", "service_s": -1}], "service_s"),
        ([{"name": "x", "agent": "a", "service_s": "1"}], "service_s"),
        (["x"], "stages.0: must be a mapping, got 'x'"),
    ],
)
def test_a_malformed_workflow_is_refused_with_its_place(
    tmp_path: Path, stages: Any, reason: str
) -> None:
    bad = {"name": "w"} if stages is None else {"name": "w", "stages": stages}
    with pytest.raises(topas.ConfigError, match=rf"workflows\.1: .*{reason}"):
        read(tmp_path / "topas.json", json.dumps({"workflows": [CHAIN, bad]}))


def test_a_workflow_with_an_unknown_field_or_the_name_of_another_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "topas.json"
    with pytest.raises(topas.ConfigError, match=r"workflows\.0: unknown field agents, colour"):
        read(path, json.dumps({"workflows": [{**CHAIN, "colour": 1, "agents": []}]}))
    with pytest.raises(topas.ConfigError, match=r"workflows\.1: 'chain' is the name of workf.*0"):
        read(path, json.dumps({"workflows": [CHAIN, CHAIN]}))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(topas.ConfigError, match=r"TOPAS_CONFIG: /not/there.yaml: .*No such file"):
        Settings.from_environment({"TOPAS_CONFIG": "/not/there.yaml"})
    with pytest.raises(topas.ConfigError, match=f"TOPAS_CONFIG: {tmp_path}: .*directory"):
        Settings.from_file(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(topas.ConfigError, match=r"TOPAS_CONFIG: .*binary: .*decode"):
        Settings.from_file(tmp_path / "binary")
    with pytest.raises(topas.ConfigError, match=r"(?s)TOPAS_CONFIG: .*broken.yaml: .*line 1"):
        read(tmp_path / "broken.yaml", "policy: [")
    with pytest.raises(topas.ConfigError, match=r"(?s)TOPAS_CONFIG: .*tagged.yaml: .*constructor"):
        read(tmp_path / "tagged.yaml", "preset: !!python/name:os.system")


# ---- the settings of a decision


def test_measured_costs_give_way_to_the_users_and_the_preset_holds() -> None:
    settings = Settings(preset="paper", policy={"prefill_s_per_token": 0.5, "samples": 7})
    costs = {"prefill_s_per_token": 0.1, "decode_s_per_token": 0.2, "swap_bytes_per_s": 10.0}
    config = settings.config(capacity=4096, max_running_requests=8, costs=costs)
    assert config == topas.Config.preset(
        "paper",
        kv_capacity_tokens=4096,
        max_running_requests=8,
        kv_bytes_per_token=1.0,
        swap_bytes_per_s=10.0,
        decode_s_per_token=0.2,
        prefill_s_per_token=0.5,
        samples=7,
    )


@pytest.mark.parametrize("preset", ["default", "guarded"])
def test_in_an_engine_waiting_and_decisions_are_bounded_unless_the_user_says_otherwise(
    preset: Literal["default", "guarded"],
) -> None:
    engine: dict[str, Any] = {"capacity": 4096, "max_running_requests": 8, "costs": {}}
    config = Settings(preset=preset).config(**engine)
    assert (config.reserve_limit, config.max_evaluations) == (2.0, 256)
    free = Settings(preset=preset, policy={"reserve_limit": 0.0, "max_evaluations": 0})
    config = free.config(**engine)
    assert (config.reserve_limit, config.max_evaluations) == (0.0, 0)


# ---- versions


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        (FIRST, True),
        (LAST, True),
        ("0.5.18", True),
        ("0.5.23+cpu", True),
        ("0.5.15", False),
        ("0.5.24", False),
        ("0.6.16", False),
        ("1.5.16", False),
        ("0.5.23rc1", False),
        ("0.5.23.post1", False),
        ("0.5.160", False),
        ("0.5.2", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_versions_in_the_tested_range(version: str, tested: bool) -> None:
    assert is_tested(version) is tested


# ---- what topas does not go with

FINE = {
    "schedule_policy": "fcfs",
    "enable_priority_scheduling": False,
    "disable_radix_cache": False,
    "disaggregation_mode": "null",
    "pp_size": 1,
    "enable_dp_attention": False,
    "speculative_algorithm": None,
    "dllm_algorithm": None,
    "enable_pdmux": False,
    "enable_hisparse": False,
    "enable_hierarchical_cache": False,
    "enable_lmcache": False,
    "is_embedding": False,
}


def test_the_arguments_as_they_are_by_default_are_fine() -> None:
    assert refused_arguments(SimpleNamespace(**FINE)) == []
    assert refused_arguments(SimpleNamespace(schedule_policy="fcfs")) == [], "an older SGLang"


@pytest.mark.parametrize("name", FINE)
def test_another_argument_is_refused_by_its_option(name: str) -> None:
    others = {"schedule_policy": "lpm", "disaggregation_mode": "decode", "pp_size": 2}
    value = others.get(name, "EAGLE" if FINE[name] is None else True)
    (reason,) = refused_arguments(SimpleNamespace(**{**FINE, name: value}))
    assert reason.startswith(f"--{name.replace('_', '-')} (now {value!r}): ")


def scheduler_with(**changes: Any) -> SimpleNamespace:
    """A scheduler as far as topas looks whether it can drive it."""
    fields = {
        "tree_cache": SimpleNamespace(disable=False),
        "is_generation": True,
        "is_hybrid_swa": False,
        "is_hybrid_ssm": False,
        "req_to_token_pool": SimpleNamespace(),
    }
    return SimpleNamespace(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tree_cache": SimpleNamespace(disable=True)}, "no prefix cache"),
        ({"is_generation": False}, "generates nothing"),
        ({"is_hybrid_swa": True}, "sliding window"),
        ({"is_hybrid_ssm": True}, "state space"),
        ({"req_to_token_pool": SimpleNamespace(mamba_allocator=1)}, "state space"),
    ],
)
def test_a_model_that_topas_cannot_drive_is_refused(changes: dict[str, Any], reason: str) -> None:
    assert reasons_against(scheduler_with()) == []
    (told,) = reasons_against(scheduler_with(**changes))
    assert reason in told


# ---- the clock


def test_a_reading_travels_only_when_the_time_is_wanted() -> None:
    clock = RankClock()
    assert clock.attach([]) == []
    assert clock.attach(["message"])[0] == "message"
    assert isinstance(clock.attach(["message"])[1], Reading)
    clock.busy = True
    (reading,) = clock.attach([])
    assert isinstance(reading, Reading)


def test_ranks_take_the_time_of_the_rank_that_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = RankClock(), RankClock()
    for now in (5.0, 7.5):
        monkeypatch.setattr("topas.sglang.clock.time.monotonic", lambda now=now: now)
        sent = pickle.loads(pickle.dumps(first.attach(["a", "b"])))
        monkeypatch.setattr("topas.sglang.clock.time.monotonic", lambda: 1e9)
        assert first.detach(sent) == second.detach(sent) == ["a", "b"]
        assert first.now == second.now == now


def test_the_clock_stands_still_without_a_reading_and_never_goes_back() -> None:
    clock = RankClock()
    clock.detach(["a", Reading(9.0)])
    assert clock.detach(["b"]) == ["b"]
    assert clock.now == 9.0
    assert clock.detach([Reading(8.0)]) == []
    assert clock.now == 9.0
    assert clock.detach([Reading(9.5), "c", Reading(9.25)]) == ["c"]
    assert clock.now == 9.5


def test_messages_are_not_changed_in_place() -> None:
    clock = RankClock()
    received = ["a"]
    sent = clock.attach(received)
    assert received == ["a"]
    clock.detach(sent)
    assert len(sent) == 2


# ---- the counts


def test_counts_add_up() -> None:
    counts = Counts()
    counts.decided(0.25, admitted=3, preempted=1)
    counts.decided(0.5, admitted=0, preempted=2)
    counts.spent(1.0)
    counts.spent(0.5)
    counts.task_ended("chain", 2.0)
    counts.task_ended(None, 1.0)
    counts.fell_back("StateError")
    counts.fell_back("StateError")
    counts.refused()
    counts.hints_wrong({"bad_agent_hints": 2})
    counts.hints_wrong({"bad_agent_hints": 3, "bad_finish": 1})
    counts.set_gauges(held=4)
    counts.set_gauges(held=2, running=1)
    assert (counts.decisions, counts.admissions, counts.preemptions) == (2, 3, 3)
    assert (counts.decision_s, counts.bridge_s) == (0.75, 1.5)
    assert (counts.tasks, counts.refusals) == (2, 1)
    assert counts.fallbacks == {"StateError": 2}
    assert counts.hint_errors == {"bad_agent_hints": 3, "bad_finish": 1}
    assert counts.gauges == {"held": 2, "running": 1}
