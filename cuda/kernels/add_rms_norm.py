"""Host side of `add_rms_norm.cu`: residual add and RMSNorm of rows."""

import numpy as np
import torch

from cuda.kernels.backend import Backend
from cuda.kernels.elements import ELEMENTS, VECTOR_BYTES, vectors_of_a_row

SOURCE = "add_rms_norm.cu"
NAMES = tuple(f"add_rms_norm<{element}, {add}>" for element in ELEMENTS.values() for add in ("false", "true"))
MAX_VECTORS = 4
"""A thread keeps."""
MAX_THREADS = 1024


class AddRmsNorm:
    """Of rows [T, num_columns]. ValueError if a row is not a whole number of 16-byte vectors, or too long."""

    def __init__(self, backend: Backend, dtype: torch.dtype, num_columns: int, eps: float) -> None:
        self._block = (block_threads(num_columns, dtype),)
        self._sizes = np.int32(num_columns), np.float32(eps)
        element = ELEMENTS[dtype]
        self._plain, self._fused = backend.kernels(
            SOURCE, [f"add_rms_norm<{element}, {add}>" for add in ("false", "true")]
        )

    def __call__(
        self, out: torch.Tensor, residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> None:
        """Add `delta` to `residual` in place, unless None; its norm times weight [num_columns] goes to `out`."""
        grid = (out.shape[0],)
        if delta is None:
            self._plain(grid, self._block, (out, None, residual, weight, *self._sizes))
        else:
            self._fused(grid, self._block, (out, residual, delta, weight, *self._sizes))


def block_threads(num_columns: int, dtype: torch.dtype) -> int:
    """Threads of a block for rows of `num_columns`; a function of the row alone, so that results are too."""
    num_vectors = vectors_of_a_row(num_columns, dtype)
    if num_vectors > MAX_VECTORS * MAX_THREADS:
        limit = MAX_VECTORS * MAX_THREADS * VECTOR_BYTES // dtype.itemsize
        raise ValueError(f"num_columns is {num_columns}; the limit for {dtype} is {limit}")
    # One vector a thread while that fits a small block, which hides latency best; then more vectors, then more threads.
    wanted = num_vectors if num_vectors <= 256 else max(256, -(-num_vectors // MAX_VECTORS))
    return -(-wanted // 32) * 32
