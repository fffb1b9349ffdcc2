"""Queues a pass: what a stage says goes to the device in one copy, then the forward pass, then what it drew comes back.

Captured graphs and eager passes are the same calls over the same addresses.
"""

import torch

from cuda.backends.backend import Backend
from cuda.devices.gpu_fill import Extent
from cuda.devices.gpu_graphs import DecodeGraphs
from cuda.devices.gpu_kernels import Kernels
from cuda.devices.gpu_ops import GpuBuffers, GpuOps, GpuState
from cuda.devices.gpu_stages import Stage
from cuda.devices.gpu_weights import GpuWeights
from cuda.kernels.attention_plan import ITEM_FIELDS
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
        self._graphs: DecodeGraphs | None = None

    @property
    def logits(self) -> torch.Tensor:
        """[most R, V] float32; a pass writes its first rows."""
        ranks = self._state.ranks
        return self._buffers.logits if ranks is None else ranks.logits

    def capture(self) -> None:
        """Record the decode passes. Every kernel and library call must have run once before."""
        max_rows = self._state.shape.max_rows
        self._graphs = DecodeGraphs(self._backend, lambda num_rows: self.forward(num_rows, num_rows), max_rows)

    def queue(self, stage: Stage, extent: Extent, num_updates: int) -> None:
        """Queue a pass that `stage` describes, and the copy of what it draws into `stage.results`."""
        state = self._state
        num_words = self._items_begin + ITEM_FIELDS * extent.num_items
        self._backend.copy(state.words[:num_words], stage.words[:num_words])
        self._scatter(num_updates)
        if extent.is_decode and self._graphs is not None:
            self._graphs.launch(extent.num_tokens)
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
