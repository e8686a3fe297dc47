"""``topas advise``: whether topas pays on one's own workload, in three lines."""

from __future__ import annotations

import json as json_module
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rich import box
from rich.table import Table

from topas.cli import engine_options
from topas.cli.common import console_of, option, parts
from topas.cli.simulate import config_fields
from topas.cli.workloads import (
    BlockTokens,
    BuiltinName,
    InputTokens,
    MaxLoops,
    MaxRounds,
    MaxStages,
    MaxToolWait,
    OutputTokens,
    PrefixTokens,
    Rate,
    Sessions,
    Tasks,
    TokenScale,
    TraceFormat,
    TraceScaleName,
    WorkflowName,
    Workflows,
    build_workload,
)
from topas.errors import ConfigError
from topas.policies import BASELINE_NAMES, PRESET_POLICIES
from topas.sim import EngineCosts, EngineOptions, Workload
from topas.sim.study.advice import LOADS, Advice, Question, candidates
from topas.sim.study.advice import advise as answer
from topas.sim.study.advice_text import three_lines
from topas.sim.study.operating_point import locate, without_misfits
from topas.sim.study.replicates import Replicates, redraw, resample
from topas.sim.study.sweep import show_progress
from topas.sim.study.versus import JCT_METRICS, Values

__all__ = ["advise"]

_LOADS = ",".join(f"{factor:g}" for factor in LOADS)


_Trace = Annotated[Path | None, option("Trace file to judge instead.")]
_Seed = Annotated[int, option("First seed of arrivals, lengths, waits and draws.")]
_HostCache = Annotated[
    bool | None,
    option(
        "Baselines with SGLang's hierarchical cache, or without. (the better of both)",
        "--host-cache/--no-host-cache",
    ),
]
_Preset = Annotated[
    str | None, option(f"Only this preset: {', '.join(PRESET_POLICIES)}. (all of them)")
]
_Set = Annotated[list[str] | None, option("Field of all settings, FIELD=VALUE.", "--set")]
_Loads = Annotated[str, option("Factors on the load, with commas, 1 among them.")]
_Replicates = Annotated[int, option("Repetitions of each half.")]
_Sample = Annotated[int | None, option("Trace: most tasks of a repetition. (100)")]
_Baselines = Annotated[str, option("Compared with: 'all', or policies with commas.")]
_Processes = Annotated[int | None, option("Runs at a time. (as many as processors)")]
_Resume = Annotated[
    Path | None, option("File of finished runs: an interrupted command goes on there.")
]
_Verbose = Annotated[bool, option("Print the tables behind the advice.", "--verbose")]
_Json = Annotated[bool, option("Print JSON instead.", "--json")]


