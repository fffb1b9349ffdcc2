"""Queues a pass: what a stage says goes to the device in one copy, then the forward pass, then what it drew comes back.

Captured graphs and eager passes are the same calls over the same addresses.
"""

from functools import partial

import torch

from cuda.gpu.batch import Extent, padded_rows
from cuda.gpu.kernels import GpuWeights, Kernels
from cuda.gpu.ops import GpuBuffers, GpuOps, GpuState
from cuda.gpu.stages import Stage
from cuda.kernels.attention_plan import ITEM_FIELDS
from cuda.kernels.backend import Backend, Graph
from cuda.models.decoder import forward


class PassRunner:
    """Graphs exist once `capture` has been called."""

    def __init__(
        self, backend: Backend, weights: GpuWeights, kernels: Kernels, buffers: GpuBuffers, state: GpuState
    ) -> None:
        self._backend = backend
        self._weights = weights
        self._kernels = kernels
        self._buffers = buffers
        self._state = state
        self._items_begin = state.shape.begins[-2]
        self._graphs: dict[int, Graph] = {}
        """Decode passes, by their number of rows."""

    def capture(self) -> None:
        """Record decode passes of every padded number of rows, so that the host queues one launch and not hundreds.

        Every kernel and library call must have run once before. Recorded later, at its first use, a size would stall
        everybody's next token, and could fail then.
        """
        max_rows = self._state.shape.max_rows
        sizes = sorted({padded_rows(num_rows, max_rows) for num_rows in range(1, max_rows + 1)}, reverse=True)
        self._graphs = {size: self._backend.capture(partial(self.forward, size, size)) for size in sizes}

    def queue(self, stage: Stage, extent: Extent, num_updates: int) -> None:
        """Queue a pass that `stage` describes, and the copy of what it draws into `stage.results`."""
        state = self._state
        num_words = self._items_begin + ITEM_FIELDS * extent.num_items
        self._backend.copy(state.words[:num_words], stage.words[:num_words])
        self._scatter(num_updates)
        if extent.is_decode and self._graphs:
            self._graphs[extent.num_tokens].launch()
        else:
            self.forward(extent.num_tokens, extent.num_rows)
        if extent.sampling:
            self._backend.copy(stage.result_words, state.result_words)

    def queue_updates(self, stage: Stage, num_updates: int) -> None:
        """Queue page-table updates of `stage` alone."""
        self._backend.copy(self._state.batch.updates[:num_updates], stage.updates[:num_updates])
        self._scatter(num_updates)

    def forward(self, num_tokens: int, num_rows: int) -> torch.Tensor:
        """Queue the forward pass of what the device's arrays say; returns the logits [R, V]."""
        return forward(GpuOps(self._kernels, self._state, self._buffers, num_tokens, num_rows), self._weights)

    def _scatter(self, num_updates: int) -> None:
        if num_updates:
            self._kernels.scatter(self._state.slots.page_tables, self._state.batch.updates[:num_updates])
