"""The gpu device's matrix products: which kernel serves how many rows.

    rows            usually       batch-invariant, bf16   batch-invariant, fp32
    1 .. 8          Gemv          Gemm                    Gemv
    more            library       Gemm                    Gemv, 8 rows at a time

The library chooses its algorithm by the number of rows, so a row's bits may change with its company; ours never do.
"""

from dataclasses import dataclass

import torch

from cuda.kernels.backend import Backend
from cuda.kernels.gemm import Gemm
from cuda.kernels.gemv import MAX_ROWS, Gemv


@dataclass(frozen=True)
class GpuMatrix:
    """A weight [N, K] and its bias [N], in device memory."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    is_part: bool = False
    """The rank holds some columns of the model's matrix: the sum of all ranks' products is the output."""
    first_row: int = 0
    """Which of the model's rows its first one is."""


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
