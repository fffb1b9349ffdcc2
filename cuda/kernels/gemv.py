"""Host side of `gemv.cu`: a linear layer for up to 8 rows, at the pace of reading its weight."""

import numpy as np
import torch

from cuda.backends.backend import Backend
from cuda.kernels.elements import VECTOR_BYTES

SOURCE = "gemv.cu"
KERNELS = {
    (torch.bfloat16, torch.bfloat16): ("gemv_bf16<bf16>", 256, 16),
    (torch.bfloat16, torch.float32): ("gemv_bf16<float>", 256, 16),
    (torch.float32, torch.float32): ("gemv_float", 128, 4),
}
"""By dtype of the inputs and of the output: the kernel, and a block's threads and outputs."""
NAMES = tuple(name for name, *_ in KERNELS.values())
MAX_ROWS = 8


class Gemv:
    """Of at most `MAX_ROWS` rows. ValueError if no kernel takes these dtypes."""

    def __init__(self, backend: Backend, dtype: torch.dtype, out_dtype: torch.dtype) -> None:
        if (dtype, out_dtype) not in KERNELS:
            raise ValueError(f"gemv has no kernel from {dtype} to {out_dtype}")
        name, self._num_threads, self._block_outputs = KERNELS[dtype, out_dtype]
        (self._launch,) = backend.kernels(SOURCE, [name])

    def __call__(self, out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Out [T, N] = x [T, K] @ weight [N, K].T + bias [N]; a row's bits depend neither on T nor on its place.

        Raises:
            ValueError: T is more than 8, or a row of K is not a whole number of 16-byte vectors.
        """
        num_rows, depth = x.shape
        num_outputs = weight.shape[0]
        if num_rows > MAX_ROWS:
            raise ValueError(f"gemv takes up to {MAX_ROWS} rows, not {num_rows}")
        if depth * x.dtype.itemsize % VECTOR_BYTES != 0:
            raise ValueError(f"x has {depth} columns: a row must be a multiple of {VECTOR_BYTES} bytes")
        num_blocks = -(-num_outputs // self._block_outputs) if num_rows > 0 else 0
        sizes = np.int32(num_rows), np.int32(num_outputs), np.int32(depth)
        self._launch((num_blocks,), (self._num_threads,), (out, x, weight, bias, *sizes))
