"""``topas bench-engine``: one workload on the real SGLang engine under several policies."""

from __future__ import annotations

import json as json_module
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from topas.cli.common import console_of, option, parts
from topas.enginebench.calibration import Fit, fit_costs
from topas.enginebench.launch import POLICIES, EnginePlan, check_engine, run_engine
from topas.enginebench.learned import learned_costs, learned_lines
from topas.enginebench.model import BENCH, vocabulary, write_model
from topas.enginebench.results import Report
from topas.enginebench.simulated import simulate_run
from topas.enginebench.tables import against_simulator, calibration_table, figures_table, notes
from topas.enginebench.workload import WORKLOADS, BenchSettings, BenchWorkload, check_fits
from topas.errors import ConfigError, StateError
from topas.sglang.settings import Settings
from topas.sim.checks import check_choice, check_int, file_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["bench_engine"]

_CONCURRENCY = 24
_POOL, _MAX_RUNNING = 4096, 8  # of the random model


def bench_engine(
    workload: Annotated[str, typer.Argument(help=f"One of {', '.join(WORKLOADS)}.")] = "single",
    policies: Annotated[str, option(f"With commas: {', '.join(POLICIES)}.")] = "fcfs,lpm,topas",
    tasks: Annotated[int, option("Tasks that arrive.")] = 100,
    agents: Annotated[int, option("Agents (shared system prompts).")] = 8,
    prefix_tokens: Annotated[int, option("Static prefix of an agent, tokens.")] = 1024,
    input_tokens: Annotated[int, option("Mean of a request's own tokens.")] = 48,
    output_tokens: Annotated[int, option("Output of a request, tokens.")] = 12,
    rate: Annotated[float | None, option("Poisson arrivals, tasks a second.")] = None,
    concurrency: Annotated[int | None, option("Tasks in flight, without --rate. (24)")] = None,
    seed: Annotated[int, option("Seed of arrivals, lengths and tokens.")] = 0,
    repeat: Annotated[int, option("Runs of each policy, interleaved; medians are shown.")] = 1,
    no_hints: Annotated[bool, option("Requests carry no hints.", "--no-hints")] = False,
    model: Annotated[
        str | None, option("Model to run. (a random Qwen2 of 3.9 M parameters)")
    ] = None,
    device: Annotated[str | None, option("cpu or cuda. (what there is)")] = None,
    pool: Annotated[int | None, option("KV pool, tokens. (random model: 4096)")] = None,
    max_running: Annotated[
        int | None, option("Limit on running requests. (random model: 8)")
    ] = None,
    engine_arg: Annotated[
        list[str] | None, option("Field of SGLang's ServerArgs, KEY=VALUE.", "--engine-arg")
    ] = None,
    run_timeout: Annotated[float, option("A run fails after so many seconds.")] = 3600.0,
    calibrate: Annotated[bool, option("Compare with the simulator.")] = True,
    json: Annotated[Path | None, option("Write everything to a file.", "--json")] = None,
) -> None:
    """Run a workload on the real SGLang engine, each policy in a fresh engine.

    The same arrivals and tokens for SGLang's own fcfs and lpm (the plugin off), for topas, and for
    topas+copies (with prefix_copies).
    Prints completion times of tasks, prefix hits, what the decisions cost, and whether all runs
    gave the same tokens; then the simulator, with costs fitted to the first policy's runs, beside
    what was measured. Without a GPU it needs what tests/sglang/install.sh installs.
    """
    given = dict(locals())
    names = _policies(policies)
    check_int("repeat", repeat, minimum=1)
    settings = _settings(given)
    plan = _plan(given)
    if plan.pool is not None:
        check_fits(settings, plan.pool)
    _plugin()  # what is wrong with it, or with the file, is told before the runs
    if json is not None:
        with file_errors(f"--json {json}"):
            json.open("ab").close()
    with _model(model) as path:
        report = _run(replace(plan, model=path), settings, names, repeat)
    fields = _show(report, settings, plan if calibrate else None)
    if json is not None:
        with file_errors(f"--json {json}"):
            json.write_text(json_module.dumps(fields, indent=1), encoding="utf-8")
    if not report.same_outputs and plan.device == "cpu":
        raise typer.Exit(1)  # on a GPU sums may depend on the batch


def _settings(given: Mapping[str, Any]) -> BenchSettings:
    """The workload."""
    concurrency, model = given["concurrency"], given["model"]
    if given["rate"] is not None and concurrency is not None:
        raise ConfigError("--concurrency: is for runs without --rate")
    names = ("workload", "tasks", "agents", "prefix_tokens", "input_tokens", "output_tokens")
    return BenchSettings(
        **{name: given[name] for name in (*names, "rate", "seed")},
        concurrency=_CONCURRENCY if concurrency is None else concurrency,
        hints=not given["no_hints"],
        vocab=BENCH.vocab if model is None else vocabulary(Path(model)) or BENCH.vocab,
    )


