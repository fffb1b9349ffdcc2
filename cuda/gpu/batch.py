"""What one pass tells the device and what it answers: the layout of both, the same on the device and on the host.

A pass is written into pinned memory (`stages`), tokens one after another, padded where a captured graph wants it, by a
few NumPy operations whatever the number of rows; it travels in one copy. Kernels and captured graphs know the device's
arrays, at fixed addresses, only. Never knows what a slot holds: `slots` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, pairwise
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from cuda.devices.rows import Array, Ints, Results, fill_tokens
from cuda.kernels.attention_plan import ITEM_FIELDS, WorkPlanner
from cuda.kernels.sample import MAX_ALTERNATIVES
from protocol.step import StepRow

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
class Extent:
    """How much of the arrays a pass uses, and what it answers."""

    num_tokens: int
    """T, padding included."""
    num_rows: int
    """R, padding included."""
    num_items: int
    """Rows of the work list."""
    sampling: tuple[StepRow, ...]
    """The rows that sample."""
    places: tuple[int, ...]
    """Where among R each of them is."""
    is_decode: bool
    """One token a row, so that R = T and token i is row i: what graphs are captured for."""


def fill(batch: BatchArrays[Ints], rows: Sequence[StepRow], planner: WorkPlanner) -> Extent:
    """Write everything but the page updates of a pass."""
    segments = [row.slot for row in rows], [row.start for row in rows], [row.count for row in rows]
    slots, starts, counts = (np.array(values, np.int32) for values in segments)
    samples = [row.samples for row in rows]
    ends = np.cumsum(counts, dtype=np.int32)
    total = fill_tokens(batch.token_slots, batch.token_positions, (slots, starts, counts))
    is_decode = total == len(rows)
    if is_decode:
        num_tokens = padded_rows(total, len(batch.sampled_slots))
        drawing = np.arange(total)
        places = tuple(compress(range(total), samples))
    else:
        num_tokens = total
        drawing = np.flatnonzero(samples)
        places = tuple(range(len(drawing)))
    batch.token_slots[total:num_tokens] = -1
    batch.token_positions[total:num_tokens] = 0
    num_rows = num_tokens if is_decode else len(drawing)
    num_drawing = len(drawing)
    batch.sampled_tokens[:num_drawing] = ends[drawing] - 1
    batch.sampled_slots[:num_drawing] = np.where(samples, slots, -1)[drawing]
    batch.sampled_positions[:num_drawing] = (starts + counts)[drawing]
    batch.sampled_tokens[num_drawing:num_rows] = -1
    batch.sampled_slots[num_drawing:num_rows] = -1
    batch.sampled_positions[num_drawing:num_rows] = 0
    items, batch.num_items[:] = planner.work_items(*segments)
    batch.items[: len(items)] = items
    return Extent(num_tokens, num_rows, len(items), tuple(compress(rows, samples)), places, is_decode)


def padded_rows(num_rows: int, max_rows: int) -> int:
    """How many rows a decode pass of `num_rows` is padded to: 1, 2, 4, 8, 16, 24, ... but no more than `max_rows`."""
    size = 1 << (num_rows - 1).bit_length() if num_rows <= 8 else -(-num_rows // 8) * 8
    return min(size, max_rows)


def num_result_words(max_rows: int) -> int:
    """int32 and float32 of all `Results` of a pass."""
    return max_rows * (2 + 2 * MAX_ALTERNATIVES)


def results_over(flat: Any, max_rows: int, real: Any) -> Results[Any]:  # noqa: ANN401 - a NumPy array or a tensor
    """Views of int32 `flat`; `real` is the library's name for float32."""
    ends = [max_rows, 2 * max_rows, (2 + MAX_ALTERNATIVES) * max_rows]
    tokens, logprobs, ids, values = (flat[start:end] for start, end in zip([0, *ends], [*ends, None], strict=True))
    top_ids, top_logprobs = ids.reshape(-1, MAX_ALTERNATIVES), values.view(real).reshape(-1, MAX_ALTERNATIVES)
    return Results(tokens, logprobs.view(real), top_ids, top_logprobs)
