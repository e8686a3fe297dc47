"""``topas reproduce``: Table I, the Gantt chart, and the figures over seeds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from topas.cli.reproduce import reproduce
from topas.errors import ConfigError, StateError, TopasError
from topas.policies import BASELINE_NAMES, PolicyName
from topas.reproduce.figures import Figures
from topas.reproduce.gantt import run_gantt
from topas.reproduce.plots import _words
from topas.reproduce.points import (
    PAPER_BASELINES,
    POLICIES,
    RATES,
    Scale,
    Variant,
    ablation,
    cells_of,
    contenders,
)
from topas.reproduce.run import Evaluation, Sweep, evaluate, write
from topas.reproduce.table1 import (
    TABLE1_SETTING,
    Table1Setting,
    make_batch_workload,
    run_table1,
)
from topas.reproduce.tables import to_tables
from topas.sim import BUILTIN_WORKLOADS, EngineCosts, make_workload
from topas.sim.study.sweep import Cell, CellResult
from typer.testing import CliRunner

APP = typer.Typer()
APP.command()(reproduce)
TINY = Scale(tasks=4, seeds=2, rates=1)


# Table I


def test_one_setting_gives_the_whole_of_table_1() -> None:
    rows = run_table1()
    assert [(row.requests, row.order) for row in rows] == [
        (count, order) for count in (100, 150, 200) for order in ("grouped", "alternating")
    ]
    assert [miss for row in rows for miss in row.misses()] == []
    for row in rows:  # beside what misses() does
        assert row.makespan_s == pytest.approx(row.paper_makespan_s, rel=0.15)
        assert row.mean_batch == pytest.approx(row.paper_mean_batch, rel=0.15)
        assert abs(row.peak_batch - row.paper_peak_batch) <= 1


def test_misses_are_named() -> None:
    row = replace(run_table1(requests=[100])[0], makespan_s=2000.0, mean_batch=8.0, peak_batch=12)
    assert row.misses() == [
        "grouped n=100: makespan_s is off by +74.6%",
        "grouped n=100: peak_batch is off by -3",
    ]
    assert replace(row, mean_batch=7.8).misses()[1] == "grouped n=100: mean_batch is off by -16.1%"


def test_both_orders_have_the_same_requests() -> None:
    grouped = make_batch_workload(TABLE1_SETTING, 30, "grouped")
    alternating = make_batch_workload(TABLE1_SETTING, 30, "alternating")

    def requests(workload: Any) -> list[Any]:
        return sorted((task.workflow, task.stages[0][0].output_tokens) for task in workload.tasks)

    assert requests(grouped) == requests(alternating)
    agents = [task.workflow for task in grouped.tasks]
    assert agents == sorted(agents)
    assert [agents.count(agent) for agent in grouped.agents] == [8, 8, 7, 7]
    assert [task.workflow for task in alternating.tasks[:5]] == [*grouped.agents, "agent-1"]
    assert {task.arrival_s for task in grouped.tasks} == {0.0}
    longer = make_batch_workload(TABLE1_SETTING, 40, "alternating")
    assert longer.tasks[:30] == alternating.tasks


def test_wrong_settings_of_table_1() -> None:
    with pytest.raises(ConfigError, match="agents: "):
        replace(TABLE1_SETTING, agents=0)
    with pytest.raises(ConfigError, match="prefix_tokens: must be two lengths"):
        replace(TABLE1_SETTING, prefix_tokens=(1, 2, 3))
    with pytest.raises(ConfigError, match="order: unknown 'mixed'"):
        make_batch_workload(TABLE1_SETTING, 3, "mixed")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="requests: 120 is no load of the table"):
        run_table1(requests=[120])
    huge = Table1Setting(
        agents=1,
        prefix_tokens=(39_000, 39_000),
        input_tokens=100,
        output_tokens=2000,
        output_sigma=0.0,
        seed=0,
    )
    with pytest.raises(StateError, match="0 of 100 requests finished"):
        run_table1(huge, requests=[100])


# Figure 2


@pytest.mark.parametrize("tasks", [1, 2, 3, 5])
def test_the_gantt_chart_is_the_one_worked_out_by_hand(tasks: int) -> None:
    lpm, srpt = run_gantt("lpm", tasks), run_gantt("srpt", tasks)
    assert (lpm.makespan, lpm.setups) == (pytest.approx(3 + 12 * tasks), 3)
    assert lpm.mean_jct == pytest.approx(5 + 10 * tasks)
    assert (srpt.makespan, srpt.setups) == (pytest.approx(15 * tasks), 3 * tasks)
    assert srpt.mean_jct == pytest.approx(7.5 * (tasks + 1))
    assert run_gantt("spf", tasks).bars == srpt.bars  # equal stages: the same order


def test_bars_of_the_gantt_chart() -> None:
    chart = run_gantt("srpt", 2)
    assert [(b.task, b.agent, b.start, b.service, b.end) for b in chart.bars] == [
        (task, agent, *(pytest.approx(start + offset) for offset in (0, 1, 5)))
        for task, agent, start in (
            *((1, "A", 0), (1, "B", 5), (1, "C", 10)),
            *((2, "A", 15), (2, "B", 20), (2, "C", 25)),
        )
    ]
    second = run_gantt("lpm", 2).bars[1]
    assert (second.task, second.agent, second.start, second.service) == (2, "A", 5.0, 5.0)
    with pytest.raises(ConfigError, match="tasks: "):
        run_gantt("lpm", 0)


# Figures of a sweep


def _result(label: str, rate: float, seed: int, mean: float, **metrics: Any) -> CellResult:
    cell = Cell(workload="w", tasks=2, rate=rate, seed=seed, policy="fcfs", label=label)
    whole = {"arrived": 2, "finished": 2, "stopped": "", "mean_jct_s": mean, "p99_jct_s": mean}
    rest = dict.fromkeys(
        (
            *("first_task_s", "requests_per_s", "preemptions", "swaps"),
            *("recomputed_tokens", "mean_batch", "hit_rate"),
        ),
        1.0,
    )
    return CellResult(cell=cell, metrics={**rest, **whole, **metrics})


def _figures(**extra: Any) -> Figures:
    table = {
        "a": [[100, 200], [300, 400]],
        "b": [[150, 150], [200, 200]],
        "t": [[80, 90], [80, 90]],
    }
    results = [
        _result(label, rate, seed, float(mean), **(extra if (label, rate) == ("b", 1.0) else {}))
        for label, of_rates in table.items()
        for rate, means in zip((1.0, 2.0), of_rates, strict=True)
        for seed, mean in enumerate(means, start=1)
    ]
    return Figures(results)


def test_the_comparator_has_the_lowest_average_over_the_rates() -> None:
    item = _figures().reduction("w", [1.0, 2.0], "t", ["a", "b"], "mean_jct_s", 9.0)
    assert item is not None
    assert (item.best, item.paper) == ("b", 9.0)  # a: 250, b: 175, though a wins at rate 1
    assert item.percent.values == pytest.approx((100 * (1 - 80 / 175), 100 * (1 - 90 / 175)))
    light = _figures().reduction("w", [1.0], "t", ["a", "b"], "mean_jct_s")
    assert light is not None
    assert light.best == "a"  # equal averages: the first


def test_of_throughput_more_is_better() -> None:
    figures = Figures([_result("a", 1.0, 1, 1.0), _result("b", 1.0, 1, 1.0, requests_per_s=2.0)])
    assert figures.best("w", [1.0], ["a", "b"], "requests_per_s") == "b"
    assert figures.best("w", [1.0], ["a", "b"], "mean_jct_s") == "a"


def test_topas_against_the_best_of_each_kind() -> None:
    means = {"lpm": 100, "lpm+host": 60, "srpt": 90, "srpt+host": 70, "kvflow": 65, "topas": 63}
    figures = Figures(_result(name, 1.0, 1, float(mean)) for name, mean in means.items())
    paper = {"mean_jct_s": 27.5}
    mean, p99 = figures.comparisons("w", [1.0], contenders(means), paper=paper)
    assert {kind: item and item.best for kind, item in mean.against.items()} == {
        "paper_baselines": "lpm",
        "without_host": "srpt",
        "with_host": "lpm+host",
        "both": "lpm+host",
    }
    content = mean.to_dict()
    assert (content["paper_percent"], p99.to_dict()["paper_percent"]) == (27.5, None)
    assert [
        content[kind]["reduction_percent"]["mean"]
        for kind in ("paper_baselines", "without_host", "with_host", "both")
    ] == pytest.approx([37.0, 30.0, -5.0, -5.0])


def test_a_kind_without_a_complete_baseline_has_no_figure() -> None:
    results = [_result("lpm", 1.0, 1, 1.0), _result("lpm+host", 1.0, 1, 1.0, finished=1)]
    figures = Figures([*results, _result("topas", 1.0, 1, 0.5)])
    variants = contenders(("lpm", "lpm+host", "topas"))
    item = figures.comparisons("w", [1.0], variants)[0]
    assert item.against["with_host"] is None
    assert item.to_dict()["with_host"] is None
    assert item.against["both"] == item.against["without_host"] is not None
    sweep = Sweep(points=[], comparisons=[item])
    evaluation = Evaluation(scale=TINY, baselines=("lpm",), sweeps={"fig3": sweep})
    assert _row(evaluation, -1)[3:] == ["+50.0", "lpm*", "+50.0", "lpm*", "-", "-", "-"]
    assert _words([item]) == (
        "% less than\npaper's (lpm): topas +50.0\nall without host cache (lpm): topas +50.0"
    )


def _row(evaluation: Evaluation, row: int) -> list[Any]:
    """A row of the last table."""
    return [list(column.cells)[row] for column in to_tables(evaluation)[-1].columns]


@pytest.mark.parametrize("extra", [{"finished": 1}, {"stopped": "in circles"}])
def test_incomplete_runs_make_no_figures(extra: dict[str, Any]) -> None:
    figures = _figures(**extra)
    point = figures.point("w", 1.0, "b")
    assert (point.incomplete, point.metrics["mean_jct_s"]) == (2, None)
    assert point.to_dict()["mean_jct_s"] is None
    item = figures.reduction("w", [1.0, 2.0], "t", ["a", "b"], "mean_jct_s")
    assert item is not None
    assert item.best == "a"
    assert figures.reduction("w", [1.0], "b", ["a"], "mean_jct_s") is None
    assert figures.reduction("w", [1.0], "a", ["b"], "mean_jct_s") is None


def test_what_is_run() -> None:
    assert set(RATES) == set(BUILTIN_WORKLOADS)
    for rates in RATES.values():
        assert len(rates) == 5
        assert list(rates) == sorted(set(rates))
    assert Scale().rates_of("dag-4") == RATES["dag-4"]
    assert Scale(rates=1).rates_of("dag-4") == (0.09,)
    assert Scale(rates=9).rates_of("dag-4") == RATES["dag-4"]
    assert [dict(variant.config) for variant in ablation("topas")] == [
        {},
        {"reuse_weight": 0.0},
        {"age_weight": 0.0},
        {"reuse_weight": 0.0, "age_weight": 0.0},
    ]
    cells = cells_of("dag-4", (0.09,), contenders(("lpm", "topas")), TINY)
    assert [(cell.label, cell.seed) for cell in cells] == [
        *(("lpm", 1), ("lpm", 2), ("topas", 1), ("topas", 2)),
    ]


def test_prefixes_are_scaled_to_a_pressure() -> None:
    variants = contenders(("lpm",))
    (own,) = cells_of("dag-4", (0.09,), variants, Scale(seeds=1))
    (cell,) = cells_of("dag-4", (0.09,), variants, Scale(seeds=1, pressure=1.5))
    assert own.lengths is None
    assert cell.lengths is not None
    capacity = EngineCosts().kv_capacity
    scaled = make_workload("dag-4", tasks=1, rate=0.09, lengths=cell.lengths)
    assert sum(scaled.agents.values()) == pytest.approx(1.5 * capacity, rel=1e-3)
    plain = make_workload("dag-4", tasks=1, rate=0.09)
    ratios = {round(scaled.agents[a] / plain.agents[a], 2) for a in plain.agents}
    assert len(ratios) == 1, "all by the same factor"
    for wrong in (0.0, -1.0, math.nan, "1"):
        with pytest.raises(ConfigError, match=r"^pressure: "):
            Scale(pressure=wrong)  # type: ignore[arg-type]


def test_every_baseline_runs_both_ways() -> None:
    variants = contenders()
    assert tuple(variant.label for variant in variants) == POLICIES
    ways: dict[str, list[bool]] = {}
    for variant in variants:
        if variant.baseline:
            ways.setdefault(PolicyName.parse(variant.policy).base, []).append(
                variant.has_host_cache
            )
    assert tuple(ways) == BASELINE_NAMES
    assert all(way == ([True] if name == "kvflow" else [False, True]) for name, way in ways.items())
    assert [v.label for v in variants if not v.baseline] == [
        "topas-paper",
        "topas-guarded",
        "topas",
        "topas-rollout",
    ]
    assert tuple(v.label for v in variants if v.in_paper) == PAPER_BASELINES
    narrow = contenders(baselines=("lpm",))
    assert [v.label for v in narrow if v.baseline] == ["lpm", "lpm+host"]
    assert tuple(v.label for v in narrow if v.in_paper) == PAPER_BASELINES
    cells = cells_of("dag-4", (0.09,), contenders(("lpm", "lpm+host")), TINY)
    assert [(cell.policy, cell.label) for cell in cells[::2]] == [
        *(("lpm", "lpm"), ("lpm+host", "lpm+host")),
    ]


def test_wrong_choices_are_refused() -> None:
    with pytest.raises(ConfigError, match="baselines: 'topas' is none of fcfs"):
        contenders(baselines=("topas",))
    with pytest.raises(ConfigError, match="variants: 'lpm' is given twice"):
        cells_of("dag-4", (0.09,), contenders(("lpm", "lpm")), TINY)
    with pytest.raises(ConfigError, match="policy: unknown 'no-such'"):
        contenders(("no-such",))
    wrong = Variant(label="x", policy="lpm", options={"no_such": 1})
    with pytest.raises(ConfigError, match="no_such: unknown engine option"):
        cells_of("dag-4", (0.09,), [wrong], TINY)
    with pytest.raises(ConfigError, match="seeds: "):
        Scale(seeds=0)
    with pytest.raises(ConfigError, match="part: unknown 'fig9'"):
        evaluate(["fig9"])


# The whole


def test_the_same_bytes_with_and_without_an_interruption(tmp_path: Path) -> None:
    parts = ("fig2", "fig5", "table1")
    resume = tmp_path / "cells.jsonl"
    first = write(evaluate(parts, scale=TINY, processes=1), tmp_path / "one")
    evaluate(["fig5"], scale=TINY, processes=1, resume=resume)
    second = write(evaluate(parts, scale=TINY, processes=2, resume=resume), tmp_path / "two")
    assert [file.name for file in first] == [
        *("results.json", "fig2.png", "fig5.png"),
    ]
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_a_figure_of_rates_has_all_policies(tmp_path: Path) -> None:
    evaluation = evaluate(["fig4"], scale=TINY, baselines=("fcfs", "lpm"), processes=1)
    content = json.loads(write(evaluation, tmp_path)[0].read_text())["fig4"]
    shown = [(p["workload"], p["rate"], p["policy"]) for p in content["points"]]
    assert shown == [
        (workload, RATES[workload][-1], policy)
        for workload in ("metagpt-sop", "metagpt-tl")
        for policy in POLICIES
    ]
    compared = content["comparisons"]
    assert [(i["metric"], i["policy"], i["paper_percent"]) for i in compared[:8]] == [
        (metric, policy, percent)
        for metric, percent in (("mean_jct_s", 9.8), ("p99_jct_s", 4.5))
        for policy in ("topas-paper", "topas-guarded", "topas", "topas-rollout")
    ]
    for item in compared:
        assert item["paper_baselines"]["best_baseline"] in PAPER_BASELINES
        assert item["without_host"]["best_baseline"] in ("fcfs", "lpm")
        assert item["with_host"]["best_baseline"] in ("fcfs+host", "lpm+host")
        better = min(_best(content, item, kind) for kind in ("without_host", "with_host"))
        assert _best(content, item, "both") == better
    assert (tmp_path / "fig4.png").read_bytes().startswith(b"\x89PNG")


def _best(content: dict[str, Any], item: dict[str, Any], kind: str) -> float:
    """The figure of the best baseline of a kind, from its point."""
    return next(
        float(point[item["metric"]]["mean"])
        for point in content["points"]
        if (point["workload"], point["policy"]) == (item["workload"], item[kind]["best_baseline"])
    )


def test_a_failed_run_is_reported_and_spares_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "topas.reproduce.run.ablation",
        lambda policy: [*ablation(policy), Variant(label=f"{policy} x", policy="no-such")],
    )
    evaluation = evaluate(["fig5"], scale=TINY, processes=1)
    assert [error.partition(": policy: unknown")[0] for error in evaluation.errors] == [
        f"metagpt-tl rate 0.0175 seed {seed} {policy} x: ConfigError"
        for policy in ("topas-paper", "topas-guarded", "topas")
        for seed in (1, 2)
    ]
    content = json.loads(write(evaluation, tmp_path)[0].read_text())
    assert content["errors"] == evaluation.errors
    assert content["fig5"]["points"][0]["mean_jct_s"]["mean"] > 0
    assert content["fig5"]["points"][4]["incomplete"] == 2


def _invoke(*arguments: str) -> Any:
    result = CliRunner().invoke(APP, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_command(tmp_path: Path) -> None:
    result = _invoke("fig1", "--out", str(tmp_path), "--quick", "--seeds", "3", "--processes", "1")
    assert result.exit_code == 0
    for word in ("Figure 1", "srpt+host", "mean JCT s", "paper %", "downstream gating is left out"):
        assert word in result.stdout
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["seeds"] == [1, 2, 3]
    assert content["scale"] == {"tasks": 30, "seeds": 3, "rates": 2, "pressure": None}
    shown = ["lpm", "lpm+host", "srpt", "srpt+host", "topas"]
    assert [point["policy"] for point in content["fig1"]["points"]] == shown
    assert {item["paper_percent"] for item in content["fig1"]["comparisons"]} == {None}
    assert all(len(p["mean_jct_s"]["values"]) == 3 for p in content["fig1"]["points"])
    assert (tmp_path / "fig1.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "cells.jsonl").read_text().splitlines()) == 15


def test_the_command_shows_table_and_chart(tmp_path: Path) -> None:
    result = _invoke("table1", "--out", str(tmp_path))
    assert "2086.0" in result.stdout
    result = _invoke("fig2", "--out", str(tmp_path))
    assert "srpt" in result.stdout
    assert [
        chart["makespan"] for chart in json.loads((tmp_path / "results.json").read_text())["fig2"]
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fig7",), "part: unknown 'fig7'"),
        (("fig1", "--seeds", "0"), "seeds: "),
        (("fig1", "--quick", "--seeds", "0"), "seeds: "),
        (("fig1", "--processes", "0"), "processes: "),
        (("fig3", "--baselines", "lpm,x"), "baselines: 'x'"),
        (("fig5", "--baselines", "lpm,x"), "baselines: 'x'"),
    ],
)
def test_bad_input_is_a_typed_error(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(TopasError) as caught:
        _invoke(*arguments, "--out", str(tmp_path))
    assert message in str(caught.value)
