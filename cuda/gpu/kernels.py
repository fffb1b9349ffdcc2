"""Every kernel that a model's forward pass needs, compiled for it, and which models they can serve; matrix products.

    rows            usually       batch-invariant, bf16   batch-invariant, fp32
    1 .. 8          Gemv          Gemm                    Gemv
    more            library       Gemm                    Gemv, 8 rows at a time

The library chooses its algorithm by the number of rows, so a row's bits may change with its company; ours never do.
"""

from dataclasses import dataclass

import torch

from cuda.devices.device import DeviceConfig
from cuda.kernels.activation import GatedActivation
from cuda.kernels.add_rms_norm import AddRmsNorm
from cuda.kernels.attention import PARTIAL_BYTES, AttentionShape, PagedAttention
from cuda.kernels.attention_plan import SMALL_TILE_ROWS, SPLIT_KEYS
from cuda.kernels.backend import Backend
from cuda.kernels.gather import Gather, Scatter
from cuda.kernels.gemm import Gemm
from cuda.kernels.gemv import MAX_ROWS, Gemv
from cuda.kernels.rope_and_store import RopeAndStore
from cuda.kernels.sample import Sampler
from cuda.models.decoder import DecoderWeights
from cuda.models.spec import ModelSpec, UnsupportedModel


@dataclass(frozen=True)
class GpuMatrix:
    """A weight [N, K] and its bias [N], in device memory."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    is_part: bool = False
    """The rank holds some columns of the model's matrix: the sum of all ranks' products is the output."""
    first_row: int = 0
    """Which of the model's rows its first one is."""


GpuWeights = DecoderWeights[torch.Tensor, GpuMatrix]


class Linear:
    """Queues out [T, N] = x [T, K] @ weight.T + bias, from `dtype` to `out_dtype`."""

    def __init__(self, backend: Backend, dtype: torch.dtype, out_dtype: torch.dtype, *, batch_invariant: bool) -> None:
        self._backend = backend
        self._batch_invariant = batch_invariant
        self._gemv = Gemv(backend, dtype, out_dtype)
        self._gemm = Gemm(backend, out_dtype) if batch_invariant and dtype == torch.bfloat16 else None

    def __call__(self, out: torch.Tensor, x: torch.Tensor, matrix: GpuMatrix) -> None:
        """Nothing is queued for no rows."""
        num_rows = x.shape[0]
        if num_rows == 0:
            return
        if self._gemm is not None:
            self._gemm(out, x, matrix.weight, matrix.bias)
        elif num_rows <= MAX_ROWS:
            self._gemv(out, x, matrix.weight, matrix.bias)
        elif self._batch_invariant:
            for first in range(0, num_rows, MAX_ROWS):
                rows = slice(first, first + MAX_ROWS)
                self._gemv(out[rows], x[rows], matrix.weight, matrix.bias)
        else:
            self._backend.matmul(out, x, matrix.weight, matrix.bias)


class Kernels:
    """UnsupportedModel, in the words of the kernel that cannot take the model's sizes."""

    def __init__(self, backend: Backend, spec: ModelSpec, dtype: torch.dtype, config: DeviceConfig) -> None:
        heads = spec.num_heads, spec.num_kv_heads, spec.head_dim
        shape = AttentionShape(*heads, config.page_size, spec.sliding_window or 0)
        try:
            self.gather = Gather(backend, dtype, spec.hidden_size)
            self.scatter = Scatter(backend)
            self.add_rms_norm = AddRmsNorm(backend, dtype, spec.hidden_size, spec.rms_norm_eps)
            self.rope_and_store = RopeAndStore(backend, dtype, shape, spec.rms_norm_eps)
            self.attention = PagedAttention(backend, dtype, shape, partial_bytes=_partial_bytes(spec, config))
            self.activation = GatedActivation(backend, dtype, "silu", spec.intermediate_size)
            self.sampler = Sampler(backend, spec.vocab_size, config.max_running)
        except ValueError as error:
            raise UnsupportedModel(f"{config.folder}: the CUDA kernels cannot take this model: {error}") from error
        self.linear = Linear(backend, dtype, dtype, batch_invariant=config.batch_invariant)
        self.to_logits = Linear(backend, dtype, torch.float32, batch_invariant=config.batch_invariant)


def _partial_bytes(spec: ModelSpec, config: DeviceConfig) -> int:
    """No more than all rows of small tiles can fill."""
    num_rows = config.max_running * 2 * SMALL_TILE_ROWS * -(-config.max_model_len // SPLIT_KEYS)
    return min(PARTIAL_BYTES, num_rows * spec.num_kv_heads * (spec.head_dim + 2) * 4)
