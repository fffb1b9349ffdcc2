"""Host side of `rope_and_store.cu`: norms of query and key heads, rotary positions, the write of keys and values."""

import numpy as np
import torch

from cuda.kernels.attention import AttentionShape
from cuda.kernels.backend import Backend
from cuda.kernels.elements import ELEMENTS, VECTOR_BYTES

SOURCE = "rope_and_store.cu"
NAMES = tuple(f"rope_and_store<{element}>" for element in ELEMENTS.values())
NUM_THREADS = 128


class RopeAndStore:
    """Of one step's tokens. ValueError if half a head's row is not a whole number of 16-byte vectors, or too long."""

    def __init__(self, backend: Backend, dtype: torch.dtype, shape: AttentionShape, eps: float) -> None:
        num_lanes = lanes_of_a_row(shape.head_dim, dtype)
        num_rows = shape.num_heads + 2 * shape.num_kv_heads
        self._num_blocks = -(-num_rows * num_lanes // NUM_THREADS)
        self._sizes = tuple(map(np.int32, (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.page_size)))
        self._num_lanes, self._eps = np.int32(num_lanes), np.float32(eps)
        (self._launch,) = backend.kernels(SOURCE, [f"rope_and_store<{ELEMENTS[dtype]}>"])

    def __call__(  # noqa: PLR0913, PLR0917 - a kernel's arrays
        self,
        qkv: torch.Tensor,
        pool: torch.Tensor,
        page_tables: torch.Tensor,
        token_slots: torch.Tensor,
        token_positions: torch.Tensor,
        rope_table: torch.Tensor,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
    ) -> None:
        """Rotate q in place in `qkv` [T, (H+2K)·D]; rotated k, and v, go to their places in `pool` [pages, 2, K, S, D].

        Args:
            qkv: Heads of q, then k, then v.
            pool: One layer's.
            page_tables: int32 [slots, max_pages].
            token_slots: int32 [T]; -1: the token is left alone.
            token_positions: int32 [T].
            rope_table: float32 [positions, D], cosines then sines; see `cuda.models.rope`.
            q_norm: [D], or None in a model without.
            k_norm: [D], or None with `q_norm`.
        """
        counts = np.int32(pool.shape[0]), np.int32(page_tables.shape[1]), self._num_lanes, self._eps
        arrays = qkv, pool, page_tables, token_slots, token_positions, rope_table, q_norm, k_norm
        self._launch((qkv.shape[0], self._num_blocks), (NUM_THREADS,), (*arrays, *self._sizes, *counts))


def lanes_of_a_row(head_dim: int, dtype: torch.dtype) -> int:
    """Lanes that share a head's row: a power of two, with a vector of each half for each lane."""
    half_bytes = head_dim * dtype.itemsize // 2
    if head_dim < 1 or head_dim * dtype.itemsize % (2 * VECTOR_BYTES) != 0:
        raise ValueError(f"head_dim is {head_dim}: half a head of {dtype} must be a multiple of {VECTOR_BYTES} bytes")
    num_vectors = half_bytes // VECTOR_BYTES
    if num_vectors > 32:
        raise ValueError(f"head_dim is {head_dim}; the limit for {dtype} is {64 * VECTOR_BYTES // dtype.itemsize}")
    return 1 << (num_vectors - 1).bit_length()
