"""Rows of a plan laid out in a stage's arrays: tokens one after another, padded where a captured graph wants it.

The host's work in every step: a few NumPy operations, whatever the number of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from cuda.gpu.batch import BatchArrays, Ints
from cuda.kernels.attention_plan import WorkPlanner
from protocol.step import StepRow


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


def padded_rows(num_rows: int, max_rows: int) -> int:
    """How many rows a decode pass of `num_rows` is padded to: 1, 2, 4, 8, 16, 24, ... but no more than `max_rows`."""
    size = 1 << (num_rows - 1).bit_length() if num_rows <= 8 else -(-num_rows // 8) * 8
    return min(size, max_rows)


def fill(batch: BatchArrays[Ints], rows: Sequence[StepRow], planner: WorkPlanner) -> Extent:
    """Write everything but the page updates of a pass."""
    segments = [row.slot for row in rows], [row.start for row in rows], [row.count for row in rows]
    slots, starts, counts = (np.array(values, np.int32) for values in segments)
    samples = [row.samples for row in rows]
    ends = np.cumsum(counts, dtype=np.int32)
    total = int(ends[-1])
    is_decode = total == len(rows)
    if is_decode:
        num_tokens = padded_rows(total, len(batch.sampled_slots))
        drawing = np.arange(total)
        places = tuple(compress(range(total), samples))
    else:
        num_tokens = total
        drawing = np.flatnonzero(samples)
        places = tuple(range(len(drawing)))
    _fill_tokens(batch, slots, starts, counts, num_tokens)
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


def _fill_tokens(batch: BatchArrays[Ints], slots: Ints, starts: Ints, counts: Ints, num_tokens: int) -> None:
    total = int(counts.sum())
    firsts = np.cumsum(counts) - counts
    batch.token_slots[:total] = np.repeat(slots, counts)
    batch.token_positions[:total] = np.arange(total) + np.repeat(starts - firsts, counts)
    batch.token_slots[total:num_tokens] = -1
    batch.token_positions[total:num_tokens] = 0
