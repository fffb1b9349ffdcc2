"""What one pass tells the device and what it answers: the layout of both, the same on the device and on the host.

A pass is written into pinned memory (`gpu_stages`) and travels in one copy; kernels and captured graphs know the
device's arrays, at fixed addresses, only. Never knows what a slot holds: `gpu_slots` does.
"""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from cuda.kernels.attention_plan import ITEM_FIELDS
from cuda.kernels.sample import MAX_ALTERNATIVES

Array = TypeVar("Array")
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
HEADER = 4
"""int32 before the arrays of rows."""
UPDATE_FIELDS = 3


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
    def num_words(self) -> int:
        """int32 of all arrays of `BatchArrays`."""
        return self.words_with(self.max_items)

    def words_with(self, num_items: int) -> int:
        """How many come before the end of that many items."""
        fixed = HEADER + 3 * self.max_rows + 2 * self.max_tokens + UPDATE_FIELDS * self.max_updates
        return fixed + ITEM_FIELDS * num_items


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
        """Views of `flat`."""
        rows, tokens = shape.max_rows, shape.max_tokens
        sizes = [HEADER, rows, rows, rows, tokens, tokens, UPDATE_FIELDS * shape.max_updates]
        ends = np.cumsum(sizes).tolist()
        parts = [flat[start:end] for start, end in zip([0, *ends], [*ends, shape.num_words], strict=True)]
        updates, items = parts[6].reshape(-1, UPDATE_FIELDS), parts[7].reshape(-1, ITEM_FIELDS)
        return cls(parts[0][:2], parts[1], parts[2], parts[3], parts[4], parts[5], updates, items)


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
