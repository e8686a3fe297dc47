"""Tiny Qwen2 models with real random weights, and a tokenizer, written to a directory.

The weights are large enough that the output hangs on every cached key and value: the near-zero
weights of ``load_format="dummy"`` would make any two outputs equal and prove nothing.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from topas.enginebench import model
from topas.enginebench.model import BENCH, BOS, EOS, Size

if TYPE_CHECKING:
    from pathlib import Path

SIZES = {
    "tiny": Size(hidden=128, layers=2, heads=4, kv_heads=2, intermediate=384),  # 0.6 M parameters
    "bench": BENCH,  # 3.9 M
    "medium": Size(hidden=512, layers=8, heads=8, kv_heads=8, intermediate=1536),  # 28 M
}


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
    model.write_model(directory, size, seed)
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