def _plan(given: Mapping[str, Any]) -> EnginePlan:
    """How engines are started; refuses what cannot start."""
    device = given["device"] or _found_device()
    check_choice("device", device, ("cpu", "cuda"))
    arguments = _engine_arguments(given["engine_arg"] or [])
    check_engine(device)
    pool, max_running, own = given["pool"], given["max_running"], given["model"] is None
    return EnginePlan(
        model=Path(given["model"] or "random"),
        device=device,
        pool=_POOL if pool is None and own else pool,
        max_running=_MAX_RUNNING if max_running is None and own else max_running,
        few_models=own,
        arguments=arguments,
        timeout_s=given["run_timeout"],
    )


def _plugin() -> Settings | None:
    """Settings of the plugin in the runs that it drives."""
    return Settings.from_environment({**os.environ, "TOPAS_ENABLE": "1"})


def _policies(text: str) -> list[str]:
    names = list(parts(text))
    for name in names:
        check_choice("policies", name, POLICIES)
        if names.count(name) > 1:
            raise ConfigError(f"policies: {name!r} is given twice")
    return names


def _found_device() -> str:
    """``cuda`` when torch sees a GPU."""
    if find_spec("torch") is None:
        return "cpu"
    return "cuda" if import_module("torch").cuda.is_available() else "cpu"


@contextmanager
def _model(given: str | None) -> Iterator[Path]:
    """The model to run; a random one is gone afterwards."""
    if given is not None:
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="topas-model-") as folder:
        yield write_model(Path(folder))


def _engine_arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """``KEY=VALUE`` as fields of ServerArgs: values are JSON, else text."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.replace("-", "_").isidentifier():
            raise ConfigError(f"--engine-arg {pair}: must be KEY=VALUE")
        try:
            value = json_module.loads(text)
        except ValueError:
            value = text
        arguments[key.replace("-", "_")] = value
    if "schedule_policy" in arguments:
        raise ConfigError("--engine-arg schedule_policy: comes from --policies")
    return arguments


def _run(plan: EnginePlan, settings: BenchSettings, names: Sequence[str], repeat: int) -> Report:
    """All runs; each repeat begins with another policy."""
    engine = {
        "device": plan.device,
        "model": "random Qwen2, 3.9 M parameters" if plan.few_models else str(plan.model),
        "pool": plan.pool,
        "max_running": plan.max_running,
        "arguments": dict(plan.arguments),
        "repeat": repeat,
    }
    report = Report({**settings.to_dict(), **engine}, names)
    progress = Console(stderr=True)
    for turn in range(repeat):
        first = turn % len(names)
        for policy in (*names[first:], *names[:first]):
            progress.print(f"run {len(report.runs) + 1} of {repeat * len(names)}: {policy} ...")
            run = run_engine(plan, settings, policy)
            report.runs.append(run)
            progress.print(
                f"  {run.figures().makespan_s:.1f} s (engine ready after {run.start_s:.0f} s)"
            )
    return report


def _show(report: Report, settings: BenchSettings, plan: EnginePlan | None) -> dict[str, Any]:
    """Print the report, with a plan also the simulator's; return everything as plain values."""
    fields = report.to_dict()
    console = console_of()
    console.print(figures_table(report))
    for line in notes(report):
        console.print(line, markup=False, highlight=False)
    if plan is not None:
        fields["calibration"] = _calibrate(report, settings, plan, console)
    return fields


def _calibrate(
    report: Report, settings: BenchSettings, plan: EnginePlan, console: Console
) -> Mapping[str, Any]:
    """Fit the simulator to the first policy's runs and print it beside all that was measured."""
    if plan.pool is None:
        return {"error": "the size of the pool is not known: give --pool"}
    try:
        fit = fit_costs([run.requests for run in report.of(report.policies[0])], plan.pool)
    except StateError as error:
        console.print(str(error), markup=False, highlight=False)
        return {"error": str(error)}
    bench = BenchWorkload(settings)
    plugin = _plugin()
    simulated = {
        policy: simulate_run(bench, policy, fit.costs, plan.max_running, plugin)
        for policy in report.policies
        if not policy.endswith("+copies")  # the simulator's engine has none
    }
    comparison = against_simulator(report.medians(), simulated)
    console.print(calibration_table(comparison))
    console.print(_fit_line(fit, report.policies[0]), markup=False, highlight=False)
    learned = learned_costs(report, plan.pool)
    for line in learned_lines(learned):
        console.print(line, markup=False, highlight=False)
    return {
        "fitted_to": report.policies[0],
        "fit": fit.to_dict(),
        "comparison": comparison,
        "learned": learned,
    }


def _fit_line(fit: Fit, policy: str) -> str:
    costs = fit.costs
    return (
        f"costs fitted to {fit.requests} requests of {policy}: prefill "
        f"{1e3 * costs.prefill_fixed_s:.2f} ms + {1e6 * costs.prefill_s_per_token:.0f} µs a token "
        f"(residual {100 * fit.prefill_error:.0f} %), decode step "
        f"{1e3 * costs.decode_fixed_s:.2f} ms + {1e6 * costs.decode_s_per_context_token:.2f} µs a "
        f"context token (residual {100 * fit.decode_error:.0f} %)"
    )
