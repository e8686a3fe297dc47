"""Costs of named GPUs and models, and costs fitted to measurements."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from topas.cli.app import app
from topas.errors import ConfigError
from topas.sim import EngineCosts
from topas.sim.cost import (
    GPUS,
    MODELS,
    DecodeRow,
    Efficiency,
    PrefillRow,
    engine_costs,
    find_gpu,
    find_model,
    fit_rows,
)
from topas.sim.cost.measured import load_costs
from typer.testing import CliRunner

# ---- GPUs and models


@pytest.mark.parametrize(
    ("name", "parameters", "kv_bytes"),
    [
        # totals of the published safetensors; keys and values of bf16, all layers
        ("Qwen2.5-7B", 7_615_616_512, 2 * 28 * 4 * 128 * 2),
        ("Qwen2.5-14B", 14_770_033_664, 2 * 48 * 8 * 128 * 2),
        ("Qwen2.5-32B", 32_763_876_352, 262_144),
        ("Llama-3.1-8B", 8_030_261_248, 2 * 32 * 8 * 128 * 2),
        ("Llama-3.1-70B", 70_553_706_496, 2 * 80 * 8 * 128 * 2),
    ],
)
def test_shapes_add_up_to_the_published_sizes(name: str, parameters: int, kv_bytes: int) -> None:
    model = find_model(name)
    assert model.parameters == parameters
    assert model.weight_bytes == 2 * parameters
    assert model.kv_bytes_per_token == kv_bytes


def test_every_figure_has_a_source() -> None:
    assert list(GPUS) == ["A100-80G", "H100", "H200", "L40S"]
    for item in (*GPUS.values(), *MODELS.values()):
        assert "datasheet" in item.source or "config.json" in item.source


def test_names_are_found_as_people_write_them() -> None:
    assert find_gpu("a100-80g") is GPUS["A100-80G"]
    for name in ("qwen2.5-32b", "Qwen/Qwen2.5-32B-Instruct", "Qwen2.5-32B"):
        assert find_model(name) is MODELS["Qwen2.5-32B-Instruct"]
    with pytest.raises(ConfigError, match=r"gpu: unknown 'B900', known are A100-80G, H100"):
        find_gpu("B900")
    with pytest.raises(ConfigError, match=r"model: unknown 'gpt', known are Qwen2.5-7B"):
        find_model("gpt")


def test_the_default_engine_is_near_its_profile() -> None:
    profile, default = engine_costs("A100-80G", "Qwen2.5-32B"), EngineCosts()
    assert profile.kv_bytes_per_token == default.kv_bytes_per_token == 262_144
    assert profile.swap_bytes_per_s == default.swap_bytes_per_s
    for name in (
        "kv_capacity",
        "decode_fixed_s",
        "decode_s_per_context_token",
        "prefill_s_per_token",
    ):
        assert getattr(profile, name) == pytest.approx(getattr(default, name), rel=0.06)


def test_a_profile_by_hand() -> None:
    # 81,920 MiB; weights and KV in bf16; one step reads all but the input embedding
    all_of_it = Efficiency(prefill_mfu=1.0, decode_mbu=1.0, link_efficiency=1.0)
    costs = engine_costs("A100-80G", "Llama-3.1-8B", mem_fraction=0.5, efficiency=all_of_it)
    embedding = 128_256 * 4096
    assert costs.kv_capacity == (81_920 * 2**20 // 2 - 2 * 8_030_261_248) // 131_072
    assert costs.decode_fixed_s == pytest.approx(2 * (8_030_261_248 - embedding) / 2.039e12)
    assert costs.decode_s_per_context_token == pytest.approx(131_072 / 2.039e12)
    layers = 8_030_261_248 - 2 * embedding - 4096
    assert costs.prefill_s_per_token == pytest.approx(2 * layers / 312e12)
    assert costs.swap_bytes_per_s == 32e9
    assert costs.prefill_fixed_s == 0.0


def test_efficiencies_scale_what_they_are_of() -> None:
    one = engine_costs("H100", "Qwen2.5-14B")
    half = engine_costs(
        "H100",
        "Qwen2.5-14B",
        efficiency=Efficiency(prefill_mfu=0.275, decode_mbu=0.425, link_efficiency=0.3125),
    )
    assert half.prefill_s_per_token == pytest.approx(2 * one.prefill_s_per_token)
    assert half.decode_fixed_s == pytest.approx(2 * one.decode_fixed_s)
    assert half.decode_s_per_context_token == pytest.approx(2 * one.decode_s_per_context_token)
    assert half.swap_bytes_per_s == one.swap_bytes_per_s / 2
    assert half.kv_capacity == one.kv_capacity


def test_tensor_parallelism_divides_the_work_and_adds_sums() -> None:
    one = engine_costs("H200", "Qwen2.5-32B")
    two = engine_costs("H200", "Qwen2.5-32B", tensor_parallel=2)
    room = 143_771 * 2**20 * 0.88
    assert two.kv_capacity - one.kv_capacity == pytest.approx(room / 262_144, abs=1)
    assert two.swap_bytes_per_s == 2 * one.swap_bytes_per_s
    assert two.decode_fixed_s == pytest.approx(one.decode_fixed_s / 2 + 128 * 15e-6)
    assert two.decode_s_per_context_token == pytest.approx(one.decode_s_per_context_token / 2)
    # 128 hidden states of 5,120 bf16, each over the ring of two once
    sent = 128 * 5120 * 2 / (450e9 * 0.625)
    assert two.prefill_s_per_token == pytest.approx(one.prefill_s_per_token / 2 + sent)


def test_a_model_that_does_not_fit_says_what_is_missing() -> None:
    with pytest.raises(ConfigError) as caught:
        engine_costs("L40S", "Qwen2.5-32B")
    assert str(caught.value) == (
        "model: Qwen2.5-32B-Instruct does not fit on 1 x L40S: weights take 65.5 GB, 0.88 of the "
        "memory is 42.5 GB, 23.0 GB are missing; tensor_parallel=2 would do"
    )
    assert engine_costs("L40S", "Qwen2.5-32B", tensor_parallel=2).kv_capacity > 1000
    with pytest.raises(ConfigError, match="no tensor_parallel would do"):
        engine_costs("L40S", "Llama-3.1-70B", mem_fraction=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mem_fraction": 0.0}, "mem_fraction: must be a finite number above 0"),
        ({"mem_fraction": 1.1}, "mem_fraction: must be at most 1, got 1.1"),
        ({"tensor_parallel": 0}, "tensor_parallel: "),
        ({"tensor_parallel": 3}, "has 8 KV heads, legal are 1, 2, 4, 8, got 3"),
        ({"tensor_parallel": 1.0}, "tensor_parallel: "),
    ],
)
def test_illegal_settings_of_a_profile(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_costs("A100-80G", "Qwen2.5-32B", **settings)


@pytest.mark.parametrize("name", ["prefill_mfu", "decode_mbu", "link_efficiency"])
@pytest.mark.parametrize("value", [0.0, 1.01, -1.0, float("nan"), "1"])
def test_illegal_efficiencies_are_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        Efficiency(**{name: value})


def test_own_hardware_and_own_models() -> None:
    gpu = dataclasses.replace(GPUS["H200"], name="two in one", memory_bytes=2 * 143_771 * 2**20)
    assert engine_costs(gpu, "Llama-3.1-70B").kv_capacity > 100_000
    with pytest.raises(ConfigError, match=r"^flop_per_s: "):
        dataclasses.replace(gpu, flop_per_s=0.0)
    model = dataclasses.replace(MODELS["Qwen2.5-32B-Instruct"], layers=32)
    assert engine_costs("L40S", model).kv_capacity > 10_000
    with pytest.raises(ConfigError, match=r"^kv_heads: "):
        dataclasses.replace(model, kv_heads=0)


# ---- fits

TRUE = EngineCosts(
    kv_capacity=5000,
    kv_bytes_per_token=1000.0,
    swap_bytes_per_s=1e9,
    decode_fixed_s=0.02,
    decode_s_per_context_token=2e-7,
    prefill_fixed_s=0.004,
    prefill_s_per_token=1e-4,
)


def _rows(costs: EngineCosts, factor: float = 1.0) -> tuple[list[DecodeRow], list[PrefillRow]]:
    """Rows that the costs explain; ``factor`` moves every second one up, the others down."""
    sign = [factor, 1.0 / factor]
    contexts, tokens = (0, 4000, 10_000, 40_000), (10, 500, 2000, 8000)
    return (
        [DecodeRow(8, c, costs.decode_s(1, 8, c) * sign[i % 2]) for i, c in enumerate(contexts)],
        [PrefillRow(t, costs.prefill_s(t) * sign[i % 2]) for i, t in enumerate(tokens)],
    )


@given(st.floats(1e-4, 1.0), st.floats(0.0, 1e-4), st.floats(0.0, 1.0), st.floats(1e-6, 1e-2))
def test_a_fit_finds_the_costs_that_made_the_rows(
    step: float, context: float, fixed: float, token: float
) -> None:
    costs = dataclasses.replace(
        TRUE,
        decode_fixed_s=step,
        decode_s_per_context_token=context,
        prefill_fixed_s=fixed,
        prefill_s_per_token=token,
    )
    fit = fit_rows(*_rows(costs), TRUE)
    assert fit.costs.kv_capacity == 5000
    for name, scale in (
        ("decode_fixed_s", step),
        ("decode_s_per_context_token", context + step / 40_000),
        ("prefill_fixed_s", fixed + token * 8000),
        ("prefill_s_per_token", token + fixed / 8000),
    ):
        assert getattr(fit.costs, name) == pytest.approx(getattr(costs, name), abs=1e-6 * scale)
    assert fit.decode_error < 1e-6
    assert fit.prefill_error < 1e-6


def test_the_error_of_a_fit_is_what_numpy_leaves() -> None:
    decode, prefill = _rows(TRUE, 1.05)
    fit = fit_rows(decode, prefill, TRUE)
    for rows, length, error in (
        (decode, 1, fit.decode_error),
        (prefill, 0, fit.prefill_error),
    ):
        x = np.array([row[length] for row in rows], dtype=float)
        y = np.array([row.seconds for row in rows])
        left = y - np.polyval(np.polyfit(x, y, 1), x)
        assert error == pytest.approx(np.sqrt(np.mean(left**2)) / y.mean(), rel=1e-6)
        assert error > 0.001
    assert "4 rows, residual" in fit.summary()


def test_a_fit_has_no_negative_costs() -> None:
    falling = [PrefillRow(t, s) for t, s in ((100, 3.0), (200, 2.0), (300, 1.0))]
    fit = fit_rows(_rows(TRUE)[0], falling, TRUE)
    assert fit.costs.prefill_s_per_token == 0.0
    assert fit.costs.prefill_fixed_s == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("decode", "prefill", "message"),
    [
        ([], None, r"^decode: 0 rows, at least 3 are needed"),
        (None, [PrefillRow(5, 1.0)], r"^prefill: 1 rows, at least 3 are needed"),
        (
            [DecodeRow(b, 3000, 0.1) for b in (1, 2, 3, 4)],
            None,
            r"^decode: all rows have 3000 to 3000 context_tokens: rows of other lengths are miss",
        ),
        ([DecodeRow(1, 0, 0.1)] * 3, None, "^decode: all rows have 0 to 0"),
        (None, [PrefillRow(t, 0.1) for t in (1000, 1001, 1002)], "^prefill: all rows have 1000"),
        (None, [PrefillRow(t, 0.0) for t in (1, 100, 1000)], "^prefill: tokens and seconds must"),
        ([DecodeRow(1, c, float("nan")) for c in (1, 2, 3)], None, "^decode: context_tokens and"),
    ],
)
def test_rows_that_do_not_determine_the_costs(
    decode: list[DecodeRow] | None, prefill: list[PrefillRow] | None, message: str
) -> None:
    good = _rows(TRUE)
    with pytest.raises(ConfigError, match=message):
        fit_rows(
            good[0] if decode is None else decode, good[1] if prefill is None else prefill, TRUE
        )


# ---- files


def _file(path: Path, **changed: Any) -> Path:
    decode, prefill = _rows(TRUE)
    fields = {
        "kv_capacity": 5000,
        "kv_bytes_per_token": 1000.0,
        "swap_bytes_per_s": 1e9,
        "decode": [row._asdict() for row in decode],
        "prefill": [row._asdict() for row in prefill],
        **changed,
    }
    file = path / "costs.json"
    file.write_text(json.dumps({k: v for k, v in fields.items() if v is not None}))
    return file


def _csv(path: Path, *lines: str, header: str = "kind,batch,tokens,seconds") -> Path:
    decode, prefill = _rows(TRUE)
    rows = [f"decode,{r.batch},{r.context_tokens},{r.seconds!r}" for r in decode]
    rows += [f"prefill,,{r.tokens},{r.seconds!r}" for r in prefill]
    file = path / "costs.csv"
    file.write_text("\n".join([header, *rows, *lines]) + "\n")
    return file


def _assert_close(costs: EngineCosts, expected: EngineCosts) -> None:
    assert costs.to_dict() == pytest.approx(expected.to_dict(), rel=1e-6)


def test_json_and_csv_files_say_the_same(tmp_path: Path) -> None:
    from_json = load_costs(_file(tmp_path))
    _assert_close(from_json.costs, TRUE)
    assert (from_json.decode_rows, from_json.prefill_rows) == (4, 4)
    assert load_costs(_csv(tmp_path), base=TRUE) == from_json


def test_what_a_file_does_not_say_comes_from_the_profile(tmp_path: Path) -> None:
    profile = engine_costs("A100-80G", "Qwen2.5-7B")
    costs = load_costs(_csv(tmp_path), base=profile).costs
    assert costs.kv_capacity == profile.kv_capacity
    assert costs.decode_fixed_s == pytest.approx(0.02)
    # the file goes before the profile, the argument before both
    assert load_costs(_file(tmp_path), base=profile).costs.kv_capacity == 5000
    assert load_costs(_file(tmp_path), base=profile, kv_capacity=7).costs.kv_capacity == 7
    with pytest.raises(
        ConfigError, match=r"costs.csv: kv_bytes_per_token, swap_bytes_per_s: neither in the file"
    ):
        load_costs(_csv(tmp_path), kv_capacity=7)


def test_the_report_of_the_engine_benchmark(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    fit = {
        "costs": TRUE.to_dict(),
        "batches": 5,
        "requests": 9,
        "prefill_error": 0.25,
        "decode_error": 0.5,
    }
    file.write_text(json.dumps({"runs": [], "calibration": {"fitted_to": "fcfs", "fit": fit}}))
    found = load_costs(file)
    assert found.costs == TRUE
    assert (found.prefill_rows, found.decode_rows) == (5, 9)
    assert (found.prefill_error, found.decode_error) == (0.25, 0.5)
    assert load_costs(file, kv_capacity=9).costs.kv_capacity == 9
    for calibration, message in (
        ({"error": "the size of the pool is not known"}, "no fit: the size of the pool"),
        (None, "no fit"),
        ({"fit": {**fit, "costs": {"price": 3.0}}}, "calibration.fit.costs: .*price"),
        ({"fit": {**fit, "costs": {**TRUE.to_dict(), "kv_capacity": 0}}}, "kv_capacity: "),
        ({"fit": {"costs": {}}}, "batches: Field required"),
    ):
        file.write_text(json.dumps({"calibration": calibration}))
        with pytest.raises(ConfigError, match=message):
            load_costs(file)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"decode": None}, "decode: Field required"),
        ({"prefill": []}, "prefill: 0 rows, at least 3 are needed"),
        ({"prefill": [{"tokens": 5, "seconds": 0}]}, r"prefill.0.seconds: .*greater than 0, got 0"),
        ({"decode": [{"batch": 0, "context_tokens": 5, "seconds": 1.0}]}, "decode.0.batch: "),
        ({"decode": [{"batch": 1, "context": 5, "seconds": 1.0}]}, "decode.0.context_tokens: "),
        ({"decode": [[1, 2, 3.0]]}, "decode.0: "),
        ({"kv_capacity": 0}, "kv_capacity: must be an integer of at least 1"),
        ({"kv_capacity": "many"}, "kv_capacity: "),
        ({"speed": 3}, "speed: Extra inputs are not permitted"),
    ],
)
def test_wrong_json_files_are_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^costs: .*costs.json: .*{message}"):
        load_costs(_file(tmp_path, **changed))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("warmup,1,5,0.1", "line 10: kind: must be decode or prefill, got 'warmup'"),
        ("decode,1,x,0.1", "line 10: tokens: must be an integer, got 'x'"),
        ("decode,,5,0.1", "line 10: batch: must be an integer, got ''"),
        ("decode,1,5", "line 10: seconds: must be a number, got None"),
        ("prefill,,5,-0.1", r"line 10: seconds: .*greater than 0, got -0.1"),
        ("prefill,,5,inf", "line 10: seconds: "),
    ],
)
def test_wrong_csv_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_costs(_csv(tmp_path, line), base=TRUE)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"header must be kind,batch,tokens,seconds, got a,b"):
        load_costs(_csv(tmp_path, header="a,b"), base=TRUE)
    for text, message in (("[]", "must be a JSON object"), ("{", "not JSON")):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_costs(tmp_path / "x.json")
    with pytest.raises(ConfigError, match=r"costs: .*No such file"):
        load_costs(tmp_path / "none.csv")


# ---- the command


def _invoke(*arguments: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def _engine(*arguments: str) -> dict[str, Any]:
    small = ("chain-3", "--tasks", "2", "--rate", "1", "--policies", "fcfs", "--json")
    engine = json.loads(_invoke("simulate", *small, *arguments)[0])["engine"]
    assert isinstance(engine, dict)
    return engine


def test_simulate_with_a_profile() -> None:
    named = ("--gpu", "H200", "--model", "Qwen2.5-32B")
    engine = _engine(*named)
    profile = engine_costs("H200", "Qwen2.5-32B").to_dict()
    assert {name: engine[name] for name in profile} == profile
    assert _engine(*named, "--capacity", "30000")["kv_capacity"] == 30_000
    two = engine_costs("H200", "Qwen2.5-32B", tensor_parallel=2, mem_fraction=0.5)
    more = _engine(*named, "--tensor-parallel", "2", "--mem-fraction", "0.5")
    assert more["kv_capacity"] == two.kv_capacity


def test_simulate_with_measured_costs(tmp_path: Path) -> None:
    file = str(_csv(tmp_path))
    engine = _engine("--costs", file, "--gpu", "A100-80G", "--model", "Qwen2.5-32B")
    assert engine["decode_fixed_s"] == pytest.approx(0.02)
    assert engine["kv_capacity"] == engine_costs("A100-80G", "Qwen2.5-32B").kv_capacity
    small = ("chain-3", "--tasks", "2", "--policies", "fcfs", "--capacity", "30000")
    assert "residual 0.0 %" in _invoke("simulate", *small, "--costs", str(_file(tmp_path)))[1]


def test_simulate_with_another_batching() -> None:
    engine = _engine(
        *("--batching", "mixed", "--chunked-prefill-tokens", "512", "--charge-decisions", "0.01")
    )
    assert engine["batching"] == "mixed"
    assert engine["chunked_prefill_tokens"] == 512
    assert engine["charge_decisions_s"] == 0.01
    assert _engine()["batching"] == "prefill-first"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "H100"), "--gpu: needs --model too"),
        (("--tensor-parallel", "2"), "--tensor-parallel: needs --gpu too"),
        (("--gpu", "L40S", "--model", "Qwen2.5-32B"), "tensor_parallel=2 would do"),
        (("--costs", "/no/such.csv"), "costs: /no/such.csv: No such file or directory"),
        (("--batching", "x"), "batching: unknown 'x'"),
        (("--chunked-prefill-tokens", "0"), "chunked_prefill_tokens: "),
        (("--charge-decisions", "-1"), "charge_decisions_s: "),
    ],
)
def test_illegal_options_of_the_engine(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _invoke("simulate", "chain-3", *arguments)


def test_profiles_are_listed_with_their_sources() -> None:
    table = _invoke("profiles")[0]
    for name in (*GPUS, *MODELS):
        assert name in table
    listed = json.loads(_invoke("profiles", "--json")[0])
    assert len(listed) == len(GPUS) * len(MODELS)
    for row in listed:
        costs = engine_costs(row["gpu"], row["model"], tensor_parallel=row["tensor_parallel"])
        assert {name: row[name] for name in costs.to_dict()} == costs.to_dict()
        assert row["gpu_source"] == GPUS[row["gpu"]].source
    wide = {(row["gpu"], row["model"]): row["tensor_parallel"] for row in listed}
    assert wide["L40S", "Llama-3.1-70B-Instruct"] == 4
    assert wide["A100-80G", "Qwen2.5-32B-Instruct"] == 1
