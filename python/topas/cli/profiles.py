"""``topas profiles``: what the known models cost on the known GPUs."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from topas.cli.common import console_of
from topas.errors import ConfigError
from topas.sim.cost import GPUS, MODELS, EngineCosts, Gpu, LlmModel, engine_costs

__all__ = ["profiles"]


def profiles(
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with sources, instead of the table.")
    ] = False,
    mem_fraction: Annotated[
        float, typer.Option(help="Share of the memory for weights and KV.")
    ] = 0.88,
) -> None:
    """List the costs that --gpu and --model stand for in topas simulate.

    Each model is shown with the fewest GPUs that hold it. The figures follow from published peak
    figures and assumed efficiencies; they are not measured.
    """
    rows = [
        (gpu, model, *_smallest(gpu, model, mem_fraction))
        for gpu in GPUS.values()
        for model in MODELS.values()
    ]
    if json:
        sys.stdout.write(json_module.dumps([_plain(*row) for row in rows], indent=2) + "\n")
        return
    console = console_of()
    console.print(_table(rows))


def _smallest(gpu: Gpu, model: LlmModel, mem_fraction: float) -> tuple[int, EngineCosts]:
    """The fewest GPUs that hold the model, and its costs there."""
    reason: ConfigError | None = None
    for gpus in model.legal_tensor_parallel:
        try:
            return gpus, engine_costs(gpu, model, tensor_parallel=gpus, mem_fraction=mem_fraction)
        except ConfigError as error:
            reason = error
    raise reason or ConfigError(f"model: {model.name} cannot be placed")


def _plain(gpu: Gpu, model: LlmModel, gpus: int, costs: EngineCosts) -> dict[str, Any]:
    return {
        "gpu": gpu.name,
        "model": model.name,
        "tensor_parallel": gpus,
        **costs.to_dict(),
        "gpu_source": gpu.source,
        "model_source": model.source,
    }


def _table(rows: list[tuple[Gpu, LlmModel, int, EngineCosts]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("GPU")
    table.add_column("model")
    for header in (
        "GPUs",
        "capacity\ntokens",
        "KV\nkB/token",
        "step\nms",
        "+ µs/context\ntoken",
        "prefill\nms/token",
        "copies\nGB/s",
    ):
        table.add_column(header, justify="right")
    for gpu, model, gpus, costs in rows:
        table.add_row(
            gpu.name,
            model.name,
            str(gpus),
            f"{costs.kv_capacity:,}",
            f"{costs.kv_bytes_per_token / 1e3:.1f}",
            f"{1e3 * costs.decode_fixed_s:.2f}",
            f"{1e6 * costs.decode_s_per_context_token:.3f}",
            f"{1e3 * costs.prefill_s_per_token:.4f}",
            f"{costs.swap_bytes_per_s / 1e9:.0f}",
        )
    return table
