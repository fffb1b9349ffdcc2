"""Host side of `activation.cu`: the gate of a feed-forward layer."""

from typing import Literal

import numpy as np
import torch

from cuda.kernels.backend import Backend
from cuda.kernels.elements import ELEMENTS, vectors_of_a_row

SOURCE = "activation.cu"
KINDS = {"silu": "Silu", "gelu": "Gelu"}
NAMES = tuple(f"gated_activation<{element}, {kind}>" for element in ELEMENTS.values() for kind in KINDS.values())
MAX_THREADS = 256


class GatedActivation:
    """Of rows [T, 2 · num_columns]. ValueError if `num_columns` is not a whole number of 16-byte vectors."""

    def __init__(self, backend: Backend, dtype: torch.dtype, kind: Literal["silu", "gelu"], num_columns: int) -> None:
        num_vectors = vectors_of_a_row(num_columns, dtype)
        self._num_threads = min(MAX_THREADS, -(-num_vectors // 32) * 32)
        self._num_blocks = -(-num_vectors // self._num_threads)
        self._num_columns = np.int32(num_columns)
        (self._launch,) = backend.kernels(SOURCE, [f"gated_activation<{ELEMENTS[dtype]}, {KINDS[kind]}>"])

    def __call__(self, out: torch.Tensor, gate_up: torch.Tensor) -> None:
        """Gate the first half of `gate_up` [T, 2F] and multiply by the second; `gelu` is the tanh form. Out: [T, F]."""
        grid = out.shape[0], self._num_blocks
        self._launch(grid, (self._num_threads,), (out, gate_up, self._num_columns))
