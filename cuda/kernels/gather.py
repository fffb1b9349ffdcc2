"""Host side of `gather.cu`: rows looked up by token or by index, and single cells of an int32 table set."""

import numpy as np
import torch

from cuda.kernels.backend import Backend
from cuda.kernels.elements import ELEMENTS, vectors_of_a_row

SOURCE = "gather.cu"
NAMES = (*(f"{kernel}<{element}>" for kernel in ("embed", "take_rows") for element in ELEMENTS.values()), "scatter")
MAX_THREADS = 256


class Gather:
    """Rows of `num_columns`. ValueError if a row is not a whole number of 16-byte vectors."""

    def __init__(self, backend: Backend, dtype: torch.dtype, num_columns: int) -> None:
        self._block = (min(MAX_THREADS, -(-vectors_of_a_row(num_columns, dtype) // 32) * 32),)
        self._num_columns = np.int32(num_columns)
        element = ELEMENTS[dtype]
        self._embed, self._take_rows = backend.kernels(SOURCE, [f"embed<{element}>", f"take_rows<{element}>"])

    def embed(  # noqa: PLR0913 - each is a thing of its own
        self,
        out: torch.Tensor,
        table: torch.Tensor,
        tokens: torch.Tensor,
        token_slots: torch.Tensor,
        token_positions: torch.Tensor,
        *,
        first_token: int = 0,
    ) -> None:
        """out[t] = table[tokens[token_slots[t], token_positions[t]] - first_token]; zeros where there is none.

        Shapes: out [T, E], table [V, E], tokens [slots, stride] int32, both lists [T] int32.
        """
        sizes = np.int32(first_token), np.int32(table.shape[0]), self._num_columns
        pool = tokens, np.int32(tokens.shape[0]), np.int32(tokens.shape[1])
        self._embed((out.shape[0],), self._block, (out, table, *sizes, *pool, token_slots, token_positions))

    def take_rows(self, out: torch.Tensor, x: torch.Tensor, indexes: torch.Tensor) -> None:
        """out[r] = x[indexes[r]] for out [R, E], x [T, E], indexes [R] int32; zeros for an index outside x."""
        self._take_rows((out.shape[0],), self._block, (out, x, np.int32(x.shape[0]), self._num_columns, indexes))


class Scatter:
    """Sets cells of an int32 table."""

    def __init__(self, backend: Backend) -> None:
        (self._scatter,) = backend.kernels(SOURCE, ["scatter"])

    def __call__(self, table: torch.Tensor, updates: torch.Tensor) -> None:
        """table[row, column] = value for each (row, column, value) of `updates` [n, 3]; no cell twice.

        Updates outside of the table do nothing; row -1 marks padding.
        """
        sizes = np.int32(table.shape[0]), np.int32(table.shape[1])
        grid = (-(-updates.shape[0] // MAX_THREADS),)
        self._scatter(grid, (MAX_THREADS,), (table, *sizes, updates, np.int32(updates.shape[0])))
