"""What ``topas simulate`` runs: a built-in workload, a trace or a file of workflow graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from topas.cli.common import option
from topas.errors import ConfigError
from topas.sim import BUILTIN_WORKLOADS, Lengths, Workload, make_workload
from topas.sim.graphs import GraphOptions, load_graphs, make_graph_workload
from topas.sim.trace import TRACE_FORMATS, TRACE_SCALES, TraceScale, load_trace

__all__ = [
    "BlockTokens",
    "BuiltinName",
    "InputTokens",
    "MaxLoops",
    "MaxRounds",
    "MaxStages",
    "MaxToolWait",
    "OutputTokens",
    "PrefixTokens",
    "Rate",
    "Sessions",
    "Tasks",
    "TokenScale",
    "TraceFormat",
    "TraceScaleName",
    "WorkflowName",
    "Workflows",
    "build_workload",
]

# Groups of options in the help.
_MADE = "Workload"
_TRACE = "With --trace"
_GRAPHS = "Workflow graphs"


BuiltinName = Annotated[
    str | None, typer.Argument(help=f"Built-in workload: {', '.join(BUILTIN_WORKLOADS)}.")
]
Rate = Annotated[
    float | None,
    option("Poisson arrivals a second. (built-in: 0.1; trace: its own times)", panel=_MADE),
]
Tasks = Annotated[int | None, option("Tasks of a built-in workload. (100)", panel=_MADE)]
InputTokens = Annotated[int | None, option("Dynamic input, tokens. (1400)", panel=_MADE)]
OutputTokens = Annotated[int | None, option("Generation, tokens. (700)", panel=_MADE)]
PrefixTokens = Annotated[
    str | None, option("Static prefixes, tokens: one, or one an agent with commas.", panel=_MADE)
]
Sessions = Annotated[int | None, option("The first so many sessions.", panel=_TRACE)]
MaxStages = Annotated[int | None, option("So many stages a session.", panel=_TRACE)]
MaxRounds = Annotated[int | None, option("Rounds a stage, 0: all. (8)", panel=_TRACE)]
TokenScale = Annotated[float | None, option("Factor on tokens. (0.2)", panel=_TRACE)]
MaxToolWait = Annotated[float | None, option("Longest wait, s. (60)", panel=_TRACE)]
TraceFormat = Annotated[
    str | None, option(f"Its form: {', '.join(TRACE_FORMATS)}. (auto)", panel=_TRACE)
]
TraceScaleName = Annotated[
    str | None, option(f"How much of it: {', '.join(TRACE_SCALES)}. (medium)", panel=_TRACE)
]
BlockTokens = Annotated[
    int | None, option("Mooncake: tokens of a block of hash_ids. (512)", panel=_TRACE)
]
Workflows = Annotated[Path | None, option("File of workflow graphs (JSON) to run.", panel=_GRAPHS)]
WorkflowName = Annotated[
    str | None, option("Workflow of that file; 'all': a mix of all. (all)", panel=_GRAPHS)
]
MaxLoops = Annotated[int | None, option("Most passes through a loop. (3)", panel=_GRAPHS)]

_TRACE_ONLY = (
    "sessions",
    "max_stages",
    "max_rounds",
    "token_scale",
    "max_tool_wait",
    "trace_format",
    "trace_scale",
    "block_tokens",
)
_GRAPH_ONLY = ("workflow", "max_loops")
_NOT_TRACE = ("workload", "tasks", "input_tokens", "output_tokens", "prefix_tokens")


def build_workload(given: Mapping[str, Any]) -> Workload:
    """The workload that the given options (those that are not ``None``) ask for.

    Raises
    ------
    ConfigError
        An option does not belong to the kind of workload, or its value is not legal.
    TraceError, WorkflowError
        A file is wrong.
    """
    if "trace" in given and "workflows" in given:
        raise ConfigError("--workflows: is not for --trace")
    if "trace" in given:
        return _from_trace(given)
    _refuse(given, _TRACE_ONLY, "is for --trace only")
    if "workflows" in given:
        return _from_graphs(given)
    _refuse(given, _GRAPH_ONLY, "is for --workflows only")
    return _from_name(given)


def _refuse(given: Mapping[str, Any], names: Sequence[str], why: str) -> None:
    for name in names:
        if name in given:
            option = name if name == "workload" else "--" + name.replace("_", "-")
            raise ConfigError(f"{option}: {why}")


def _from_trace(given: Mapping[str, Any]) -> Workload:
    _refuse(given, _NOT_TRACE, "is for built-in workloads, not for --trace")
    _refuse(given, _GRAPH_ONLY, "is for --workflows only")
    names = ("sessions", "max_stages", "max_rounds", "token_scale")
    fields = {name: given[name] for name in names if name in given}
    if fields.get("max_rounds") == 0:
        fields["max_rounds"] = None
    if "max_tool_wait" in given:
        fields["max_tool_wait_s"] = given["max_tool_wait"]
    return load_trace(
        given["trace"],
        scale=dataclasses.replace(TraceScale.named(given.get("trace_scale", "medium")), **fields),
        rate=given.get("rate"),
        seed=given["seed"],
        form=given.get("trace_format", "auto"),
        block_tokens=given.get("block_tokens", 512),
    )


def _from_graphs(given: Mapping[str, Any]) -> Workload:
    _refuse(given, ("workload",), "is a built-in workload, not for --workflows")
    fields = {name: given[name] for name in ("input_tokens", "output_tokens") if name in given}
    if "max_loops" in given:
        fields["max_loops"] = given["max_loops"]
    if "prefix_tokens" in given:
        tokens = _integers("prefix_tokens", given["prefix_tokens"])
        if len(tokens) != 1:
            raise ConfigError("prefix_tokens: one number for workflow graphs, added to each role")
        fields["base_prefix_tokens"] = tokens[0]
    return make_graph_workload(
        load_graphs(given["workflows"]),
        given.get("workflow", "all"),
        tasks=given.get("tasks", 100),
        rate=given.get("rate", 0.1),
        seed=given["seed"],
        options=GraphOptions(**fields),
    )


def _from_name(given: Mapping[str, Any]) -> Workload:
    if "workload" not in given:
        known = ", ".join(BUILTIN_WORKLOADS)
        raise ConfigError(f"workload: name one of {known}, or give --trace or --workflows FILE")
    lengths = {name: given[name] for name in ("input_tokens", "output_tokens") if name in given}
    if "prefix_tokens" in given:
        lengths["prefix_tokens"] = _integers("prefix_tokens", given["prefix_tokens"])
    return make_workload(
        given["workload"],
        tasks=given.get("tasks", 100),
        rate=given.get("rate", 0.1),
        seed=given["seed"],
        lengths=Lengths(**lengths),
    )


def _integers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{name}: must be integers with commas, got {text!r}") from None
