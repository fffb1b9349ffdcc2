"""A decoder's weights as plain tensors, fused the way the forward pass wants them, before a device packs them.

Names and order inside fused tensors are fixed here: qkv is [q; k; v] over rows, gate_up is [gate; up] over rows.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LinearWeight:
    """y = x @ weight.T + bias."""

    weight: torch.Tensor
    """[out, in]."""
    bias: torch.Tensor | None = None
    """[out]."""


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer."""

    input_norm: torch.Tensor
    """[E]."""
    qkv: LinearWeight
    """[(H + 2K) * D, E]."""
    q_norm: torch.Tensor | None
    """[D], Qwen3 only."""
    k_norm: torch.Tensor | None
    """[D], Qwen3 only."""
    o: LinearWeight
    """[E, H * D]."""
    post_attention_norm: torch.Tensor
    """[E]."""
    gate_up: LinearWeight
    """[2F, E]."""
    down: LinearWeight
    """[E, F]."""


@dataclass(frozen=True)
class ModelWeights:
    """A whole decoder."""

    embedding: torch.Tensor
    """[V, E]."""
    layers: list[LayerWeights]
    final_norm: torch.Tensor
    """[E]."""
    lm_head: LinearWeight
    """[V, E]; the same storage as `embedding` when tied."""
