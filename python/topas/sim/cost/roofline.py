"""The costs of a model on a GPU, from what both are published to have."""

from __future__ import annotations

from dataclasses import dataclass

from topas.errors import ConfigError
from topas.sim.checks import check_int, check_number
from topas.sim.cost.gpus import Gpu, find_gpu
from topas.sim.cost.linear import EngineCosts
from topas.sim.cost.models import LlmModel, find_model

__all__ = ["Efficiency", "engine_costs"]

_GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """What of the peak figures an engine reaches. All of them are assumptions, not measurements.

    Parameters
    ----------
    prefill_mfu : float
        Share of the peak FLOP/s that a prefill reaches: less than matrix products alone, as
        attention, norms and launches take their part. The default gives an A100 with Qwen2.5-32B
        0.36 ms a token.
    decode_mbu : float
        Share of the peak bandwidth that a decode step reaches: less than a copy within the memory.
        The default gives an A100 with Qwen2.5-32B a step of 37 ms. Small models on fast GPUs reach
        less, as launches weigh more there.
    link_efficiency : float
        Share of the bandwidth to the host and to other GPUs that copies reach: less than one large
        copy, as the KV of a prefix is scattered over layers and pages. The default gives the A100
        the 20 GB/s of :class:`EngineCosts`.
    allreduce_s : float
        Latency of a small all-reduce in a decode step, seconds, of the order of a one-shot
        all-reduce over NVLink. Nothing is reduced on one GPU.

    Raises
    ------
    ConfigError
        A share is not above 0 and at most 1, or the latency is negative; the message names it.
    """

    prefill_mfu: float = 0.55
    decode_mbu: float = 0.85
    link_efficiency: float = 0.625
    allreduce_s: float = 15e-6

    def __post_init__(self) -> None:
        for name in ("prefill_mfu", "decode_mbu", "link_efficiency"):
            _check_share(name, getattr(self, name))
        check_number("allreduce_s", self.allreduce_s)


def engine_costs(
    gpu: str | Gpu,
    model: str | LlmModel,
    *,
    tensor_parallel: int = 1,
    mem_fraction: float = 0.88,
    efficiency: Efficiency | None = None,
) -> EngineCosts:
    """Costs by the roofline: decode steps are bound by memory, prefills by matrix operations.

    A decode step reads the weights once and the KV of its context. A prefilled token takes two
    operations for each parameter of the layers. With tensor parallelism, weights, KV, operations
    and copies are divided among the GPUs, and each layer sums its hidden states twice over them: a
    decode step waits for that many small all-reduces, a prefilled token sends its hidden state
    through a ring.

    Not in the model: attention's operations in long prefills, prefills so short that they are bound
    by memory and decode steps so wide that they are bound by operations (some hundred tokens or
    requests both), and the time of the engine's own CPU.

    Parameters
    ----------
    gpu : str or Gpu
        A name in :data:`topas.sim.cost.GPUS`, or one's own figures.
    model : str or LlmModel
        A name in :data:`topas.sim.cost.MODELS`, or one's own shape.
    tensor_parallel : int
        GPUs that share the model; divides its KV heads.
    mem_fraction : float
        Share of the memory for weights and KV, the rest is for activations and CUDA graphs; the
        default is what SGLang long took for one GPU (``mem_fraction_static`` in its
        ``server_args.py``; it takes less for more GPUs).
    efficiency : Efficiency, optional
        What of the peak figures is reached.

    Returns
    -------
    EngineCosts
        KV bytes and bandwidths are those of all GPUs together.

    Raises
    ------
    ConfigError
        A name is not known, a value is out of range, the KV heads cannot be divided so, or the
        model does not fit; that message says how much is missing and what would do.
    """
    gpu = find_gpu(gpu) if isinstance(gpu, str) else gpu
    model = find_model(model) if isinstance(model, str) else model
    _check_share("mem_fraction", mem_fraction)
    _check_parallel(model, tensor_parallel)
    capacity = _capacity(gpu, model, tensor_parallel, mem_fraction)
    if capacity < 1:
        raise ConfigError(_missing(gpu, model, tensor_parallel, mem_fraction))
    return _costs(gpu, model, tensor_parallel, capacity, efficiency or Efficiency())


def _costs(
    gpu: Gpu, model: LlmModel, gpus: int, kv_capacity: int, reached: Efficiency
) -> EngineCosts:
    reads_per_s = gpus * gpu.memory_bytes_per_s * reached.decode_mbu
    operations_per_s = gpus * gpu.flop_per_s * reached.prefill_mfu
    sums = 0 if gpus == 1 else 2 * model.layers
    # a ring all-reduce sends 2 (n - 1) / n of the data over each GPU's link
    sent = sums * model.hidden_bytes * 2 * (gpus - 1) / gpus
    send_s = sent / (gpu.peer_bytes_per_s * reached.link_efficiency)
    return EngineCosts(
        kv_capacity=kv_capacity,
        kv_bytes_per_token=float(model.kv_bytes_per_token),
        swap_bytes_per_s=gpus * gpu.host_bytes_per_s * reached.link_efficiency,
        decode_fixed_s=model.step_bytes / reads_per_s + sums * reached.allreduce_s,
        decode_s_per_context_token=model.kv_bytes_per_token / reads_per_s,
        prefill_s_per_token=model.prefill_flop_per_token / operations_per_s + send_s,
    )


def _check_share(name: str, value: float) -> None:
    check_number(name, value, above=True)
    if value > 1.0:
        raise ConfigError(f"{name}: must be at most 1, got {value!r}")


def _check_parallel(model: LlmModel, tensor_parallel: int) -> None:
    check_int("tensor_parallel", tensor_parallel, minimum=1)
    legal = model.legal_tensor_parallel
    if tensor_parallel not in legal:
        raise ConfigError(
            f"tensor_parallel: {model.name} has {model.kv_heads} KV heads, legal are "
            f"{', '.join(map(str, legal))}, got {tensor_parallel}"
        )


def _capacity(gpu: Gpu, model: LlmModel, tensor_parallel: int, mem_fraction: float) -> int:
    """KV pool, tokens; below 1 if the model does not fit."""
    room = tensor_parallel * gpu.memory_bytes * mem_fraction - model.weight_bytes
    return int(room // model.kv_bytes_per_token)


def _missing(gpu: Gpu, model: LlmModel, tensor_parallel: int, mem_fraction: float) -> str:
    offered = tensor_parallel * gpu.memory_bytes * mem_fraction
    needed = model.weight_bytes + model.kv_bytes_per_token
    enough = [n for n in model.legal_tensor_parallel if _capacity(gpu, model, n, mem_fraction) >= 1]
    advice = f"tensor_parallel={enough[0]} would do" if enough else "no tensor_parallel would do"
    return (
        f"model: {model.name} does not fit on {tensor_parallel} x {gpu.name}: weights take "
        f"{model.weight_bytes / _GB:.1f} GB, {mem_fraction:g} of the memory is "
        f"{offered / _GB:.1f} GB, {(needed - offered) / _GB:.1f} GB are missing; {advice}"
    )
