"""What the CPU device's kernels read of requests: row slots, and one pass over them, as flat arrays at fixed addresses.

A slot is the tokens, page table and sampling parameters of a running request; `cuda.cpu.kernels.sample` lays out its
numbers. A pass is tokens, attention items and sampled rows: the recorded program points at them, so filling them is all
that a step does before it runs. Never decides anything.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cuda.cpu.kernels import sample as layout
from cuda.cpu.kernels.attention import ITEM_FIELDS, MAX_QUERIES
from cuda.cpu.kernels.memory import address, aligned_zeros
from cuda.devices.rows import Results, RowSlots, fill_tokens
from protocol.step import RowStart, StepRow


class SlotTable:
    """`max_running` slots of up to `max_model_len` tokens; memory is touched only as far as it is used."""

    def __init__(self, max_running: int, max_model_len: int, page_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.tokens = np.zeros((max_running, max_model_len + 2), np.int32)
        self.page_tables = np.zeros((max_running, -(-max_model_len // page_size) + 1), np.int32)
        self.reals = np.zeros((max_running, layout.NUM_REALS), np.float64)
        self.integers = np.zeros((max_running, layout.NUM_INTEGERS), np.int64)
        self.rows = RowSlots(max_running, page_size)
        self._eos_token_ids = eos_token_ids
        self._lists: list[tuple[npt.NDArray[Any], ...]] = [()] * max_running  # keeps what `integers` points at

    def start(self, row: RowStart, vocab_size: int) -> None:
        """Give a slot to a request."""
        slot, sampling = row.slot, row.sampling
        self.tokens[slot, : len(row.tokens)] = row.tokens
        self.rows.start(row)
        reals, integers = self.reals[slot], self.integers[slot]
        reals[layout.TEMPERATURE] = sampling.temperature
        reals[layout.TOP_P] = sampling.top_p
        reals[layout.MIN_P] = sampling.min_p
        reals[layout.PRESENCE] = sampling.presence_penalty
        reals[layout.FREQUENCY] = sampling.frequency_penalty
        reals[layout.REPETITION] = sampling.repetition_penalty
        bias = {token: value for token, value in sampling.logit_bias.items() if token < vocab_size}
        ids, values = np.array(list(bias), np.int32), np.array(list(bias.values()), np.float32)
        ends = {*self._eos_token_ids, *sampling.stop_token_ids} if sampling.min_tokens else ()
        banned = np.array([token for token in ends if token < vocab_size], np.int32)
        integers[layout.TOP_K] = sampling.top_k
        integers[layout.SEED] = sampling.seed or 0
        integers[layout.MIN_TOKENS] = sampling.min_tokens
        integers[layout.LOGPROBS] = -1 if sampling.logprobs is None else sampling.logprobs
        integers[layout.PROMPT] = row.num_prompt_tokens
        integers[layout.BIAS_IDS], integers[layout.BIAS_VALUES] = address(ids), address(values)
        integers[layout.NUM_BIAS] = len(ids)
        integers[layout.BANNED], integers[layout.NUM_BANNED] = address(banned), len(banned)
        self._lists[slot] = (ids, values, banned)

    def add_pages(self, row: StepRow) -> None:
        """Append a row's new pages; ValueError if its pages do not hold what it computes."""
        held = self.rows.add_pages(row)
        if row.new_pages:
            self.page_tables[row.slot, held : held + len(row.new_pages)] = row.new_pages


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
        self.results: Results[npt.NDArray[Any]] = Results(
            aligned_zeros(max_rows, np.int32),
            aligned_zeros(max_rows, np.float32),
            aligned_zeros((max_rows, layout.MAX_TOP), np.int32),
            aligned_zeros((max_rows, layout.MAX_TOP), np.float32),
        )

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
        total = fill_tokens(self.slots, self.positions, (slots, starts, counts))
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
