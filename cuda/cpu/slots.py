"""Row slots of the CPU device: the tokens, page table and sampling parameters of each running request, as flat arrays.

Kernels read these arrays by address. Owns who holds a slot; never decides anything. The layout of a slot's numbers is
`cuda.cpu.kernels.sample`'s.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from cuda.cpu.kernels import sample as layout
from cuda.cpu.kernels.memory import address
from protocol.step import RowStart, StepRow


class SlotTable:
    """`max_running` slots of up to `max_model_len` tokens; memory is touched only as far as it is used."""

    def __init__(self, max_running: int, max_model_len: int, page_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.tokens = np.zeros((max_running, max_model_len + 2), np.int32)
        self.page_tables = np.zeros((max_running, -(-max_model_len // page_size) + 1), np.int32)
        self.reals = np.zeros((max_running, layout.NUM_REALS), np.float64)
        self.integers = np.zeros((max_running, layout.NUM_INTEGERS), np.int64)
        self._page_size = page_size
        self._eos_token_ids = eos_token_ids
        self._num_pages = [0] * max_running
        self._holders: list[tuple[int, int]] = [(0, 0)] * max_running
        self._lists: list[tuple[npt.NDArray[Any], ...]] = [()] * max_running  # keeps what `integers` points at

    def start(self, row: RowStart, vocab_size: int) -> None:
        """Give a slot to a request."""
        slot, sampling = row.slot, row.sampling
        self.tokens[slot, : len(row.tokens)] = row.tokens
        self._num_pages[slot] = 0
        self._holders[slot] = (row.request, row.incarnation)
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
        held = self._num_pages[row.slot]
        if row.new_pages:
            self.page_tables[row.slot, held : held + len(row.new_pages)] = row.new_pages
            held = self._num_pages[row.slot] = held + len(row.new_pages)
        if held * self._page_size < row.start + row.count:
            raise ValueError(f"slot {row.slot} computes up to token {row.start + row.count} with {held} pages")

    def holder(self, slot: int) -> tuple[int, int]:
        """(request, incarnation) that holds a slot."""
        return self._holders[slot]
