"""The platform: torch's own CPU kernels for everything, for SGLang 0.5.16 to 0.5.23."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

if TYPE_CHECKING:
    from collections.abc import Callable


class TestCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """A CPU to which SGLang applies no device path of its own, so that no kernel package is needed.

    SGLang's own CPU platform (``SGLANG_USE_CPU_ENGINE=1``) wants ``sgl_kernel``, which has no wheel
    for the machines these tests run on.
    """

    __test__ = False  # no test class, whatever its name starts with
    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        return "native"

    def init_backend(self) -> None:
        """Give plain memory to what insists on pinned memory (the LoRA layers)."""
        for name in ("empty", "zeros", "tensor"):
            setattr(torch, name, _unpinned(getattr(torch, name)))
        torch.Tensor.pin_memory = lambda tensor, *_: tensor

    def is_pin_memory_available(self, device: object = None) -> bool:
        return False

    if hasattr(SRTPlatform, "get_mha_kv_pool_cls"):  # up to 0.5.21; later ones choose by themselves

        def get_mha_kv_pool_cls(self) -> type[Any]:
            from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

            return MHATokenToKVPool

        def get_paged_allocator_cls(self) -> Callable[..., Any]:
            return _token_allocator


def _unpinned(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, pin_memory: bool = False, **arguments: Any) -> Any:
        return function(*args, **arguments)

    return call


def _token_allocator(size: int, *, page_size: int, **arguments: Any) -> Any:
    """Build the allocator of single tokens: up to 0.5.21 the one of pages is a triton kernel."""
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

    if page_size != 1:
        raise NotImplementedError("on a CPU, page_size > 1 needs SGLang 0.5.22 or later")
    return TokenToKVPoolAllocator(size, **arguments)
