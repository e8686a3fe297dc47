"""The KV buffers of an engine as rows of words, and which layers are copied together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from topas.errors import ArgumentError, ConfigError

__all__ = ["KvBuffers", "LayerGroup"]

#: Widest first: rows are copied as integers, bit for bit, whatever the KV dtype is.
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
_DTYPES = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint8,  # how SGLang stores both kinds of fp8
)


@dataclass(frozen=True)
class LayerGroup:
    """Layers that are copied together, in one piece of host memory.

    Parameters
    ----------
    layers : range
        Which.
    nbytes : int
        Bytes of their KV for the prefix.
    """

    layers: range
    nbytes: int


class KvBuffers:
    """The KV pool of one rank, by layers.

    Make one with :meth:`mha`, :meth:`mla` or :meth:`of_pool`. The tensors are written to in place
    and never replaced.

    Attributes
    ----------
    slots : int
        How many tokens the pool holds (SGLang's padding included).
    layers : int
        How many layers.
    bytes_per_token : int
        Bytes of the KV of a token, all layers, on this rank.
    device : torch.device
        Where the buffers are.
    dtype : torch.dtype
        Of the KV as given.
    """

    def __init__(self, layers: Sequence[Sequence[tuple[str, Any]]]) -> None:
        if not layers:
            raise ArgumentError("buffers: at least one layer is needed, got none")
        named = [pair for layer in layers for pair in layer]
        first_name, first = named[0]
        for name, buffer in named:
            _check_buffer(name, buffer)
            for field in ("dtype", "device"):
                here, there = getattr(buffer, field), getattr(first, field)
                if here != there:
                    raise ArgumentError(f"{name}: {field} {here}, but {first_name} has {there}")
            if len(buffer) != len(first):
                raise ArgumentError(f"{name}: {len(buffer)} slots, {first_name} has {len(first)}")
        self.slots = int(first.shape[0])
        self.layers = len(layers)
        self.dtype: torch.dtype = first.dtype
        self.device: torch.device = first.device
        word = _word([buffer for _, buffer in named])
        self._rows = [
            [buffer.view(self.slots, -1).view(word) for _, buffer in layer] for layer in layers
        ]
        self._word = word
        self._layer_bytes = [
            sum(rows.shape[1] * rows.element_size() for rows in layer) for layer in self._rows
        ]
        self.bytes_per_token = int(sum(self._layer_bytes))

    @classmethod
    def mha(cls, k_buffers: Sequence[torch.Tensor], v_buffers: Sequence[torch.Tensor]) -> KvBuffers:
        """Keys and values apart.

        Parameters
        ----------
        k_buffers, v_buffers : sequence of torch.Tensor
            One a layer, shape [slots, heads, dim], contiguous; heads and dim may differ between
            keys and values.

        Raises
        ------
        ArgumentError
            Other shapes, dtypes, devices or numbers of layers; the message names the buffer.
        """
        if len(k_buffers) != len(v_buffers):
            raise ArgumentError(
                f"v_buffers: {len(v_buffers)} layers, but k_buffers has {len(k_buffers)}"
            )
        pairs = zip(k_buffers, v_buffers, strict=True)
        return cls(
            [
                [(f"k_buffers[{layer}]", k), (f"v_buffers[{layer}]", v)]
                for layer, (k, v) in enumerate(pairs)
            ]
        )

    @classmethod
    def mla(cls, buffers: Sequence[torch.Tensor]) -> KvBuffers:
        """Compressed KV: one buffer a layer, shape [slots, 1, dim], contiguous.

        Raises
        ------
        ArgumentError
            As for :meth:`mha`.
        """
        return cls([[(f"buffers[{layer}]", buffer)] for layer, buffer in enumerate(buffers)])

    @classmethod
    def of_pool(cls, pool: object) -> KvBuffers:
        """The buffers of SGLang's ``MHATokenToKVPool`` or ``MLATokenToKVPool``.

        Raises
        ------
        ConfigError
            Any other pool: one without these buffers, or with others beside them (scales, indices,
            state), which would be left behind.
        ArgumentError
            As for :meth:`mha`.
        """
        lists = {
            name: value
            for name, value in vars(pool).items()
            if isinstance(value, list | tuple) and any(isinstance(t, torch.Tensor) for t in value)
        }
        if set(lists) == {"k_buffer", "v_buffer"}:
            return cls.mha(lists["k_buffer"], lists["v_buffer"])
        if set(lists) == {"kv_buffer"}:
            return cls.mla(lists["kv_buffer"])
        found = ", ".join(sorted(lists)) or "none"
        raise ConfigError(
            f"pool: {type(pool).__name__} is not supported: its lists of tensors are {found}; "
            "wanted k_buffer and v_buffer, or kv_buffer, and no other"
        )

    def groups(self, tokens: int, group_bytes: int) -> list[LayerGroup]:
        """Cut the layers into groups of at most ``group_bytes``; a layer is never cut."""
        groups: list[LayerGroup] = []
        first, held = 0, 0
        for layer, per_token in enumerate(self._layer_bytes):
            nbytes = tokens * per_token
            if held and held + nbytes > group_bytes:
                groups.append(LayerGroup(range(first, layer), held))
                first, held = layer, 0
            held += nbytes
        groups.append(LayerGroup(range(first, self.layers), held))
        return groups

    def parts(
        self, group: LayerGroup, memory: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each buffer of a group as rows, shape [slots, words], with its part of ``memory``.

        ``memory`` is bytes, shape [group.nbytes]; a part has shape [tokens, words].
        """
        tokens = group.nbytes // sum(self._layer_bytes[layer] for layer in group.layers)
        begin = 0
        for layer in group.layers:
            for rows in self._rows[layer]:
                end = begin + tokens * rows.shape[1] * rows.element_size()
                yield rows, memory[begin:end].view(self._word).view(tokens, -1)
                begin = end


def _check_buffer(name: str, buffer: Any) -> None:
    if not isinstance(buffer, torch.Tensor):
        raise ArgumentError(f"{name}: a tensor is needed, got {type(buffer).__name__}")
    if buffer.dim() != 3 or buffer.numel() == 0:
        raise ArgumentError(f"{name}: shape [slots, heads, dim] needed, got {list(buffer.shape)}")
    if buffer.dtype not in _DTYPES:
        raise ArgumentError(f"{name}: dtype {buffer.dtype} is not among bf16, fp16, fp32, fp8")
    if not buffer.is_contiguous():
        raise ArgumentError(f"{name}: not contiguous, strides {list(buffer.stride())}")


def _word(buffers: list[torch.Tensor]) -> torch.dtype:
    """The widest integer that every row and every beginning is a multiple of."""
    sizes = [int(math.prod(buffer.shape[1:])) * buffer.element_size() for buffer in buffers]
    sizes += [int(buffer.storage_offset()) * buffer.element_size() for buffer in buffers]
    common = math.gcd(*sizes)
    return next(word for word in _WORDS if common % word.itemsize == 0)
