"""One pass of the CPU device as flat arrays at fixed addresses: its tokens, attention items and sampled rows.

The recorded program points at these arrays, so filling them is all that a step does before it runs.
"""

from collections.abc import Sequence

import numpy as np

from cuda.cpu.kernels.attention import ITEM_FIELDS, MAX_QUERIES
from cuda.cpu.kernels.memory import address, aligned_zeros
from cuda.cpu.kernels.sample import MAX_TOP
from protocol.step import StepRow


class Batch:
    """Room for `max_tokens` tokens and `max_rows` sampled rows."""

    def __init__(self, max_tokens: int, max_rows: int, group: int) -> None:
        self._item_tokens = max(1, MAX_QUERIES // group)
        self._counts = aligned_zeros(3, np.int64)
        self.slots = aligned_zeros(max_tokens, np.int32)
        self.positions = aligned_zeros(max_tokens, np.int32)
        self.items = aligned_zeros((max_tokens, ITEM_FIELDS), np.int32)
        self.sampled_tokens = aligned_zeros(max_rows, np.int32)
        self.sampled_slots = aligned_zeros(max_rows, np.int32)
        self.sampled_positions = aligned_zeros(max_rows, np.int32)
        self.drawn = aligned_zeros(max_rows, np.int32)
        self.logprobs = aligned_zeros(max_rows, np.float32)
        self.top_ids = aligned_zeros((max_rows, MAX_TOP), np.int32)
        self.top_logprobs = aligned_zeros((max_rows, MAX_TOP), np.float32)

    @property
    def num_tokens_at(self) -> int:
        """Address of T."""
        return address(self._counts)

    @property
    def num_items_at(self) -> int:
        """Address of the number of attention items."""
        return address(self._counts) + 8

    @property
    def num_sampled_at(self) -> int:
        """Address of R."""
        return address(self._counts) + 16

    @property
    def num_sampled(self) -> int:
        """R."""
        return int(self._counts[2])

    def fill(self, rows: Sequence[StepRow]) -> None:
        """Lay out the tokens of `rows` one after another."""
        slots = np.array([row.slot for row in rows])
        starts = np.array([row.start for row in rows])
        counts = np.array([row.count for row in rows])
        ends = np.cumsum(counts)
        total = int(ends[-1])
        self.slots[:total] = np.repeat(slots, counts)
        self.positions[:total] = np.arange(total) + np.repeat(starts - (ends - counts), counts)
        items = [
            (first + done, min(self._item_tokens, row.count - done), row.slot, row.start + done)
            for row, first in zip(rows, (ends - counts).tolist(), strict=True)
            for done in range(0, row.count, self._item_tokens)
        ]
        items.sort(key=lambda item: -item[1] * (item[3] + item[1]))  # long work first: threads end together
        self.items[: len(items)] = items
        sampled = np.flatnonzero([row.samples for row in rows])
        self.sampled_tokens[: len(sampled)] = ends[sampled] - 1
        self.sampled_slots[: len(sampled)] = slots[sampled]
        self.sampled_positions[: len(sampled)] = starts[sampled] + counts[sampled]
        self._counts[:] = total, len(items), len(sampled)