def advise(
    workload: BuiltinName = None,
    trace: _Trace = None,
    rate: Rate = None,
    tasks: Tasks = None,
    seed: _Seed = 0,
    baseline_host_cache: _HostCache = None,
    preset: _Preset = None,
    config: _Set = None,
    loads: _Loads = _LOADS,
    replicates: _Replicates = 5,
    sample: _Sample = None,
    baselines: _Baselines = "all",
    processes: _Processes = None,
    resume: _Resume = None,
    verbose: _Verbose = False,
    json: _Json = False,
    capacity: engine_options.Capacity = None,
    gpu: engine_options.GpuName = None,
    model: engine_options.ModelName = None,
    tensor_parallel: engine_options.TensorParallel = None,
    mem_fraction: engine_options.MemFraction = None,
    costs: engine_options.Costs = None,
    input_tokens: InputTokens = None,
    output_tokens: OutputTokens = None,
    prefix_tokens: PrefixTokens = None,
    batching: engine_options.Batching = "prefill-first",
    chunked_prefill_tokens: engine_options.ChunkedPrefillTokens = 8192,
    charge_decisions: engine_options.ChargeDecisions = 0.0,
    over_reserve: engine_options.OverReserve = 1.0,
    max_running: engine_options.MaxRunning = 0,
    redo_model: engine_options.RedoModel = "decode",
    sessions: Sessions = None,
    max_stages: MaxStages = None,
    max_rounds: MaxRounds = None,
    token_scale: TokenScale = None,
    max_tool_wait: MaxToolWait = None,
    trace_format: TraceFormat = None,
    trace_scale: TraceScaleName = None,
    block_tokens: BlockTokens = None,
    workflows: Workflows = None,
    workflow: WorkflowName = None,
    max_loops: MaxLoops = None,
) -> None:
    """Say in three lines whether topas pays on a workload, by how much and with which settings.

    Settings are picked on one half of the repetitions and judged on the other, at several loads,
    against the best baseline. The answer may be no; the exit status is 0 whatever it is.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    found = answer(
        _question(given),
        processes=(os.cpu_count() or 1) if processes is None else processes,
        resume=resume,
        progress=lambda total: show_progress(total, "runs"),
    )
    _show(found, as_json=json, verbose=verbose)


def _question(given: Mapping[str, Any]) -> Question:
    costs, options = engine_options.costs_of(given), engine_options.options_of(given)
    own, left_out = without_misfits(build_workload(given), costs, options)
    baselines = given["baselines"]
    return Question(
        replicates=_repetitions(given, own, costs, options),
        point=locate(own, costs, options),
        left_out=left_out,
        costs=costs,
        options=options,
        settings=candidates(given.get("preset"), config_fields(given.get("config", []))),
        baselines=BASELINE_NAMES if baselines == "all" else parts(baselines),
        host=given.get("baseline_host_cache"),
        loads=_factors(given["loads"]),
    )


def _repetitions(
    given: Mapping[str, Any], own: Workload, costs: EngineCosts, options: EngineOptions
) -> Replicates:
    """A trace is resampled; what is made from a seed is made again."""
    count = given["replicates"]
    if "trace" in given:
        return resample(own, seed=given["seed"], count=count, sample=given.get("sample", 100))
    if "sample" in given:
        raise ConfigError("--sample: is for --trace only")

    def make(seed: int) -> Workload:
        return without_misfits(build_workload({**given, "seed": seed}), costs, options)[0]

    return redraw(make, seed=given["seed"], count=count)


def _factors(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--loads: must be numbers with commas, got {text!r}") from None


def _show(found: Advice, *, as_json: bool, verbose: bool) -> None:
    if as_json:
        sys.stdout.write(json_module.dumps(found.to_dict(), indent=1, allow_nan=False) + "\n")
        return
    console = console_of()
    for line in three_lines(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if verbose:
        console.print(_figures(found))
        console.print(_scores(found))


def _mean(values: Values) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if len(there) == len(values) else None


def _shown(value: float | None, best: float | None) -> str:
    if value is None:
        return "-"
    return f"[bold]{value:.1f}[/bold]" if value == best else f"{value:.1f}"


def _figures(found: Advice) -> Table:
    """Mean over the judged half: one row a policy or setting, mean and p99 JCT at each load."""
    table = Table(box=box.SIMPLE_HEAD, title="Judged half, JCT in seconds", title_justify="left")
    table.add_column("policy", no_wrap=True)
    columns = []
    for load in found.loads:
        for metric in JCT_METRICS:
            table.add_column(f"x{load.factor:g}\n{metric.split('_')[0]}", justify="right")
            columns.append({name: _mean(of) for name, of in load.values[metric].items()})
    best = [min((v for v in of.values() if v is not None), default=None) for of in columns]
    for name in columns[0]:
        row = [_shown(of[name], least) for of, least in zip(columns, best, strict=True)]
        table.add_row(name, *row)
    return table


def _scores(found: Advice) -> Table:
    """The settings on the half that they were picked on, against the preset alone."""
    title = "Selection half, mean JCT over all loads (geometric)"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("setting", no_wrap=True)
    table.add_column("seconds", justify="right")
    least = min((score for score in found.scores.values() if score is not None), default=None)
    for label, score in found.scores.items():
        table.add_row(label, _shown(score, least))
    return table
