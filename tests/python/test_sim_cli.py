"""``topas simulate`` as a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from topas.cli.simulate import simulate
from topas.errors import ConfigError, TopasError, TraceError
from topas.policies import POLICY_NAMES
from typer.testing import CliRunner

APP = typer.Typer()
APP.command()(simulate)


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(APP, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def _json(*arguments: str) -> dict[str, Any]:
    report = json.loads(_run(*arguments, "--json"))
    assert isinstance(report, dict)
    return report


def test_a_table_with_all_policies() -> None:
    output = _run("chain-3", "--rate", "0.1", "--tasks", "5", "--policies", "all", "--seed", "1")
    for word in (*POLICY_NAMES, "mean", "p99", "JCT s", "span s", "batch", "swaps", "preemp-"):
        assert word in output


def test_json_says_the_same_each_time() -> None:
    arguments = ("dag-4", "--rate", "0.1", "--tasks", "5", "--seed", "1")
    one, two = _json(*arguments), _json(*arguments)
    assert set(one.pop("decision_us")) == set(two.pop("decision_us")) == set(POLICY_NAMES)
    assert json.dumps(one) == json.dumps(two)
    assert one["workload"]["name"] == "dag-4"
    assert one["workload"]["seed"] == 1
    assert [run["policy"] for run in one["policies"]] == list(POLICY_NAMES)
    for run in one["policies"]:
        assert run["arrived"] == run["finished"] == 5


def test_options_reach_engine_workload_and_policy() -> None:
    report = _json(
        *("chain-3", "--tasks", "3", "--rate", "1", "--policies", "fcfs,topas"),
        *("--capacity", "20000", "--input-tokens", "100", "--output-tokens", "10"),
        *("--prefix-tokens", "1000,2000,3000", "--max-time", "5", "--over-reserve", "1.5"),
        *("--max-running", "2", "--redo-model", "prefill"),
        *("--set", "age_weight=0", "--set", "count_running=false", "--set", "age_scale_s=none"),
    )
    engine = report["engine"]
    assert engine["kv_capacity"] == 20000
    assert (engine["max_running"], engine["redo_model"]) == (2, "prefill")
    assert (engine["over_reserve"], engine["max_time_s"]) == (1.5, 5.0)
    assert report["workload"]["prefix_tokens"] == {"A": 1000, "B": 2000, "C": 3000}
    assert report["workload"]["input_tokens"] == 100
    assert report["config"] == {"age_weight": 0, "count_running": False, "age_scale_s": None}
    assert all(run["unfinished"] for run in report["policies"])


def _trace(path: Path, t: str) -> str:
    file = path / "t.jsonl"
    file.write_text(
        '{"session":"s","stage":"main0","agent":"main","round":0,"after":[],"input_tokens":900,'
        '"output_tokens":50,"shared_tokens":0,"api_s":1.0,"tool_wait_s":0,"t":' + t + "}\n"
    )
    return str(file)


def test_a_trace(tmp_path: Path) -> None:
    report = _json(
        *("--trace", _trace(tmp_path, "3.0"), "--policies", "fcfs", "--max-rounds", "0"),
        *("--token-scale", "1", "--sessions", "1", "--max-stages", "1", "--max-tool-wait", "9"),
    )
    assert report["workload"]["name"] == "t.jsonl"
    assert report["workload"]["max_rounds"] is None
    assert report["policies"][0]["finished"] == 1


def test_a_wrong_row_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"line 1: t: "):
        _run("--trace", _trace(tmp_path, "-3.0"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "workload: name one of chain-3"),
        (("chain-4",), "unknown 'chain-4'"),
        (("chain-3", "--policies", "x"), "policies: unknown 'x'"),
        (("chain-3", "--rate", "nan"), "rate: "),
        (("chain-3", "--tasks", "0"), "tasks: "),
        (("chain-3", "--seed", "-1"), "seed: "),
        (("chain-3", "--capacity", "0"), "kv_capacity: "),
        (("chain-3", "--max-time", "0"), "max_time_s: "),
        (("chain-3", "--over-reserve", "0.1"), "over_reserve: "),
        (("chain-3", "--redo-model", "x"), "redo_model: "),
        (("chain-3", "--prefix-tokens", "1,x"), "prefix_tokens: "),
        (("chain-3", "--prefix-tokens", "1,2"), "prefix_tokens: 2 lengths for 3"),
        (("chain-3", "--set", "beta=1"), "--set beta=1: must be FIELD=VALUE"),
        (("chain-3", "--set", "age_weight"), "--set age_weight: must be FIELD=VALUE"),
        (("chain-3", "--set", "age_weight=x", "--policies", "topas"), "age_weight"),
        (("chain-3", "--set", "redo_model=kept"), "comes from the engine"),
        (("chain-3", "--token-scale", "1"), "--token-scale: is for --trace only"),
        (("chain-3", "--max-tool-wait", "1"), "--max-tool-wait: is for --trace only"),
        (("chain-3", "--trace", "x"), "workload: is for built-in workloads"),
        (("--trace", "x", "--tasks", "3"), "--tasks: is for built-in workloads"),
        (("--trace", "/no/such/file"), "/no/such/file"),
        (("--trace", "x", "--token-scale", "-1"), "token_scale: "),
    ],
)
def test_bad_input_is_a_typed_error(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(TopasError) as caught:
        _run(*arguments)
    assert message in str(caught.value)
    assert isinstance(caught.value, ConfigError | TraceError)


def test_memory_rules_reach_the_engine() -> None:
    arguments = (
        *("metagpt-sop", "--tasks", "4", "--rate", "0.05", "--policies", "lpm,topas"),
        *("--reservation", "estimated", "--new-token-ratio", "0.2", "--page-size", "16"),
        *("--reuse-context", "--in-batch-prefixes", "deferred", "--batching", "chunked"),
        *("--host-cache", "50000"),
    )
    report = _json(*arguments)
    engine = report["engine"]
    assert (engine["reservation"], engine["new_token_ratio"]) == ("estimated", 0.2)
    assert (engine["page_size"], engine["reuse_context"]) == (16, True)
    assert engine["in_batch_prefixes"] == "deferred"
    assert engine["host_cache_tokens"] == 50000
    unlimited = _json("chain-3", "--tasks", "2", "--policies", "lpm", "--host-cache", "unlimited")
    assert unlimited["engine"]["host_cache_tokens"] is None
    assert all(run["reused_tokens"] > 0 for run in report["policies"])
    table = _run(*arguments)
    assert "retrac-" in table
    assert "reused" in table
    assert "retrac-" not in _run("chain-3", "--tasks", "2", "--rate", "1", "--policies", "lpm")


@pytest.mark.parametrize(
    ("option", "value", "field"),
    [
        ("--reservation", "half", "reservation"),
        ("--new-token-ratio", "2", "new_token_ratio"),
        ("--page-size", "0", "page_size"),
        ("--in-batch-prefixes", "x", "in_batch_prefixes"),
        ("--host-cache", "much", "--host-cache"),
        ("--host-cache", "-1", "--host-cache"),
    ],
)
def test_wrong_memory_rules_name_the_field(option: str, value: str, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        _run("chain-3", "--tasks", "2", option, value)
