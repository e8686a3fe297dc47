"""Static prefixes of agents, copied between the KV pool of an engine and host memory.

:class:`PrefixStore` is the door: ``place``, ``save``, ``evict``, ``load``, ``wait_for_layer``.
Needs torch, not sglang; ``docs/prefix_copies.md`` has the states and the guarantees.
"""

from topas.sglang.copy_counts import CopyCounts
from topas.sglang.prefix_copy.backends import CpuBackend
from topas.sglang.prefix_copy.buffers import KvBuffers
from topas.sglang.prefix_copy.cuda import CudaBackend
from topas.sglang.prefix_copy.errors import CopyCancelled, CopyError
from topas.sglang.prefix_copy.states import Residency
from topas.sglang.prefix_copy.store import PrefixStore
from topas.sglang.prefix_copy.transfers import Transfer

__all__ = [
    "CopyCancelled",
    "CopyCounts",
    "CopyError",
    "CpuBackend",
    "CudaBackend",
    "KvBuffers",
    "PrefixStore",
    "Residency",
    "Transfer",
]
