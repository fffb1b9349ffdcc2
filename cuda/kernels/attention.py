"""Host side of `attention.cu`: attention of decode rows and prefill chunks over the pages of their requests.

Owns the buffers of partial results. `attention_plan` makes the work lists.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from cuda.kernels.attention_plan import LARGE_TILE_ROWS, NUM_WARPS, SMALL_TILE_ROWS, WorkPlanner
from cuda.kernels.backend import Backend
from cuda.kernels.elements import ELEMENTS, VECTOR_BYTES

SOURCE = "attention.cu"
HEAD_DIMS = (16, 32, 64, 96, 128, 256)
NAMES = tuple(
    f"{kernel}<{element}, {head_dim}>"
    for kernel in ("attention", "attention_combine")
    for element in ELEMENTS.values()
    for head_dim in HEAD_DIMS
)
NUM_THREADS = 32 * NUM_WARPS
COMBINE_BLOCKS = 4
"""Of a multiprocessor."""
PARTIAL_BYTES = 64 << 20

_LARGEST_WITH_LARGE_TILES = 128


def shared_bytes(head_dim: int, dtype: torch.dtype) -> int:
    """Dynamic shared memory of a block: weights (fp32 only), then what the larger of both kinds of tiles needs."""
    row_vectors = head_dim * dtype.itemsize // VECTOR_BYTES
    num_keys = next(keys for keys, limit in ((32, 16), (16, 32), (8, 64)) if row_vectors <= limit)
    tile = num_keys * row_vectors * VECTOR_BYTES
    total = SMALL_TILE_ROWS * max(32, head_dim) * 4
    small = NUM_WARPS * tile * (2 if tile > 6144 else 3) + total + 4 * 32 * 4
    large = 4 * tile + NUM_WARPS * total if head_dim <= _LARGEST_WITH_LARGE_TILES else 0
    weights = LARGE_TILE_ROWS * num_keys * 4 if dtype == torch.float32 else 0
    return weights + max(small, large)


SHARED_BYTES = {
    f"attention<{element}, {head_dim}>": shared_bytes(head_dim, dtype)
    for dtype, element in ELEMENTS.items()
    for head_dim in HEAD_DIMS
}


@dataclass(frozen=True)
class AttentionShape:
    """H, K, D and S of a model and its pool.

    Attributes:
        window: Latest positions that a token sees, itself included; 0 is all.
        soft_cap: Scores become soft_cap · tanh(score / soft_cap); 0 leaves them.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    window: int = 0
    soft_cap: float = 0.0


class PagedAttention:
    """Of any step: every row's bits depend on its position and keys alone. ValueError for shapes it has no kernel for.

    Args:
        backend: Where it runs.
        dtype: Of queries, keys, values and outputs.
        shape: The model's.
        partial_bytes: Memory for partial results: rows that do not fit are attended to by one block each.

    Attributes:
        planner: Makes the work lists that calls take.
    """

    def __init__(
        self, backend: Backend, dtype: torch.dtype, shape: AttentionShape, *, partial_bytes: int = PARTIAL_BYTES
    ) -> None:
        check_shape(shape)
        self._shared_bytes = shared_bytes(shape.head_dim, dtype)
        row_bytes = shape.num_kv_heads * (shape.head_dim + 2) * 4
        blocks = backend.num_multiprocessors * resident_blocks(self._shared_bytes, backend.max_shared_bytes)
        self.planner = WorkPlanner(
            group=shape.num_heads // shape.num_kv_heads,
            num_kv_heads=shape.num_kv_heads,
            window=shape.window,
            num_blocks=blocks,
            max_partial_rows=partial_bytes // row_bytes,
            large_tiles=shape.head_dim <= _LARGEST_WITH_LARGE_TILES,
        )
        rows = self.planner.max_partial_rows
        self._partials = (
            backend.empty((rows, shape.num_kv_heads, shape.head_dim), torch.float32),
            backend.empty((rows, shape.num_kv_heads, 2), torch.float32),
        )
        self._grid, self._combine_grid = (blocks,), (backend.num_multiprocessors * COMBINE_BLOCKS,)
        self._heads = np.int32(shape.num_heads), np.int32(shape.num_kv_heads)
        self._page_size, self._window = np.int32(shape.page_size), np.int32(shape.window)
        self._scales = _scales(shape)
        names = [f"{kernel}<{ELEMENTS[dtype]}, {shape.head_dim}>" for kernel in ("attention", "attention_combine")]
        self._attend, self._combine = backend.kernels(SOURCE, names)

    def __call__(  # noqa: PLR0913, PLR0917 - a kernel's arrays
        self,
        out: torch.Tensor,
        qkv: torch.Tensor,
        pool: torch.Tensor,
        page_tables: torch.Tensor,
        token_slots: torch.Tensor,
        items: torch.Tensor,
        num_items: torch.Tensor,
    ) -> None:
        """Attend to what the step's tokens see, their own keys and values included.

        Args:
            out: [T, H·D].
            qkv: [T, (H+2K)·D]; the queries are the first H·D of each row.
            pool: One layer's, [pages, 2, K, S, D].
            page_tables: int32 [slots, max_pages].
            token_slots: int32 [T]; -1: the token's row of `out` becomes zeros.
            items: int32 [max_items, 8]: the planner's work list.
            num_items: int32 [2]: the planner's counts.
        """
        counts = self._page_size, np.int32(pool.shape[0]), np.int32(page_tables.shape[1]), self._window
        arrays = out, *self._partials, qkv, pool, page_tables, items, num_items
        args = (*arrays, *self._heads, *counts, *self._scales)
        self._attend(self._grid, (NUM_THREADS,), args, shared_bytes=self._shared_bytes)
        lists = items, num_items, token_slots, np.int32(out.shape[0])
        self._combine(self._combine_grid, (NUM_THREADS,), (out, *self._partials, *lists, *self._heads))


def check_shape(shape: AttentionShape) -> None:
    """ValueError if there is no kernel for it."""
    if shape.head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim is {shape.head_dim}; attention has kernels for {', '.join(map(str, HEAD_DIMS))}")
    if shape.num_kv_heads < 1 or shape.num_heads < 1 or shape.num_heads % shape.num_kv_heads != 0:
        raise ValueError(f"num_heads is {shape.num_heads}: not a multiple of {shape.num_kv_heads} KV heads")
    if shape.page_size < 1:
        raise ValueError(f"page_size is {shape.page_size}; it must be at least 1")
    if shape.window < 0 or shape.soft_cap < 0:
        raise ValueError(f"window is {shape.window} and soft_cap {shape.soft_cap}; neither may be negative")


def resident_blocks(block_bytes: int, max_block_bytes: int) -> int:
    """Blocks of a multiprocessor, whose shared memory is what a block may have and 1 KB more; each block costs 1 KB.

    Registers allow two at least.
    """
    return max(1, min(2, (max_block_bytes + 1024) // (block_bytes + 1024)))


def _scales(shape: AttentionShape) -> tuple[np.float32, np.float32]:
    """What scores are multiplied with before exp2, and before tanh if there is a soft cap."""
    scale = 1 / math.sqrt(shape.head_dim)
    if shape.soft_cap == 0:
        return np.float32(scale * math.log2(math.e)), np.float32(0)
    return np.float32(shape.soft_cap * math.log2(math.e)), np.float32(scale / shape.soft_cap)
