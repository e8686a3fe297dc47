"""Advice: known answers, halves that share nothing, and what is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from topas.cli.app import app
from topas.config import PRESETS
from topas.errors import ArgumentError, CapacityError, ConfigError
from topas.sim import (
    EngineCosts,
    EngineOptions,
    Lengths,
    Workload,
    make_workload,
    run_policy,
)
from topas.sim.study.advice import Advice, LoadAdvice, Question, Setting, advise, candidates
from topas.sim.study.advice_text import three_lines
from topas.sim.study.operating_point import OperatingPoint, locate
from topas.sim.study.replicates import Run, redraw, resample, run_all
from topas.sim.study.statistics import interval
from topas.sim.study.versus import Ratio
from typer.testing import CliRunner

COSTS, OPTIONS = EngineCosts(), EngineOptions()
PLAIN = Setting(preset="default", config={})
# Nothing protects running requests: tasks displace each other again and again.
UNGUARDED = Setting(preset="guarded", config={"redo_weight": 0.0})
SHORT = Lengths(input_tokens=300, output_tokens=150)


def _made(
    name: str, rate: float, tasks: int = 12, lengths: Lengths | None = None, **fields: Any
) -> Question:
    def make(seed: int) -> Workload:
        return make_workload(name, tasks=tasks, rate=rate, seed=seed, lengths=lengths)

    given = {"settings": [PLAIN], "baselines": ("fcfs", "lpm", "parrot"), **fields}
    return Question(
        replicates=redraw(make, seed=1, count=3), point=locate(make(1), COSTS, OPTIONS), **given
    )


def test_without_prefixes_it_does_not_matter() -> None:
    lengths = replace(SHORT, prefix_tokens=(0,))
    found = advise(_made("chain-3", 0.1, lengths=lengths))
    assert found.verdict() == "does not matter"
    assert [found.verdict(kind) for kind in found.kinds] == ["does not matter"] * 3
    assert found.point.pressure == 0.0
    for load in found.loads:
        ratio = load.ratios["mean_jct_s"]["all"]
        assert ratio is not None
        assert ratio.ratio.mean == pytest.approx(1.0, abs=1e-9)


def test_made_to_lose_the_answer_is_no() -> None:
    question = _made("metagpt-sop", 0.05, tasks=20, settings=[UNGUARDED], loads=(1.0,))
    found = advise(question)
    ratio = found.own.ratios["mean_jct_s"]["all"]
    assert ratio is not None
    assert ratio.ratio.mean > 1.3
    assert found.verdict() == "no"
    assert three_lines(found)[0].startswith("TOPAS: no. Against the best plain policy, ")


def test_where_prefixes_do_not_fit_together_the_answer_is_yes() -> None:
    lengths = Lengths(prefix_tokens=(18_300, 25_000, 11_700))
    found = advise(_made("chain-3", 0.065, tasks=25, lengths=lengths, loads=(1.0,)))
    assert found.point.pressure == pytest.approx(55_000 / 40_000)
    assert found.verdict() == "yes"


def test_values_are_those_of_the_held_out_runs() -> None:
    question = _made("dag-4", 0.1, tasks=5, loads=(0.5, 1.0))
    found = advise(question)
    slow = found.loads[0]
    assert slow.factor == 0.5
    workload = make_workload("dag-4", tasks=5, rate=0.05, seed=4)
    run, _ = run_policy(workload, "lpm+host")
    assert slow.values["p99_jct_s"]["lpm+host"][0] == pytest.approx(run.p99_jct_s)
    first = [run_policy(w, "topas")[0].mean_jct_s for w in question.replicates.selection]
    assert len({*first, *found.own.values["mean_jct_s"]["preset default"]}) == 6
    score = found.scores["preset default"]
    assert score is not None
    assert min(x or 0.0 for x in first) * 0.5 < score < max(x or 0.0 for x in first)


def test_the_number_of_processes_does_not_show() -> None:
    question = _made("chain-3", 0.1, tasks=3, loads=(1.0,))
    one, two = advise(question), advise(question, processes=2)
    assert json.dumps(one.to_dict()) == json.dumps(two.to_dict())


def test_an_interrupted_advice_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "new folder" / "runs.jsonl"
    question = _made("chain-3", 0.1, tasks=3, loads=(1.0,))
    expected = json.dumps(advise(question).to_dict())

    def interrupt(total: int) -> AbstractContextManager[Callable[[Any], None]]:
        return nullcontext(lambda _: after_four(total))

    def after_four(total: int) -> None:
        assert total > 4
        if len(file.read_bytes().splitlines()) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        advise(question, resume=file, progress=interrupt)
    file.write_bytes(file.read_bytes() + b'{"key": "0')  # as a kill leaves it
    made: list[str] = []

    def counted(workload: Workload, policy: str, **settings: Any) -> Any:
        made.append(policy)
        return run_policy(workload, policy, **settings)

    monkeypatch.setattr("topas.sim.study.replicates.run_policy", counted)
    assert json.dumps(advise(question, resume=file).to_dict()) == expected
    rows = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert len(made) == len({row["key"] for row in rows}) - 4
    made.clear()
    assert json.dumps(advise(question, resume=file, processes=2).to_dict()) == expected
    assert not made
    other = replace(question, options=replace(OPTIONS, max_running=1))
    advise(other, resume=file)
    assert len(made) == len(rows), "other runs are not taken from the file"


def test_what_is_no_file_of_runs_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("hello\n")
    with pytest.raises(ConfigError, match=r"resume: .*notes\.txt line 1: is no line of a sweep"):
        advise(_made("chain-3", 0.1, tasks=3), resume=file)


def test_a_pick_must_win_on_the_held_out_half_too() -> None:
    alike = Setting(preset="guarded", config={"samples": 64})  # decides as the preset alone
    question = _made("metagpt-sop", 0.05, settings=[UNGUARDED, alike], loads=(1.0,))
    found = advise(question)
    assert found.picked == found.setting == alike
    assert found.confirmed is not None
    assert found.confirmed.ratio.mean < 0.9
    assert "than the preset alone" in three_lines(found)[1]
    swapped = replace(
        question.replicates,
        selection=question.replicates.held_out,
        held_out=tuple(make_workload("metagpt-sop", tasks=1, rate=1.0, seed=s) for s in (1, 2, 3)),
    )
    found = advise(replace(question, replicates=swapped))  # a task alone: nothing to win
    assert (found.picked, found.setting) == (alike, UNGUARDED)
    assert "does not hold on the held-out half: mean JCT unchanged" in three_lines(found)[1]


def _load(factor: float, mean: float | None, p99: float, half: float = 0.02) -> LoadAdvice:
    def ratio(value: float | None) -> Ratio | None:
        found = None if value is None else interval([value - half / 3, value + half / 3])
        return found and Ratio("lpm", replace(found, half_width=half))

    ratios = {"mean_jct_s": {"all": ratio(mean)}, "p99_jct_s": {"all": ratio(p99)}}
    return LoadAdvice(factor=factor, values={}, best={"all": "lpm"}, ratios=ratios)


@pytest.mark.parametrize(
    ("own", "twice", "verdict"),
    [
        ((0.9, 0.9), (0.9, 0.9), "yes"),
        ((0.9, 1.0), (1.0, 1.3), "yes"),
        ((1.0, 0.9), (1.0, 1.0), "yes"),
        ((0.9, 0.9), (1.1, 1.0), "it depends"),
        ((0.9, 1.1), (0.9, 0.9), "it depends"),
        ((1.1, 1.0), (0.9, 0.9), "no"),
        ((None, 1.0), (1.0, 1.0), "no"),
        ((1.0, 1.1), (1.0, 1.0), "no"),
        ((1.0, 1.0), (1.1, 1.0), "no"),
        ((1.0, 1.0), (0.9, 1.0), "does not matter"),
        ((1.01, 0.99), (1.0, 1.3), "does not matter"),
    ],
)
def test_verdicts(
    own: tuple[float | None, float], twice: tuple[float, float], verdict: str
) -> None:
    found = Advice(
        workload="w",
        point=OperatingPoint(1.2, 0.8),
        left_out=2,
        resampled=False,
        setting=PLAIN,
        picked=PLAIN,
        scores={PLAIN.label: 1.0},
        confirmed=None,
        loads=(_load(1.0, *own), _load(2.0, *twice)),
    )
    assert found.verdict() == verdict
    lines = three_lines(found)
    assert len(lines) == 3
    assert lines[0].startswith(f"TOPAS: {verdict}. ")
    assert "lpm" in lines[0]
    assert lines[1] == "Settings: preset default, the best of 1 tried."
    assert "pressure 1.20, load 0.80" in lines[2]
    assert "2 tasks never fit" in lines[2]
    if own == (0.9, 0.9):
        assert "mean JCT 10.0 % less (±2.0)" in lines[0]


def test_wide_intervals_are_told() -> None:
    found = Advice(
        workload="w",
        point=OperatingPoint(0.5, None),
        left_out=0,
        resampled=True,
        setting=PLAIN,
        picked=PLAIN,
        scores={PLAIN.label: 1.0},
        confirmed=None,
        loads=(_load(1.0, 0.9, 0.9, half=0.2),),
    )
    first, _, third = three_lines(found)
    assert first.startswith("TOPAS: does not matter. ")
    assert first.endswith("The interval is wide; a longer trace would tell more.")
    assert "more replicates" in three_lines(replace(found, resampled=False))[0]
    assert "load unknown" in third


def test_halves_of_a_recording_share_no_task_and_keep_its_arrivals() -> None:
    workload = make_workload("metagpt-sop", tasks=30, rate=0.05, seed=2)
    of = {task.stages: index for index, task in enumerate(workload.tasks)}
    found = resample(workload, seed=3, count=4, sample=10)
    assert found.resampled
    for half, replicates in enumerate((found.selection, found.held_out)):
        for replicate in replicates:
            assert {of[task.stages] % 2 for task in replicate.tasks} == {half}
            arrivals = [task.arrival_s for task in replicate.tasks]
            recorded = [task.arrival_s for task in workload.tasks]
            assert any(
                arrivals == [a - recorded[at] for a in recorded[at : at + 10]] for at in range(21)
            )
    assert found == resample(workload, seed=3, count=4, sample=10)
    assert found != resample(workload, seed=4, count=4, sample=10)


def test_arrivals_are_sped_up_and_gaps_are_none() -> None:
    workload = make_workload("chain-3", tasks=5, rate=0.1, seed=1)
    fast = make_workload("chain-3", tasks=5, rate=0.2, seed=1)
    stopped = replace(OPTIONS, max_time_s=1.0)
    runs = [Run(workload=0, factor=2.0, policy="lpm")]
    (whole,) = run_all([workload], runs, costs=COSTS, options=OPTIONS, processes=1)
    assert whole.mean_jct_s == pytest.approx(run_policy(fast, "lpm")[0].mean_jct_s)
    (cut,) = run_all([workload], runs, costs=COSTS, options=stopped, processes=1)
    assert (cut.mean_jct_s, cut.p99_jct_s) == (None, None)


def test_candidates_are_few_and_respect_what_is_fixed() -> None:
    everything = candidates()
    assert everything[0] == PLAIN
    assert len({setting.label for setting in everything}) == len(everything) <= 10
    assert {setting.preset for setting in everything} == set(PRESETS)
    fixed = candidates("paper", {"redo_weight": 2.0})
    assert {setting.preset for setting in fixed} == {"paper"}
    assert all(setting.config["redo_weight"] == 2.0 for setting in fixed)


def test_illegal_questions_are_named() -> None:
    workload = make_workload("chain-3", tasks=3, rate=0.1)
    with pytest.raises(ConfigError, match="preset: unknown 'best'"):
        candidates("best")
    with pytest.raises(ConfigError, match="loads"):
        _made("chain-3", 0.1, loads=(0.5,))
    with pytest.raises(ConfigError, match="loads"):
        _made("chain-3", 0.1, loads=(-1.0, 1.0))
    with pytest.raises(ConfigError, match="baselines"):
        _made("chain-3", 0.1, baselines=("kvflow",), host=False)
    with pytest.raises(ConfigError, match="settings"):
        _made("chain-3", 0.1, settings=[])
    with pytest.raises(ArgumentError, match="has 3 tasks"):
        resample(workload, seed=0, count=2, sample=10)
    with pytest.raises(ConfigError, match="replicates"):
        redraw(lambda seed: workload, seed=0, count=1)


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["advise", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


COMMON = ("--processes", "1", "--replicates", "2", "--baselines", "fcfs,lpm")


def test_the_command_says_three_lines_and_more_if_asked() -> None:
    built_in = ("chain-3", "--tasks", "3", "--no-host-cache", "--preset", "paper", *COMMON)
    lines = _run(*built_in).splitlines()
    assert [line.split(":")[0] for line in lines] == ["TOPAS", "Settings", "Workload"]
    assert "preset paper" in lines[1]
    verbose = _run(*built_in, "--verbose")
    assert verbose.startswith("\n".join(lines))
    assert "lpm+host" not in verbose
    assert "preset paper with age_weight=0.0" in verbose
    whole = json.loads(_run(*built_in, "--json"))
    assert whole["verdict"] == lines[0].split(".")[0].removeprefix("TOPAS: ")
    assert list(whole["verdicts"]) == ["without_host"]


def test_the_command_takes_traces(tmp_path: Path) -> None:
    row = {"stage": "A", "agent": "A", "round": 0, "after": [], "input_tokens": 3000}
    row |= {"output_tokens": 300, "shared_tokens": 2000, "api_s": 1.0, "tool_wait_s": 0.0}
    rows = [{**row, "session": f"s{at}", "t": 10.0 * at} for at in range(6)]
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = json.loads(_run("--trace", str(file), "--json", "--loads", "1", *COMMON))
    assert whole["intervals"] == "bootstrap"
    assert whole["verdict"] == "does not matter"
    assert len(whole["loads"]) == 1
    with pytest.raises(CapacityError, match="6 of 6 tasks"):
        _run("--trace", str(file), "--capacity", "100", *COMMON)
    with pytest.raises(ConfigError, match="does not fit on 1 x"):
        _run("--trace", str(file), "--gpu", "L40S", "--model", "Llama-3.1-70B", *COMMON)
    with pytest.raises(ConfigError, match="--loads"):
        _run("--trace", str(file), "--loads", "one", *COMMON)
    with pytest.raises(ConfigError, match="sample: must be an integer of at least 4, got 3"):
        _run("--trace", str(file), "--sample", "3", *COMMON)
    with pytest.raises(ConfigError, match="--sample: is for --trace only"):
        _run("dag-4", "--tasks", "2", "--sample", "10", *COMMON)
