"""The gpu device's ops for `cuda.models.decoder.forward`: each call queues its kernel at once, or is captured.

Owns the activation buffers, which every layer reuses; a value is a view of the rows that the pass has. Everything that
changes between steps is read from the device's own arrays, so a captured pass stays right. Read `kernels` next.
Where ranks share the model, parts of sums are written where all ranks see them, and added up by whoever takes the sum.
"""

import torch

from cuda.collectives.exchange import Exchange
from cuda.devices.rows import Results
from cuda.gpu.batch import BatchArrays, BatchShape, num_result_words, results_over
from cuda.gpu.kernels import GpuMatrix, Kernels
from cuda.gpu.slots import GpuSlots
from cuda.kernels.backend import Backend
from cuda.models.spec import ModelSpec


class GpuState:
    """What ops work on besides weights and activations, all of it in device memory.

    Attributes:
        words, result_words: What passes are told and answer, as `batch` and `results` divide it.
        pools: One a layer, `[page, 2, kv_head, slot, head_dim]`.
        rope_table: [positions, D] float32: see `cuda.models.rope`.
        ranks: The group that shares the model, if there is one.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is a thing of its own
        self,
        backend: Backend,
        shape: BatchShape,
        slots: GpuSlots,
        pools: list[torch.Tensor],
        rope_table: torch.Tensor,
        ranks: Exchange | None,
    ) -> None:
        self.shape = shape
        self.words = backend.zeros((shape.begins[-1],), torch.int32)
        self.batch: BatchArrays[torch.Tensor] = BatchArrays.over(self.words, shape)
        self.result_words = backend.zeros((num_result_words(shape.max_rows),), torch.int32)
        self.results: Results[torch.Tensor] = results_over(self.result_words, shape.max_rows, torch.float32)
        self.slots = slots
        self.pools = pools
        self.rope_table = rope_table
        self.ranks = ranks


class GpuBuffers:
    """Activations of at most T tokens and R sampled rows; ops use the first rows."""

    def __init__(  # noqa: PLR0913, PLR0917 - what sizes them
        self,
        backend: Backend,
        spec: ModelSpec,
        num_logits: int,
        dtype: torch.dtype,
        max_tokens: int,
        max_rows: int,
    ) -> None:
        attended = spec.num_heads * spec.head_dim
        qkv = attended + 2 * spec.num_kv_heads * spec.head_dim
        widest = max(qkv, spec.hidden_size, 2 * spec.intermediate_size)
        self.residual = backend.empty((max_tokens, spec.hidden_size), dtype)
        self.normed = backend.empty((max_tokens, spec.hidden_size), dtype)
        self.linear_out = backend.empty((max_tokens * widest,), dtype)
        self.attended = backend.empty((max_tokens, attended), dtype)
        self.activated = backend.empty((max_tokens, spec.intermediate_size), dtype)
        self.sampled = backend.empty((max_rows, spec.hidden_size), dtype)
        self.logits = backend.empty((max_rows, num_logits), torch.float32)


class GpuOps:
    """One pass of `num_tokens` tokens and `num_rows` sampled rows. See `Ops`."""

    def __init__(self, kernels: Kernels, state: GpuState, buffers: GpuBuffers, num_tokens: int, num_rows: int) -> None:
        self._kernels = kernels
        self._state = state
        self._buffers = buffers
        self._num_tokens = num_tokens
        self._num_rows = num_rows
        self._token_slots = state.batch.token_slots[:num_tokens]
        self._token_positions = state.batch.token_positions[:num_tokens]
        self._normed = buffers.normed[:num_tokens]
        self._attended = buffers.attended[:num_tokens]
        self._activated = buffers.activated[:num_tokens]

    def embed(self, embedding: GpuMatrix) -> torch.Tensor:
        """See `Ops`."""
        out, ranks, slots = self._buffers.residual[: self._num_tokens], self._state.ranks, self._state.slots
        mine = out if ranks is None else ranks.part(self._num_tokens)
        self._kernels.gather.embed(
            mine, embedding.weight, slots.tokens, self._token_slots, self._token_positions,
            first_token=embedding.first_row,
        )  # fmt: skip
        if ranks is not None:
            ranks.sum(out)
        return out

    def add_rms_norm(self, residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        if self._state.ranks is not None and delta is not None:  # it is this rank's part, where `linear` put it
            self._state.ranks.all_reduce_add_rms_norm(self._normed, residual, weight)
        else:
            self._kernels.add_rms_norm(self._normed, residual, delta, weight)
        return self._normed

    def linear(self, x: torch.Tensor, weight: GpuMatrix) -> torch.Tensor:
        """See `Ops`; of sampled rows: float32 logits."""
        num_rows, num_columns, ranks = x.shape[0], weight.weight.shape[0], self._state.ranks
        if x.data_ptr() == self._buffers.sampled.data_ptr():
            logits = self._buffers.logits[:num_rows]
            self._kernels.to_logits(logits, x, weight)
            return logits if ranks is None else ranks.gather_logits(logits)
        if ranks is not None and weight.is_part:
            out = ranks.part(num_rows)
        else:
            out = self._buffers.linear_out[: num_rows * num_columns].view(num_rows, num_columns)
        self._kernels.linear(out, x, weight)
        return out

    def rope_and_store(
        self, qkv: torch.Tensor, layer_index: int, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None
    ) -> torch.Tensor:
        """See `Ops`; queries stay where they are, the first H * D of each row of `qkv`."""
        state = self._state
        self._kernels.rope_and_store(
            qkv, state.pools[layer_index], state.slots.page_tables, self._token_slots, self._token_positions,
            state.rope_table, q_norm, k_norm,
        )  # fmt: skip
        return qkv

    def attention(self, queries: torch.Tensor, layer_index: int) -> torch.Tensor:
        """See `Ops`."""
        state = self._state
        self._kernels.attention(
            self._attended, queries, state.pools[layer_index], state.slots.page_tables, self._token_slots,
            state.batch.items, state.batch.num_items,
        )  # fmt: skip
        return self._attended

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        self._kernels.activation(self._activated, gate_up)
        return self._activated

    def sampled_rows(self, x: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        out = self._buffers.sampled[: self._num_rows]
        self._kernels.gather.take_rows(out, x, self._state.batch.sampled_tokens[: self._num_rows])
        return out

    def sample(self, logits: torch.Tensor) -> None:
        """See `Ops`."""
        rows = slice(self._num_rows)
        batch, results, slots = self._state.batch, self._state.results, self._state.slots
        self._kernels.sampler(
            logits, batch.sampled_slots[rows], batch.sampled_positions[rows], slots.tokens, results.tokens[rows],
            results.logprobs[rows], results.top_ids[rows], results.top_logprobs[rows],
        )  # fmt: skip
