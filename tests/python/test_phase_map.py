"""Phase maps: pressure and load, ratios, files that are the same each time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from topas.errors import CapacityError, ConfigError
from topas.policies import both_ways
from topas.sim import EngineCosts, EngineOptions, Lengths, make_workload, run_policy
from topas.sim.study.operating_point import locate, mean_rate, task_gpu_s, without_misfits
from topas.sim.study.phase_map import (
    MapScale,
    MapStudy,
    PhaseMap,
    map_phases,
    write_maps,
)
from topas.sim.study.versus import best_of, ratio_to, ratio_to_best
from typer.testing import CliRunner

COSTS, OPTIONS = EngineCosts(), EngineOptions()
SMALL = MapScale(points=2, seeds=2, tasks=6, pressures=(0.5, 1.5), loads=(0.5, 1.0))
STUDY = MapStudy(scale=SMALL, baselines=("lpm", "parrot"))


@pytest.fixture(scope="module")
def phases() -> PhaseMap:
    return map_phases(["chain-3"], STUDY, processes=1)[0]


def test_pressure_and_load_by_hand() -> None:
    lengths = Lengths(prefix_tokens=(8000, 8000, 4000), input_tokens=1000, output_tokens=1000)
    workload = make_workload("chain-3", tasks=4, rate=0.1, lengths=lengths)
    gpu_s = 0.0
    for prefix in (8000, 8000, 4000):
        batch = (40_000 - prefix) / 2000
        gpu_s += 0.35 + 1000 * (0.036 / batch + 0.16e-6 * (prefix + 1500))
    assert task_gpu_s(workload, COSTS, OPTIONS) == pytest.approx(gpu_s)
    point = locate(workload, COSTS, OPTIONS)
    assert point.pressure == pytest.approx(0.5)
    assert point.load == pytest.approx(0.1 * gpu_s)


def test_a_limit_on_requests_raises_the_load() -> None:
    workload = make_workload("chain-3", tasks=4, rate=0.1)
    one = locate(workload, COSTS, EngineOptions(max_running=1)).load
    many = locate(workload, COSTS, OPTIONS).load
    assert one is not None
    assert many is not None
    assert one > 3.0 * many


def test_no_policy_serves_a_load_above_one() -> None:
    workload = make_workload("dag-4", tasks=60, rate=1000.0, seed=3)
    for policy in ("lpm+host", "parrot+host", "topas"):
        run, _ = run_policy(workload, policy)
        assert run.makespan_s is not None
        served = 60 / run.makespan_s * task_gpu_s(workload, COSTS, OPTIONS)
        assert 0.5 < served < 1.0


def test_the_rate_of_recorded_arrivals() -> None:
    workload = replace(make_workload("chain-3", tasks=5, rate=0.1), parameters={})
    spread = workload.tasks[-1].arrival_s - workload.tasks[0].arrival_s
    assert mean_rate(workload) == pytest.approx(4 / spread)
    together = replace(
        workload, tasks=tuple(replace(task, arrival_s=1.0) for task in workload.tasks)
    )
    assert locate(together, COSTS, OPTIONS).load is None


def test_what_never_fits_is_left_out_or_refused() -> None:
    workload = make_workload("metagpt-tl", tasks=40, rate=0.1, seed=1)
    same, none = without_misfits(workload, COSTS, OPTIONS)
    assert (same, none) == (workload, 0)
    tight = replace(COSTS, kv_capacity=14_800)
    kept, some = without_misfits(workload, tight, OPTIONS)
    assert 0 < some <= 4
    assert len(kept.tasks) == 40 - some
    run, _ = run_policy(kept, "fcfs", costs=tight)
    assert run.cancelled == 0
    assert run_policy(workload, "fcfs", costs=tight)[0].cancelled == some
    with pytest.raises(CapacityError, match=r"40 of 40 tasks .* capacity is 5000"):
        without_misfits(workload, replace(COSTS, kv_capacity=5000), OPTIONS)


def test_ratios_are_paired_and_know_what_they_do_not_know() -> None:
    ours = [8.0, 18.0, 42.0]
    theirs = {"a": [10.0, 20.0, None], "b": [10.0, 20.0, 50.0], "c": [11.0, 20.0, 50.0]}
    assert best_of(theirs) == "b"
    found = ratio_to_best(ours, theirs)
    assert found is not None
    assert found.best == "b"
    assert found.ratio.values == pytest.approx((0.8, 0.9, 0.84))
    assert found.direction() == -1
    assert found.direction(least=0.2) == 0
    replicated = ratio_to_best(ours, theirs, resampled=True)
    assert replicated is not None
    assert replicated.ratio.half_width == pytest.approx(found.ratio.half_width * 3**0.5)
    assert replicated.direction() == 0
    assert ratio_to([8.0], "b", [10.0]).direction() == 0  # type: ignore[union-attr]
    assert ratio_to([12.0, 13.0], "b", [10.0, 11.0]).direction() == 1  # type: ignore[union-attr]
    assert ratio_to([None], "b", [10.0]) is None
    assert ratio_to_best(ours, {}) is None


def test_cells_have_the_pressure_and_load_they_say(phases: PhaseMap) -> None:
    assert [(cell.pressure, cell.load) for cell in phases.cells] == [
        (0.5, 0.5),
        (0.5, 1.0),
        (1.5, 0.5),
        (1.5, 1.0),
    ]
    for cell in phases.cells:
        lengths = Lengths(prefix_tokens=cell.prefix_tokens)
        assert cell.rate is not None
        workload = make_workload("chain-3", tasks=6, rate=cell.rate, seed=1, lengths=lengths)
        point = locate(workload, COSTS, OPTIONS)
        assert point.pressure == pytest.approx(cell.pressure, abs=1e-4)
        assert point.load == pytest.approx(cell.load)


def test_a_cell_compares_with_the_best_of_each_kind(phases: PhaseMap) -> None:
    cell = phases.cells[3]
    values = cell.values["mean_jct_s"]
    assert list(values) == ["lpm", "lpm+host", "parrot", "parrot+host", "topas"]
    best = {"both": list(values)[:4], "without_host": ["lpm", "parrot"]}
    best["with_host"] = ["lpm+host", "parrot+host"]
    for kind, names in best.items():
        least = min(names, key=lambda name: sum(v or 0.0 for v in values[name]))
        found = cell.ratio("mean_jct_s", kind)
        assert found is not None
        assert found.best == least
    lengths = Lengths(prefix_tokens=cell.prefix_tokens)
    workload = make_workload("chain-3", tasks=6, rate=cell.rate or 0.0, seed=2, lengths=lengths)
    assert values["topas"][1] == run_policy(workload, "topas")[0].mean_jct_s


def test_files_are_the_same_each_time(phases: PhaseMap, tmp_path: Path) -> None:
    files = write_maps([phases], tmp_path / "a")
    assert [file.name for file in files] == ["phase_map.json", "chain-3.png"]
    cells = tmp_path / "cells.jsonl"
    map_phases(["chain-3"], STUDY, processes=1, resume=cells)
    lines = cells.read_bytes().splitlines(keepends=True)
    cells.write_bytes(b"".join(lines[:7]) + lines[7][:30])  # as a kill leaves it
    again = write_maps(map_phases(["chain-3"], STUDY, processes=1, resume=cells), tmp_path / "b")
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in files]
    whole = json.loads(files[0].read_text())
    assert whole["maps"][0]["scale"]["loads"] == [0.5, 1.0]


def test_a_pressure_that_does_not_fit_has_no_figures(tmp_path: Path) -> None:
    scale = replace(SMALL, pressures=(0.5, 3.0))
    (found,) = map_phases(["chain-3"], replace(STUDY, scale=scale), processes=1)
    fits, misfits = found.grid()
    assert all(cell.rate and cell.ratio("p99_jct_s") for cell in fits)
    assert all(cell.rate is None and cell.ratio("p99_jct_s") is None for cell in misfits)
    assert found.errors == ()
    assert write_maps([found], tmp_path)[1].stat().st_size > 1000


def test_a_run_that_fails_is_named_and_leaves_a_gap() -> None:
    few = {"exact_limit": 1, "samples": 0}  # refused as soon as two totals are observed
    study = replace(STUDY, policy="topas-paper", config=few)
    (found,) = map_phases(["chain-3"], study, processes=1)
    assert len(found.errors) == 4 * 2
    assert "exact_limit" in found.errors[0]
    assert all(cell.ratio("mean_jct_s") is None for cell in found.cells)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MapScale(points=1), "points"),
        (lambda: MapScale(seeds=0), "seeds"),
        (lambda: MapScale(loads=(0.0, 1.0)), "loads"),
        (lambda: MapScale(pressures=(1.0, 1.0)), "pressures"),
        (lambda: MapStudy(policy="lpm"), "policy"),
        (lambda: MapStudy(baselines=("topas",)), "baselines"),
        (lambda: MapStudy(config={"urgency": -1.0}), "urgency"),
        (lambda: MapStudy(config={"haste": 1.0}), "haste"),
        (lambda: map_phases(["chain"]), "workload"),
    ],
)
def test_illegal_settings_are_named(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_kvflow_has_its_host_cache_once() -> None:
    assert both_ways(("lpm", "kvflow")) == ("lpm", "lpm+host", "kvflow")


def test_the_command_writes_and_prints(tmp_path: Path) -> None:
    from topas.cli.app import app

    arguments = "phase-map chain-3 --quick --points 2 --tasks 3 --seeds 1 --processes 1"
    arguments += f" --baselines lpm --out {tmp_path}"
    result = CliRunner().invoke(app, arguments.split())
    assert result.exit_code == 0, result.output
    assert "load 1.2" in result.output
    assert {file.name for file in tmp_path.iterdir()} == {
        "phase_map.json",
        "chain-3.png",
        "cells.jsonl",
    }
    with pytest.raises(ConfigError, match="preset"):
        CliRunner().invoke(app, [*arguments.split(), "--preset", "best"], catch_exceptions=False)
