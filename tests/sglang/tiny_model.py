"""Tiny Qwen2 models with real random weights, and a tokenizer, written to a directory.

The weights are large enough that the output hangs on every cached key and value: the near-zero
weights of ``load_format="dummy"`` would make any two outputs equal and prove nothing.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from pathlib import Path

EOS = 0  # requests of the tests ignore it
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
        return self.hidden // self.heads

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token's keys and values take over all layers, in float32."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 4


SIZES = {
    "tiny": Size(hidden=128, layers=2, heads=4, kv_heads=2, intermediate=384),  # 0.6 M parameters
    "bench": Size(hidden=256, layers=4, heads=8, kv_heads=8, intermediate=768),  # 3.9 M
}


def config(size: Size) -> dict[str, object]:
    """Return ``config.json`` of a Qwen2 model of this size."""
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


def weights(size: Size, seed: int) -> dict[str, torch.Tensor]:
    """Return the state dict, float32, a pure function of the size and the seed."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float) -> torch.Tensor:
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


CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def _byte_letters() -> list[str]:
    """Return the letters by which byte-level BPE writes the bytes 0 to 255 (as GPT-2 does)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def write_tokenizer(directory: Path, vocab: int) -> None:
    """Write a tokenizer: a byte of text is a token (2 + byte), and token 700 reads `` w700``.

    Byte-level BPE without merges, as transformers takes any tokenizer of a Qwen2 model for BPE.
    """
    words = {"</s>": EOS, "<s>": BOS}
    words |= {letter: 2 + byte for byte, letter in enumerate(_byte_letters())}
    words |= {f"\u0120w{i}": i for i in range(len(words), vocab)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": words[name], "content": name, "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for name in ("</s>", "<s>")
        ],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": words, "merges": []},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    names = {"bos_token": "<s>"} | dict.fromkeys(("eos_token", "pad_token", "unk_token"), "</s>")
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "Qwen2Tokenizer",
                "model_max_length": 1 << 20,
                "chat_template": CHAT_TEMPLATE,
                **names,
            }
        )
    )


def write_model(directory: Path, name: str = "tiny", seed: int = 0) -> Path:
    """Write config, weights and tokenizer of ``SIZES[name]``; return the directory."""
    size = SIZES[name]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config(size), indent=1))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    save_file(weights(size, seed), directory / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(directory, size.vocab)
    return directory


def write_adapter(directory: Path, name: str = "tiny", seed: int = 1, rank: int = 4) -> Path:
    """Write a LoRA adapter for ``SIZES[name]``, strong enough to change the output."""
    size = SIZES[name]
    generator = torch.Generator().manual_seed(seed)
    rows = {"q": size.hidden, "k": size.kv_heads * size.head_dim}
    rows["v"] = rows["k"]
    state = {}
    for layer in range(size.layers):
        for letter, out in rows.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{letter}_proj.lora_"
            down = torch.randn(rank, size.hidden, generator=generator)
            state[at + "A.weight"] = down / math.sqrt(size.hidden)
            state[at + "B.weight"] = torch.randn(out, rank, generator=generator)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "r": rank,
                "lora_alpha": 2 * rank,
                "lora_dropout": 0.0,
                "bias": "none",
                "target_modules": [f"{letter}_proj" for letter in rows],
            }
        )
    )
    save_file(state, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    return directory
