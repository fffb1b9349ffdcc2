"""What one pass tells the device and what it answers: the layout of both, the same on the device and on the host.

A pass is written into pinned memory (`stages`) and travels in one copy; kernels and captured graphs know the
device's arrays, at fixed addresses, only. Never knows what a slot holds: `slots` does.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from cuda.kernels.attention_plan import ITEM_FIELDS
from cuda.kernels.sample import MAX_ALTERNATIVES

Array = TypeVar("Array")
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
UPDATE_FIELDS = 3
ALIGNMENT = 4
"""int32 at whose multiples arrays begin: 16 bytes."""


@dataclass(frozen=True)
class BatchShape:
    """Most of everything in one pass."""

    max_tokens: int
    """T."""
    max_rows: int
    """R."""
    max_items: int
    """Of attention's work list."""
    max_updates: int
    """Page-table entries."""

    @property
    def begins(self) -> list[int]:
        """Where each of `BatchArrays` begins, in int32, and where the last one ends."""
        rows, tokens = self.max_rows, self.max_tokens
        sizes = [2, rows, rows, rows, tokens, tokens, UPDATE_FIELDS * self.max_updates, ITEM_FIELDS * self.max_items]
        return [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]


@dataclass(frozen=True)
class BatchArrays(Generic[Array]):
    """Parts of one flat array, in this order; what is used least comes last, so that a copy may end early."""

    num_items: Array
    """[2]: what the work list holds of each kind."""
    sampled_tokens: Array
    """[R]: index among T of the row's last token; -1 is padding."""
    sampled_slots: Array
    """[R]; -1: nothing is drawn."""
    sampled_positions: Array
    """[R]: index that the drawn token will have."""
    token_slots: Array
    """[T]; -1 is padding."""
    token_positions: Array
    """[T]."""
    updates: Array
    """[U, 3]: slot, column of its page table, page."""
    items: Array
    """[I, fields of an item]."""

    @classmethod
    def over(cls, flat: Any, shape: BatchShape) -> "BatchArrays[Any]":  # noqa: ANN401 - a NumPy array or a tensor
        """Views of `flat`, of as many int32 as `shape` says."""
        rows, tokens = shape.max_rows, shape.max_tokens
        parts = [flat[begin:end] for begin, end in pairwise(shape.begins)]
        return cls(
            num_items=parts[0][:2],
            sampled_tokens=parts[1][:rows],
            sampled_slots=parts[2][:rows],
            sampled_positions=parts[3][:rows],
            token_slots=parts[4][:tokens],
            token_positions=parts[5][:tokens],
            updates=parts[6][: UPDATE_FIELDS * shape.max_updates].reshape(-1, UPDATE_FIELDS),
            items=parts[7].reshape(-1, ITEM_FIELDS),
        )


@dataclass(frozen=True)
class Results(Generic[Array]):
    """What a pass draws."""

    tokens: Array
    """[R] int32."""
    logprobs: Array
    """[R] float32."""
    top_ids: Array
    """[R, 20] int32."""
    top_logprobs: Array
    """[R, 20] float32."""

    @staticmethod
    def num_words(max_rows: int) -> int:
        """int32 and float32 of all arrays."""
        return max_rows * (2 + 2 * MAX_ALTERNATIVES)

    @classmethod
    def over(cls, flat: Any, max_rows: int, real: Any) -> "Results[Any]":  # noqa: ANN401 - a NumPy array or a tensor
        """Views of int32 `flat`; `real` is the library's name for float32."""
        ends = [max_rows, 2 * max_rows, (2 + MAX_ALTERNATIVES) * max_rows]
        tokens, logprobs, ids, values = (flat[start:end] for start, end in zip([0, *ends], [*ends, None], strict=True))
        return cls(
            tokens,
            logprobs.view(real),
            ids.reshape(-1, MAX_ALTERNATIVES),
            values.view(real).reshape(-1, MAX_ALTERNATIVES),
        )
