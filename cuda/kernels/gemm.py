"""Host side of `gemm.cu`: linear layers of bfloat16 whose rows have the same bits in any company.

For batch-invariant mode; without it the library's GEMM (`Backend.matmul`) is faster.
"""

import numpy as np
import torch

from cuda.backends.backend import Backend
from cuda.kernels.elements import ELEMENTS

SOURCE = "gemm.cu"
NUM_THREADS = 256
SHARED_BYTES = 96 << 10
LARGE, SMALL = (128, 128), (64, 64)
"""Rows and columns of a tile; both walk K alike, so that the choice between them changes no bit."""
STAGES = {LARGE: 3, SMALL: 6}


def _name(element: str, tile: tuple[int, int]) -> str:
    return f"gemm<{element}, {tile[0]}, {tile[1]}, {STAGES[tile]}>"


NAMES = tuple(_name(element, tile) for element in ELEMENTS.values() for tile in STAGES)


class Gemm:
    """Of bfloat16 to `out_dtype`, float32 or bfloat16."""

    def __init__(self, backend: Backend, out_dtype: torch.dtype) -> None:
        self._num_multiprocessors = backend.num_multiprocessors
        launches = backend.kernels(SOURCE, [_name(ELEMENTS[out_dtype], tile) for tile in STAGES])
        self._launches = dict(zip(STAGES, launches, strict=True))

    def __call__(self, out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Out [T, N] = x [T, K] @ weight [N, K].T + bias [N].

        Raises:
            ValueError: K is not a multiple of 8.
        """
        num_rows, depth = x.shape
        num_columns = weight.shape[0]
        if depth % 8 != 0:
            raise ValueError(f"x has {depth} columns: a row must be a multiple of 16 bytes")
        tile = tile_of(num_rows, num_columns, self._num_multiprocessors)
        sizes = np.int32(num_rows), np.int32(num_columns), np.int32(depth)
        grid = _grid(tile, num_rows, num_columns)
        self._launches[tile](grid, (NUM_THREADS,), (out, x, weight, bias, *sizes), shared_bytes=SHARED_BYTES)


def tile_of(num_rows: int, num_columns: int, num_multiprocessors: int) -> tuple[int, int]:
    """The large tile where its blocks are enough to keep every multiprocessor busy."""
    blocks = _grid(LARGE, num_rows, num_columns)
    return LARGE if num_rows > SMALL[0] and blocks[0] * blocks[1] >= num_multiprocessors else SMALL


def _grid(tile: tuple[int, int], num_rows: int, num_columns: int) -> tuple[int, int]:
    return -(-num_rows // tile[0]), -(-num_columns // tile[1])
