"""``topas simulate``: one workload under several policies, as a table or as JSON."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from topas.cli import engine_options
from topas.cli.common import console_of, option
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
from topas.config import Config
from topas.errors import ConfigError
from topas.policies import POLICY_NAMES, parse_policies
from topas.sim import (
    Comparison,
    EngineCosts,
    EngineOptions,
    Workload,
    compare,
)
from topas.sim.report import notes, to_json, to_tables

__all__ = ["config_fields", "simulate"]

_SET_BY_ENGINE = ("kv_capacity_tokens", "max_running_requests", "redo_model")
_POLICIES_HELP = (
    "'all', 'all+host' or with commas; a baseline takes +host or +host:TOKENS. "
    f"Known: {', '.join(POLICY_NAMES)}."
)
_NOTES_SHOWN = 40


def simulate(
    workload: BuiltinName = None,
    trace: Annotated[Path | None, option("Trace file to run instead.")] = None,
    rate: Rate = None,
    tasks: Tasks = None,
    policies: Annotated[str, option(_POLICIES_HELP)] = "all",
    seed: Annotated[int, option("Seed of arrivals, lengths and waits.")] = 0,
    json: Annotated[bool, option("Print JSON instead of the table.", "--json")] = False,
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
    max_time: engine_options.MaxTime = None,
    over_reserve: engine_options.OverReserve = 1.0,
    max_running: engine_options.MaxRunning = 0,
    redo_model: engine_options.RedoModel = "decode",
    reservation: engine_options.Reservation = "full",
    new_token_ratio: engine_options.NewTokenRatio = 0.7,
    page_size: engine_options.PageSize = 1,
    host_cache: engine_options.HostCacheTokens = None,
    reuse_context: engine_options.ReuseContext = False,
    in_batch_prefixes: engine_options.InBatchPrefixes = "shared",
    config: Annotated[
        list[str] | None, option("Option of the topas policies, FIELD=VALUE.", "--set")
    ] = None,
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
    """Simulate one LLM engine under several scheduling policies, all with the same arrivals.

    Prints mean and p99 job completion time, makespan, batches, prefix traffic, preemptions and the
    real time of a decision (which is no part of the simulated time).
    """
    _simulate({name: value for name, value in locals().items() if value is not None})


def _simulate(given: Mapping[str, Any]) -> None:
    """Run what the options say and print it."""
    names = parse_policies(given["policies"])
    built = build_workload(given)
    options = engine_options.options_of(given)
    fields = config_fields(given.get("config", []))
    comparison = _run(built, names, engine_options.costs_of(given), options, fields)
    _show(comparison, given["json"])


def config_fields(settings: Sequence[str]) -> dict[str, Any]:
    """``FIELD=VALUE`` settings as fields of :class:`topas.Config`; the values are checked there.

    Raises
    ------
    ConfigError
        A setting has no such form, its field is unknown, or the engine's costs decide it.
    """
    known = {field.name for field in dataclasses.fields(Config)}
    fields: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in known:
            raise ConfigError(
                f"--set {setting}: must be FIELD=VALUE with a field of {', '.join(sorted(known))}"
            )
        if name in _SET_BY_ENGINE:
            raise ConfigError(f"--set {name}: comes from the engine; use its own option")
        fields[name] = _value(text)
    return fields


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _run(
    workload: Workload,
    names: Sequence[str],
    costs: EngineCosts,
    options: EngineOptions,
    fields: Mapping[str, Any],
) -> Comparison:
    with _progress(len(workload.tasks) * len(names)) as (on_policy, on_task_end):
        return compare(
            workload,
            names,
            costs=costs,
            options=options,
            config=fields,
            on_policy=on_policy,
            on_task_end=on_task_end,
        )


def _show(comparison: Comparison, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(to_json(comparison) + "\n")
        return
    console = console_of()
    for table in to_tables(comparison, console):
        console.print(table)
    lines = notes(comparison)
    for line in lines[:_NOTES_SHOWN]:
        console.print(line, markup=False, highlight=False)
    if len(lines) > _NOTES_SHOWN:
        console.print(f"... and {len(lines) - _NOTES_SHOWN} more lines (see --json)")


@contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """A progress bar on stderr, only on a terminal."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description:12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        line = bar.add_task("", total=total)
        yield (lambda name: bar.update(line, description=name), lambda: bar.advance(line))
