"""Host side of `gemv.cu`: a linear layer for up to 8 rows, at the pace of reading its weight."""

from dataclasses import dataclass

import numpy as np
import torch

from cuda.kernels.backend import Backend
from cuda.kernels.elements import VECTOR_BYTES

SOURCE = "gemv.cu"
MAX_ROWS = 8
LEAST_WARPS = 4
"""Whose threads are as many as a block has outputs of 8 rows."""


@dataclass(frozen=True)
class Instance:
    """A kernel, and what it is launched with.

    Attributes:
        max_rows: That it computes. Fewer take as long.
        num_warps: Of a block, that take turns over K, unless there are fewer turns.
        turn: Elements of K.
        block_outputs: Of a block, of all rows.
    """

    name: str
    max_rows: int
    num_warps: int
    turn: int
    block_outputs: int


KERNELS = {
    (torch.bfloat16, torch.bfloat16): (Instance("gemv_bf16<bf16>", MAX_ROWS, 8, 128, 16),),
    (torch.bfloat16, torch.float32): (Instance("gemv_bf16<float>", MAX_ROWS, 8, 128, 16),),
    (torch.float32, torch.float32): (
        Instance("gemv_float<1>", 1, 4, 64, 16),
        Instance("gemv_float<2>", 2, 4, 64, 16),
        Instance("gemv_float<4>", 4, 4, 64, 16),
        Instance("gemv_float<8>", MAX_ROWS, 4, 64, 8),
    ),
}
"""By dtype of the inputs and of the output, fewest rows first. A row has the same bits from each."""
NAMES = tuple(instance.name for instances in KERNELS.values() for instance in instances)


class Gemv:
    """Of at most `MAX_ROWS` rows. ValueError if no kernel takes these dtypes."""

    def __init__(self, backend: Backend, dtype: torch.dtype, out_dtype: torch.dtype) -> None:
        if (dtype, out_dtype) not in KERNELS:
            raise ValueError(f"gemv has no kernel from {dtype} to {out_dtype}")
        instances = KERNELS[dtype, out_dtype]
        launches = backend.kernels(SOURCE, [instance.name for instance in instances])
        self._instances = tuple(zip(instances, launches, strict=True))

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
        instance, launch = next(pair for pair in self._instances if num_rows <= pair[0].max_rows)
        num_blocks = -(-num_outputs // instance.block_outputs) if num_rows > 0 else 0
        sizes = np.int32(num_rows), np.int32(num_outputs), np.int32(depth)
        num_warps = min(instance.num_warps, max(LEAST_WARPS, -(-depth // instance.turn)))
        launch((num_blocks,), (32 * num_warps,), (out, x, weight, bias, *sizes))
