"""Row slots of the gpu device: tokens, page table and sampling parameters of each running request, in device memory.

The host keeps only `rows`: what it needs to plan copies and to name results. Tokens that are drawn never leave the
device to come back: the sampler writes them into `tokens` itself. Never decides anything.
"""

from collections.abc import Sequence

import numpy as np
import torch

from cuda.devices.device import DeviceConfig
from cuda.devices.rows import Ints, RowSlots
from cuda.kernels.backend import Backend
from cuda.kernels.sample import SamplerTables, SlotSettings
from protocol.step import RowStart, StepRow


class GpuSlots:
    """`max_running` slots of up to `max_model_len` tokens."""

    def __init__(
        self, backend: Backend, tables: SamplerTables, eos_token_ids: Sequence[int], config: DeviceConfig
    ) -> None:
        max_running, max_pages = config.max_running, -(-config.max_model_len // config.page_size) + 1
        self.tokens = backend.zeros((max_running, config.max_model_len + 2), torch.int32)
        self.page_tables = backend.zeros((max_running, max_pages), torch.int32)
        self._backend = backend
        self._tables = tables
        self._eos_token_ids = eos_token_ids
        self.rows = RowSlots(max_running, config.page_size)

    def start(self, row: RowStart, staged: torch.Tensor) -> None:
        """Give a slot to a request; its tokens travel through `staged`, pinned memory of as many int32."""
        num_tokens = len(row.tokens)
        staged.numpy()[:] = row.tokens
        self._backend.copy(self.tokens[row.slot, :num_tokens], staged)
        self._tables.start(row.slot, _settings(row, self._eos_token_ids))
        self.rows.start(row)

    def new_pages(self, rows: Sequence[StepRow]) -> Ints:
        """Entries [n, 3] = (slot, column, page) that the rows append to their page tables.

        ValueError if a row's pages do not hold what it computes.
        """
        updates: list[tuple[int, int, int]] = []
        for row in rows:
            held = self.rows.add_pages(row)
            if row.new_pages:
                updates += [(row.slot, held + index, page) for index, page in enumerate(row.new_pages)]
        return np.array(updates, np.int32).reshape(-1, 3)


def _settings(row: RowStart, eos_token_ids: Sequence[int]) -> SlotSettings:
    sampling = row.sampling
    return SlotSettings(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed or 0,
        min_tokens=sampling.min_tokens,
        logprobs=-1 if sampling.logprobs is None else sampling.logprobs,
        num_prompt_tokens=row.num_prompt_tokens,
        bias=sampling.logit_bias,
        banned=(*eos_token_ids, *sampling.stop_token_ids) if sampling.min_tokens else (),
    )
