"""Command-line options that describe the simulated engine, and what they mean."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from topas.cli.common import option
from topas.errors import ConfigError
from topas.sim import EngineCosts, EngineOptions
from topas.sim.cost import GPUS, MODELS, engine_costs
from topas.sim.cost.measured import load_costs
from topas.sim.options import BATCHINGS, IN_BATCH_PREFIXES, RESERVATIONS

__all__ = [
    "Batching",
    "Capacity",
    "ChargeDecisions",
    "ChunkedPrefillTokens",
    "Costs",
    "GpuName",
    "HostCacheTokens",
    "InBatchPrefixes",
    "MaxRunning",
    "MaxTime",
    "MemFraction",
    "ModelName",
    "NewTokenRatio",
    "OverReserve",
    "PageSize",
    "RedoModel",
    "Reservation",
    "ReuseContext",
    "TensorParallel",
    "costs_of",
    "options_of",
]


def _option(text: str) -> Any:
    return option(text, panel="Engine")


Capacity = Annotated[int | None, _option("KV pool, tokens. (40000, or the profile's)")]
GpuName = Annotated[str | None, _option(f"Costs of a GPU, with --model: {', '.join(GPUS)}.")]
ModelName = Annotated[str | None, _option(f"Costs of a model, with --gpu: {', '.join(MODELS)}.")]
TensorParallel = Annotated[int | None, _option("GPUs that share the --model. (1)")]
MemFraction = Annotated[float | None, _option("Share of the --gpu's memory in use. (0.88)")]
Costs = Annotated[
    Path | None, _option("Measured costs: CSV, JSON or a report of topas bench-engine.")
]
Batching = Annotated[str, _option(f"What shares a batch: {', '.join(BATCHINGS)}.")]
ChunkedPrefillTokens = Annotated[int, _option("Tokens of a chunk; not for prefill-first.")]
ChargeDecisions = Annotated[float, _option("Simulated seconds that each decision takes.")]
MaxTime = Annotated[float | None, _option("Stop at this simulated time, seconds.")]
OverReserve = Annotated[float, _option("max_new over the true output.")]
MaxRunning = Annotated[int, _option("Limit on admitted requests; 0: none.")]
RedoModel = Annotated[str, _option("What a preempted request redoes: decode, prefill, kept.")]
Reservation = Annotated[str, _option(f"What admission reserves: {', '.join(RESERVATIONS)}.")]
NewTokenRatio = Annotated[float, _option("Share of max_new, for --reservation estimated.")]
PageSize = Annotated[int, _option("Tokens of a page of the KV pool.")]
HostCacheTokens = Annotated[
    str | None,
    _option("Host memory of all engines: tokens or 'unlimited'; +host goes before it. (none)"),
]
ReuseContext = Annotated[bool, _option("Reuse a stage's own context between its rounds.")]
InBatchPrefixes = Annotated[
    str, _option(f"A prefix that the batch computes: {', '.join(IN_BATCH_PREFIXES)}.")
]


def costs_of(given: Mapping[str, Any]) -> EngineCosts:
    """Costs from the options: a profile, a file, or the defaults; ``capacity`` goes before all.

    The fit of a file is told on stderr.

    Parameters
    ----------
    given : mapping
        Options by name; of them ``capacity``, ``gpu``, ``model``, ``tensor_parallel``,
        ``mem_fraction`` and ``costs`` count, none of them must be there.

    Raises
    ------
    ConfigError
        One of ``gpu`` and ``model`` is missing, a value is illegal, or the file is.
    """
    base = _profile(given)
    capacity = given.get("capacity")
    if "costs" in given:
        measured = load_costs(given["costs"], base=base, kv_capacity=capacity)
        sys.stderr.write(f"costs of {given['costs']}: {measured.summary()}\n")
        return measured.costs
    costs = base or EngineCosts()
    return costs if capacity is None else _with_capacity(costs, capacity)


def _profile(given: Mapping[str, Any]) -> EngineCosts | None:
    names = ("gpu", "model", "tensor_parallel", "mem_fraction")
    asked = [name for name in names if name in given]
    if not asked:
        return None
    for name in ("gpu", "model"):
        if name not in given:
            option = asked[0].replace("_", "-")
            raise ConfigError(f"--{option}: needs --{name} too")
    more = {name: given[name] for name in names[2:] if name in given}
    return engine_costs(given["gpu"], given["model"], **more)


def _with_capacity(costs: EngineCosts, capacity: int) -> EngineCosts:
    return EngineCosts(**{**costs.to_dict(), "kv_capacity": capacity})


# Fields of EngineOptions that not every command offers.
_OPTIONAL = ("reservation", "new_token_ratio", "page_size", "reuse_context", "in_batch_prefixes")


def options_of(given: Mapping[str, Any]) -> EngineOptions:
    """Behaviour of the engine from the options.

    Parameters
    ----------
    given : mapping
        Options by name; those of SGLang's memory rules (``reservation``, ``new_token_ratio``,
        ``page_size``, ``reuse_context``, ``in_batch_prefixes``) and ``host_cache`` may be missing.

    Raises
    ------
    ConfigError
        A value is illegal; the message names it.
    """
    return EngineOptions(
        over_reserve=given["over_reserve"],
        redo_model=given["redo_model"],
        max_running=given["max_running"],
        batching=given["batching"],
        chunked_prefill_tokens=given["chunked_prefill_tokens"],
        charge_decisions_s=given["charge_decisions"],
        max_time_s=given.get("max_time"),
        host_cache_tokens=_host_cache_tokens(given.get("host_cache", "0")),
        **{name: given[name] for name in _OPTIONAL if name in given},
    )


def _host_cache_tokens(text: str) -> int | None:
    if text == "unlimited":
        return None
    if not text.isdecimal():
        raise ConfigError(f"--host-cache: must be a number of tokens or 'unlimited', got {text!r}")
    return int(text)
