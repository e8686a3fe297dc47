"""Language models by the shapes in their published ``config.json``."""

from __future__ import annotations

from dataclasses import dataclass

from topas.errors import ConfigError
from topas.sim.checks import check_int

__all__ = ["MODELS", "LlmModel", "find_model"]

_BF16_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class LlmModel:
    """Shape of a dense decoder with grouped-query attention and a gated MLP, in bf16.

    Parameters
    ----------
    name : str
        As it is asked for.
    layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary : int
        ``num_hidden_layers``, ``hidden_size``, ``intermediate_size``, ``num_attention_heads``,
        ``num_key_value_heads``, ``head_dim`` (hidden / heads where it is not given) and
        ``vocab_size``. Input and output embeddings are two matrices (``tie_word_embeddings``
        false).
    qkv_bias : bool
        Whether queries, keys and values have biases (Qwen2: yes, Llama: no).
    source : str
        Where the figures are published.

    Raises
    ------
    ConfigError
        A length is not an integer above 0; the message names it.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    qkv_bias: bool
    source: str

    def __post_init__(self) -> None:
        for name in (
            "layers",
            "hidden",
            "intermediate",
            "heads",
            "kv_heads",
            "head_dim",
            "vocabulary",
        ):
            check_int(name, getattr(self, name), minimum=1)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of one of the two embeddings."""
        return self.vocabulary * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Parameters of all layers: attention, MLP and norms."""
        queries = self.heads * self.head_dim
        keys_values = 2 * self.kv_heads * self.head_dim
        attention = self.hidden * (2 * queries + keys_values)
        biases = queries + keys_values if self.qkv_bias else 0
        mlp = 3 * self.hidden * self.intermediate
        return self.layers * (attention + biases + mlp + 2 * self.hidden)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.layer_parameters + 2 * self.embedding_parameters + self.hidden

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return _BF16_BYTES * self.parameters

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a decode step reads: all but the input embedding's other rows."""
        return self.weight_bytes - _BF16_BYTES * self.embedding_parameters

    @property
    def prefill_flop_per_token(self) -> int:
        """Matrix operations of a prefilled token, FLOP.

        Two for each parameter of the layers; logits are made for the last token only, and the
        operations of attention, some per cent at a few thousand tokens, are left out.
        """
        return 2 * self.layer_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of a token, all layers."""
        return 2 * _BF16_BYTES * self.layers * self.kv_heads * self.head_dim

    @property
    def hidden_bytes(self) -> int:
        """Bytes of a token's hidden state, which tensor parallelism sums twice a layer."""
        return _BF16_BYTES * self.hidden

    @property
    def legal_tensor_parallel(self) -> tuple[int, ...]:
        """Numbers of GPUs that divide the KV heads, ascending."""
        return tuple(n for n in range(1, self.kv_heads + 1) if self.kv_heads % n == 0)


def _qwen(size: str, layers: int, hidden: int, intermediate: int, heads: int, kv: int) -> LlmModel:
    name = f"Qwen2.5-{size}-Instruct"
    return LlmModel(
        name=name,
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv,
        head_dim=128,
        vocabulary=152_064,
        qkv_bias=True,
        source=f"huggingface.co/Qwen/{name}: config.json (Qwen2ForCausalLM)",
    )


def _llama(size: str, layers: int, hidden: int, intermediate: int, heads: int) -> LlmModel:
    name = f"Llama-3.1-{size}-Instruct"
    return LlmModel(
        name=name,
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        vocabulary=128_256,
        qkv_bias=False,
        source=f"huggingface.co/meta-llama/{name}: config.json (LlamaForCausalLM)",
    )


#: The known models by name.
MODELS = {
    model.name: model
    for model in (
        _qwen("7B", 28, 3_584, 18_944, 28, 4),
        _qwen("14B", 48, 5_120, 13_824, 40, 8),
        _qwen("32B", 64, 5_120, 27_648, 40, 8),
        _llama("8B", 32, 4_096, 14_336, 32),
        _llama("70B", 80, 8_192, 28_672, 64),
    )
}


def find_model(name: str) -> LlmModel:
    """Return a known model.

    Capitals, an organisation before the name and ``-Instruct`` behind it do not matter:
    ``qwen2.5-32b`` and ``Qwen/Qwen2.5-32B-Instruct`` are the same.

    Raises
    ------
    ConfigError
        The name is not known; the message lists those that are.
    """
    wanted = name.rpartition("/")[2].casefold().removesuffix("-instruct")
    for known, model in MODELS.items():
        if known.casefold().removesuffix("-instruct") == wanted:
            return model
    raise ConfigError(f"model: unknown {name!r}, known are {', '.join(MODELS)}")
