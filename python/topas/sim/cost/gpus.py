"""GPUs by their published figures."""

from __future__ import annotations

from dataclasses import dataclass

from topas.errors import ConfigError
from topas.sim.checks import check_number

__all__ = ["GPUS", "Gpu", "find_gpu"]

_MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Peak figures of one GPU; what of them is reached is up to :func:`engine_costs`.

    Parameters
    ----------
    name : str
        As it is asked for.
    memory_bytes : float
        Memory that the driver offers, bytes.
    memory_bytes_per_s : float
        Memory bandwidth, bytes per second.
    flop_per_s : float
        Dense bf16 matrix operations (no sparsity), FLOP per second.
    host_bytes_per_s : float
        Bandwidth to the host in one direction, bytes per second.
    peer_bytes_per_s : float
        Bandwidth to other GPUs in one direction, bytes per second.
    source : str
        Where the figures are published.

    Raises
    ------
    ConfigError
        A figure is not a number above 0; the message names it.
    """

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    flop_per_s: float
    host_bytes_per_s: float
    peer_bytes_per_s: float
    source: str

    def __post_init__(self) -> None:
        for name in (
            "memory_bytes",
            "memory_bytes_per_s",
            "flop_per_s",
            "host_bytes_per_s",
            "peer_bytes_per_s",
        ):
            check_number(name, getattr(self, name), above=True)


#: The known GPUs by name. Datasheets quote links in both directions together and, since Hopper and
#: Ada, tensor FLOP/s with sparsity: both are halved here. Memory is the total that ``nvidia-smi``
#: reports, which is what engines take their fraction of.
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="A100-80G",
            memory_bytes=81_920 * _MIB,
            memory_bytes_per_s=2_039e9,
            flop_per_s=312e12,
            host_bytes_per_s=32e9,
            peer_bytes_per_s=300e9,
            source="NVIDIA A100 Tensor Core GPU datasheet, A100 80GB SXM: 2,039 GB/s, BF16 312 "
            "TFLOPS, PCIe Gen4 64 GB/s, NVLink 600 GB/s; nvidia-smi: 81,920 MiB",
        ),
        Gpu(
            name="H100",
            memory_bytes=81_559 * _MIB,
            memory_bytes_per_s=3_350e9,
            flop_per_s=989.5e12,
            host_bytes_per_s=64e9,
            peer_bytes_per_s=450e9,
            source="NVIDIA H100 Tensor Core GPU datasheet, H100 SXM: 3.35 TB/s, BF16 1,979 TFLOPS "
            "with sparsity, PCIe Gen5 128 GB/s, NVLink 900 GB/s; nvidia-smi: 81,559 MiB",
        ),
        Gpu(
            name="H200",
            memory_bytes=143_771 * _MIB,
            memory_bytes_per_s=4_800e9,
            flop_per_s=989.5e12,
            host_bytes_per_s=64e9,
            peer_bytes_per_s=450e9,
            source="NVIDIA H200 Tensor Core GPU datasheet, H200 SXM: 4.8 TB/s, BF16 1,979 TFLOPS "
            "with sparsity, PCIe Gen5 128 GB/s, NVLink 900 GB/s; nvidia-smi: 143,771 MiB",
        ),
        Gpu(
            name="L40S",
            memory_bytes=46_068 * _MIB,
            memory_bytes_per_s=864e9,
            flop_per_s=362.05e12,
            host_bytes_per_s=32e9,
            peer_bytes_per_s=32e9,
            source="NVIDIA L40S datasheet: 864 GB/s, BF16 362.05 TFLOPS (733 with sparsity), PCIe "
            "Gen4 x16 64 GB/s, no NVLink; nvidia-smi with ECC: 46,068 MiB",
        ),
    )
}


def find_gpu(name: str) -> Gpu:
    """Return a known GPU; capitals do not matter.

    Raises
    ------
    ConfigError
        The name is not known; the message lists those that are.
    """
    for known, gpu in GPUS.items():
        if known.casefold() == name.casefold():
            return gpu
    raise ConfigError(f"gpu: unknown {name!r}, known are {', '.join(GPUS)}")
