"""Host side of `gemm.cu`: linear layers of bfloat16 whose rows have the same bits in any company.

For batch-invariant mode; without it the library's GEMM (`Backend.matmul`) is faster.
"""

import numpy as np
import torch

from cuda.kernels.backend import Backend
from cuda.kernels.elements import ELEMENTS

SOURCE = "gemm.cu"
NUM_THREADS = 256
SHARED_BYTES = 96 << 10
STAGES = {(128, 128): 3, (64, 64): 6, (64, 32): 8}
"""By rows and columns of a tile, large ones first. All walk K alike, so that the choice between them changes no bit."""
LOWEST_TILE = 64
"""Rows."""


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
    """The largest tile whose blocks keep every multiprocessor busy, unless a lower one holds all rows."""
    for tile in STAGES:
        blocks = _grid(tile, num_rows, num_columns)
        if num_rows > tile[0] - LOWEST_TILE and blocks[0] * blocks[1] >= num_multiprocessors:
            break
    return tile


def _grid(tile: tuple[int, int], num_rows: int, num_columns: int) -> tuple[int, int]:
    return -(-num_rows // tile[0]), -(-num_columns // tile[1])
