"""Host side of `all_reduce.cu`: sums over the ranks of a group, and rows of logits put together from their columns.

Knows where things lie in the ranks' slabs as `GROUP` says it. Never decides which algorithm to use, and never waits;
`cuda.gpu.ranks` does the first, and turns the error word into an exception.
"""

import numpy as np
import torch

from cuda.kernels.add_rms_norm import block_threads
from cuda.kernels.backend import Backend
from cuda.kernels.elements import ELEMENTS, VECTOR_BYTES

SOURCE = "all_reduce.cu"
NAMES = (
    *(f"one_shot<{element}, {norm}>" for element in ELEMENTS.values() for norm in ("false", "true")),
    *(f"two_shot<{element}>" for element in ELEMENTS.values()),
    "gather_columns",
)
MAX_RANKS = 8
MAX_BLOCKS = 36
"""More would take too much of the GPU from what runs beside; fewer do not fill NVLink."""
GENERATIONS_AT = 2048
HEAD_BYTES = 4096
"""Flags [MAX_RANKS][MAX_BLOCKS] uint32 from 0 on, then generations [MAX_BLOCKS] uint32."""
MAX_THREADS = 512
GROUP = np.dtype(
    [
        ("slabs", np.uint64, MAX_RANKS),
        *((name, np.uint64) for name in ("error", "timeout_ns", "slots", "slot_bytes", "sums", "parts", "logits")),
        *((name, np.int32) for name in ("rank", "num_ranks")),
    ]
)
"""`Group` of the source: addresses of all ranks' slabs and of this rank's error word (uint64), then offsets."""


class AllReduce:
    """Of parts [T, num_columns], and of logits, that lie in the slabs. All ranks make the same calls.

    Before the first call flags hold 1 and generations 0, or 2 g + 1 and g. A rank that waits too long for another
    writes `meeting << 32 | 1 + peer` to its error word and ends by a trap. ValueError as `AddRmsNorm`.
    """

    def __init__(self, backend: Backend, dtype: torch.dtype, num_columns: int, eps: float) -> None:
        self._grid = (num_blocks(backend),)
        self._block = (block_threads(num_columns, dtype),)
        self._eps = np.float32(eps)
        self._width = VECTOR_BYTES // dtype.itemsize
        element = ELEMENTS[dtype]
        names = f"one_shot<{element}, false>", f"one_shot<{element}, true>", f"two_shot<{element}>", "gather_columns"
        self._sum, self._norm, self._two_shot, self._gather = backend.kernels(SOURCE, names, cooperative=True)

    def one_shot(self, group: np.void, first_row: int, out: torch.Tensor) -> None:
        """The sum of rows `first_row` and following of all parts to `out` [T, E]."""
        args = (group, np.int32(first_row), out, None, None, *_shape(out), self._eps)
        self._sum(self._grid, self._block, args)

    def one_shot_norm(
        self, group: np.void, first_row: int, out: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> None:
        """Add that sum to `residual` [T, E] in place; its norm times `weight` [E] goes to `out` [T, E]."""
        args = (group, np.int32(first_row), out, residual, weight, *_shape(out), self._eps)
        self._norm(self._grid, self._block, args)

    def two_shot(self, group: np.void, first_row: int, sums: torch.Tensor) -> None:
        """`sums` [T, E], which begins the sums of the slab, = the sum of rows `first_row` and following."""
        vectors = sums.shape[1] // self._width
        args = (group, np.int64(first_row * vectors), np.int32(sums.shape[0] * vectors))
        self._two_shot(self._grid, _block(sums.shape[0] * vectors // int(group["num_ranks"]), self._grid), args)

    def gather_columns(self, group: np.void, mine: torch.Tensor, first: int, num_columns: int) -> None:
        """`mine` [R, own] float32 become columns `first` and following of all slabs' logits [R, num_columns].

        ValueError for 2^31 elements or more.
        """
        if mine.numel() >= 1 << 31:
            raise ValueError(f"{mine.shape[0]} rows of {mine.shape[1]} columns are more than 2^31 elements")
        rows, own = _shape(mine)
        block = _block(mine.numel(), self._grid)
        self._gather(self._grid, block, (group, mine, rows, np.int32(first), own, np.int32(num_columns)))


def num_blocks(backend: Backend) -> int:
    """Of every launch: all run at once, and every rank has as many, for they meet one by one."""
    return min(MAX_BLOCKS, backend.num_multiprocessors)


def _block(num_items: int, grid: tuple[int]) -> tuple[int]:
    """Threads that share out so many items, no more than are of use."""
    return (min(MAX_THREADS, 32 * max(1, num_items // grid[0] // 32)),)


def _shape(rows: torch.Tensor) -> tuple[np.int32, np.int32]:
    return np.int32(rows.shape[0]), np.int32(rows.shape[1])
