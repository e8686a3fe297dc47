"""A small Qwen2 with random weights, for machines without a model.

The weights are large enough that the output hangs on every cached key and value; near-zero ones
would give the same output whatever the cache holds. Needs torch and safetensors.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["BENCH", "BOS", "EOS", "Size", "config", "vocabulary", "weights", "write_model"]

EOS = 0
BOS = 1


@dataclass(frozen=True, kw_only=True)
class Size:
    """One model: ``hidden`` x ``layers``, ``heads`` query and ``kv_heads`` key and value heads."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int = 1024
    context: int = 8192

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token's keys and values take over all layers, in float32."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 4


#: The model of the benchmark, 3.9 M parameters.
BENCH = Size(hidden=256, layers=4, heads=8, kv_heads=8, intermediate=768)


def config(size: Size) -> dict[str, object]:
    """``config.json`` of a Qwen2 model of this size."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "vocab_size": size.vocab,
        "max_position_embeddings": size.context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "torch_dtype": "float32",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }


def weights(size: Size, seed: int) -> dict[str, Any]:
    """The state dict, float32 tensors, a pure function of the size and the seed."""
    torch = import_module("torch")
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float) -> Any:
        return torch.randn(*shape, generator=generator) * std

    hidden, kv = size.hidden, size.kv_heads * size.head_dim
    unit = 1 / math.sqrt(hidden)
    state = {
        "model.embed_tokens.weight": normal(size.vocab, hidden, std=1.0),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": normal(size.vocab, hidden, std=unit),
    }
    for layer in range(size.layers):
        at = f"model.layers.{layer}."
        for name, rows, std in (("q", hidden, 2), ("k", kv, 2), ("v", kv, 1.5)):
            state[f"{at}self_attn.{name}_proj.weight"] = normal(rows, hidden, std=std * unit)
            state[f"{at}self_attn.{name}_proj.bias"] = torch.zeros(rows)
        state[at + "self_attn.o_proj.weight"] = normal(hidden, hidden, std=1.5 * unit)
        state[at + "mlp.gate_proj.weight"] = normal(size.intermediate, hidden, std=unit)
        state[at + "mlp.up_proj.weight"] = normal(size.intermediate, hidden, std=unit)
        state[at + "mlp.down_proj.weight"] = normal(
            hidden, size.intermediate, std=1 / math.sqrt(size.intermediate)
        )
        state[at + "input_layernorm.weight"] = torch.ones(hidden)
        state[at + "post_attention_layernorm.weight"] = torch.ones(hidden)
    return state


def write_model(directory: Path, size: Size = BENCH, seed: int = 0) -> Path:
    """Write config and weights of a model without a tokenizer; return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config(size), indent=1))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    save = import_module("safetensors.torch").save_file
    save(weights(size, seed), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def vocabulary(directory: Path) -> int | None:
    """Size of a model's vocabulary as its ``config.json`` says; ``None`` when it does not."""
    try:
        fields = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        size = fields.get("vocab_size", fields.get("text_config", {}).get("vocab_size"))
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) else None
