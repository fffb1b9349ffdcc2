"""Weights in device memory: read and copied one tensor at a time, so that the host never holds the model."""

from collections.abc import Callable
from pathlib import Path

import torch

from cuda.gpu.linear import GpuMatrix
from cuda.kernels.backend import Backend
from cuda.models.checkpoint import load_weights
from cuda.models.decoder import DecoderLayer, DecoderWeights
from cuda.models.shard import Shard
from cuda.models.spec import ModelSpec
from cuda.models.weights import LayerWeights, LinearWeight

GpuWeights = DecoderWeights[torch.Tensor, GpuMatrix]


def load_onto(  # noqa: PLR0913, PLR0917 - as `load_weights`
    backend: Backend,
    folder: Path,
    spec: ModelSpec,
    shard: Shard,
    dtype: torch.dtype,
    progress: Callable[[float], None],
) -> tuple[GpuWeights, int]:
    """What `shard` holds of the decoder `spec`, and its bytes; `progress` gets a fraction 0..1.

    Errors as `load_weights` has them.
    """
    num_bytes = 0

    def place(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal num_bytes
        num_bytes += tensor.nbytes
        target = backend.empty(tensor.shape, dtype)
        backend.copy(target, tensor)
        backend.synchronize()  # `tensor` is forgotten here
        return target

    weights = load_weights(folder, spec, dtype, progress, place, shard=shard)
    layers = [_layer(layer, is_shared=shard.world_size > 1) for layer in weights.layers]
    embedding = GpuMatrix(weights.embedding, first_row=shard.vocabulary.start)
    placed = DecoderWeights(embedding, layers, weights.final_norm, _matrix(weights.lm_head))
    return placed, num_bytes


def _layer(layer: LayerWeights, *, is_shared: bool) -> DecoderLayer[torch.Tensor, GpuMatrix]:
    return DecoderLayer(
        input_norm=layer.input_norm,
        qkv=_matrix(layer.qkv),
        q_norm=layer.q_norm,
        k_norm=layer.k_norm,
        o=_matrix(layer.o, is_part=is_shared),
        post_attention_norm=layer.post_attention_norm,
        gate_up=_matrix(layer.gate_up),
        down=_matrix(layer.down, is_part=is_shared),
    )


def _matrix(linear: LinearWeight, *, is_part: bool = False) -> GpuMatrix:
    return GpuMatrix(linear.weight, linear.bias, is_part)
