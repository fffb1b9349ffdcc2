"""What a decoder is, as numbers: read from a model folder's config.json, before any weight.

Shape letters: E hidden, F feed-forward, H query heads, K KV heads, D head size, V vocabulary.
No torch here: the node reads a spec before any device exists. Owns the one error of everything that reads a model.
Read `cuda.models.config` for where a spec comes from, `cuda.models.checkpoint` for what goes with it.
"""

from dataclasses import dataclass
from typing import Literal

from protocol.errors import PartFailed

Family = Literal["llama", "mistral", "qwen2", "qwen3"]


class UnsupportedModel(PartFailed):
    """A model that cannot be served: unsupported, incomplete or unreadable.

    Its message is one line that names the file, the field or tensor, its value, and what is supported; the node
    prints it and exits with code 2.
    """


@dataclass(frozen=True)
class RopeScaling:
    """Scaled rotary positions; `kind` "llama3" uses all four numbers, "linear" the factor only."""

    kind: Literal["llama3", "linear"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True)
class ModelSpec:
    """One dense decoder of a supported family."""

    family: Family
    num_layers: int
    hidden_size: int
    """E."""
    intermediate_size: int
    """F."""
    num_heads: int
    """H."""
    num_kv_heads: int
    """K; H is a multiple of it."""
    head_dim: int
    """D."""
    vocab_size: int
    """V."""
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_model_len: int
    """Positions the model was made for."""
    tie_word_embeddings: bool
    qkv_bias: bool
    """Qwen2: q, k and v projections have biases."""
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """Qwen3: RMSNorm over each head of q and k before rotary positions."""
    sliding_window: int | None
    """Attend to at most this many latest positions (including itself); None is all."""
    eos_token_ids: tuple[int, ...]
