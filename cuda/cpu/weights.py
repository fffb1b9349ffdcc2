"""Weights on the CPU device: every matrix packed for its kernels, the float32 original freed as soon as it is."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from cuda.cpu.kernels.memory import aligned_zeros
from cuda.cpu.kernels.pack import Format, pack
from cuda.cpu.kernels.tile import PANEL
from cuda.cpu.ops import CpuMatrix
from cuda.models.checkpoint import LayerWeights, LinearWeight, ModelWeights
from cuda.models.decoder import DecoderLayer, DecoderWeights
from cuda.models.shard import Shard

Floats = npt.NDArray[np.float32]
CpuWeights = DecoderWeights[Floats, CpuMatrix]


@dataclass(frozen=True)
class Formats:
    """How the layers' matrices are kept, and how the embedding and the output matrix (one and the same, when tied)."""

    layers: Format
    ends: Format

    @classmethod
    def of(cls, dtype: torch.dtype, quantization: str) -> "Formats":
        """The ends carry more of the quality and are read once a step: never below 8 bits."""
        if quantization == "int4":
            return cls("int4", "int8")
        if quantization == "int8":
            return cls("int8", "int8")
        return cls("bfloat16", "bfloat16") if dtype == torch.bfloat16 else cls("exact", "exact")


def pack_weights(
    weights: ModelWeights, formats: Formats, shard: Shard, progress: Callable[[float], None]
) -> CpuWeights:
    """`weights` are those of `shard`. Empties `weights.layers` on the way; `progress` gets a fraction 0..1."""
    tied = weights.lm_head.weight.data_ptr() == weights.embedding.weight.data_ptr()
    first_token = shard.vocabulary.start
    embedding = replace(_matrix(weights.embedding, formats.ends), first_row=first_token)
    lm_head = embedding if tied else replace(_matrix(weights.lm_head, formats.ends), first_row=first_token)
    layers = []
    total = len(weights.layers)
    while weights.layers:
        layers.append(_layer(weights.layers.pop(0), formats.layers))
        progress(len(layers) / total)
    return DecoderWeights(embedding, layers, _vector(weights.final_norm), lm_head)


def weights_bytes(weights: CpuWeights) -> int:
    """Of all matrices; what is shared counts once."""
    matrices = {id(matrix): matrix for matrix in (weights.embedding, weights.lm_head)}
    for layer in weights.layers:
        matrices.update({id(matrix): matrix for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down)})
    return sum(matrix.weight.num_bytes for matrix in matrices.values())


def return_free_memory() -> None:
    """Give what the loader freed back to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _layer(layer: LayerWeights, form: Format) -> DecoderLayer[Floats, CpuMatrix]:
    return DecoderLayer(
        input_norm=_vector(layer.input_norm),
        qkv=_matrix(layer.qkv, form),
        q_norm=None if layer.q_norm is None else _vector(layer.q_norm),
        k_norm=None if layer.k_norm is None else _vector(layer.k_norm),
        o=replace(_matrix(layer.o, form), is_part=True),
        post_attention_norm=_vector(layer.post_attention_norm),
        gate_up=_matrix(layer.gate_up, form),
        down=replace(_matrix(layer.down, form), is_part=True),
    )


def _matrix(linear: LinearWeight, form: Format) -> CpuMatrix:
    packed = pack(linear.weight.float().contiguous().numpy(), form)
    if linear.bias is None:
        return CpuMatrix(packed, None)
    bias = aligned_zeros(packed.num_panels * PANEL, np.float32)
    bias[: packed.num_columns] = linear.bias.float().numpy()
    return CpuMatrix(packed, bias)


def _vector(weight: torch.Tensor) -> Floats:
    vector = aligned_zeros(weight.numel(), np.float32)
    vector[:] = weight.float().numpy()
    return vector
