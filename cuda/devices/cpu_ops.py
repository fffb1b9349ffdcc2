"""The CPU's ops for `cuda.models.decoder.forward`: each call is written down as one instruction of a program.

Owns the activation buffers, which every layer reuses. A handle is where a buffer lies and how its rows are counted.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cuda.devices.cpu_batch import Batch
from cuda.devices.cpu_slots import SlotTable
from cuda.kernels import cpu_program as program
from cuda.kernels.cpu_memory import address, aligned_zeros
from cuda.kernels.cpu_pack import Packed
from cuda.kernels.cpu_tile import PANEL
from cuda.models.spec import ModelSpec

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Handle:
    """Activations in a buffer."""

    at: int
    """Address."""
    width: int
    """Values of a row."""
    rows_at: int
    """Address of the number of rows."""

    @property
    def stride(self) -> int:
        """Bytes from row to row: whole panels."""
        return -(-self.width // PANEL) * PANEL * 4


@dataclass(frozen=True)
class CpuMatrix:
    """A packed weight [N, K] and its bias [N], padded to whole panels."""

    weight: Packed
    bias: Floats | None


@dataclass(frozen=True)
class CpuState:
    """What ops point at besides weights."""

    spec: ModelSpec
    batch: Batch
    slots: SlotTable
    pools: list[npt.NDArray[np.uint8]]
    """One a layer, `[page, 2, kv_head, slot, head_dim]`."""
    shape: npt.NDArray[np.int64]
    """See `cuda.kernels.cpu_attention`."""
    rope_table: Floats


class CpuOps:
    """Records into `recorder`; buffers hold `max_tokens` rows (logits: `max_rows`)."""

    def __init__(self, state: CpuState, recorder: program.Program, max_tokens: int, max_rows: int) -> None:
        spec = state.spec
        self._state = state
        self._program = recorder
        attended = spec.num_heads * spec.head_dim
        qkv = attended + 2 * spec.num_kv_heads * spec.head_dim
        self._eps = np.array([spec.rms_norm_eps], np.float64)
        self._residual = _buffer(max_tokens, spec.hidden_size)
        self._normed = _buffer(max_tokens, spec.hidden_size)
        self._linear_out = _buffer(max_tokens, max(qkv, spec.hidden_size, 2 * spec.intermediate_size))
        self._attended = _buffer(max_tokens, attended)
        self._activated = _buffer(max_tokens, spec.intermediate_size)
        self._sampled = _buffer(max_rows, spec.hidden_size)
        self.logits = _buffer(max_rows, spec.vocab_size)

    def embed(self, embedding: CpuMatrix) -> Handle:
        """See `Ops`."""
        out = self._tokens(self._residual, self._state.spec.hidden_size)
        slots, batch = self._state.slots, self._state.batch
        self._record(
            program.EMBED, out.rows_at, address(batch.slots), address(batch.positions),
            address(slots.tokens), slots.tokens.strides[0], *embedding.weight.addresses, out.width, out.at, out.stride,
        )  # fmt: skip
        return out

    def add_rms_norm(self, residual: Handle, delta: Handle | None, weight: Floats) -> Handle:
        """See `Ops`."""
        out = self._tokens(self._normed, residual.width)
        change = 0 if delta is None else delta.at
        self._record(
            program.ADD_RMS_NORM, out.rows_at, residual.at, change, address(weight), out.at, out.width, out.stride,
            address(self._eps),
        )  # fmt: skip
        return out

    def linear(self, x: Handle, weight: CpuMatrix) -> Handle:
        """See `Ops`; of sampled rows: logits."""
        packed = weight.weight
        sampled = x.rows_at == self._state.batch.num_sampled_at
        out = Handle(address(self.logits if sampled else self._linear_out), packed.num_columns, x.rows_at)
        self._record(
            program.LINEAR, out.rows_at, x.at, x.stride, *packed.addresses, packed.num_inputs, packed.num_panels,
            address(weight.bias), out.at, out.stride,
        )  # fmt: skip
        return out

    def rope_and_store(self, qkv: Handle, layer_index: int, q_norm: Floats | None, k_norm: Floats | None) -> Handle:
        """See `Ops`; queries stay where they are."""
        state = self._state
        self._record(
            program.ROPE_AND_STORE, qkv.rows_at, address(state.batch.slots), address(state.batch.positions),
            address(state.slots.page_tables), address(state.shape), qkv.at, qkv.stride,
            address(state.pools[layer_index]), address(state.rope_table), address(q_norm), address(k_norm),
            address(self._eps),
        )  # fmt: skip
        return qkv

    def attention(self, queries: Handle, layer_index: int) -> Handle:
        """See `Ops`."""
        state = self._state
        out = self._tokens(self._attended, state.spec.num_heads * state.spec.head_dim)
        self._record(
            program.ATTENTION, state.batch.num_items_at, address(state.batch.items), address(state.slots.page_tables),
            address(state.shape), queries.at, queries.stride, address(state.pools[layer_index]), out.at, out.stride,
        )  # fmt: skip
        return out

    def silu_mul(self, gate_up: Handle) -> Handle:
        """See `Ops`."""
        out = self._tokens(self._activated, gate_up.width // 2)
        self._record(program.SILU_MUL, out.rows_at, gate_up.at, gate_up.stride, out.at, out.stride, out.width)
        return out

    def sampled_rows(self, x: Handle) -> Handle:
        """See `Ops`."""
        batch = self._state.batch
        out = Handle(address(self._sampled), x.width, batch.num_sampled_at)
        self._record(
            program.TAKE_ROWS, out.rows_at, address(batch.sampled_tokens), x.at, x.stride, out.at, out.stride, out.width
        )
        return out

    def sample(self, logits: Handle) -> None:
        """See `Ops`."""
        batch, slots = self._state.batch, self._state.slots
        self._record(
            program.SAMPLE, logits.rows_at, logits.at, logits.stride, logits.width, address(batch.sampled_slots),
            address(batch.sampled_positions), address(slots.tokens), slots.tokens.strides[0], address(slots.reals),
            address(slots.integers), address(batch.drawn), address(batch.logprobs), address(batch.top_ids),
            address(batch.top_logprobs),
        )  # fmt: skip

    def _tokens(self, buffer: Floats, width: int) -> Handle:
        return Handle(address(buffer), width, self._state.batch.num_tokens_at)

    def _record(self, operation: int, *arguments: int) -> None:
        self._program.record(operation, arguments)


def _buffer(rows: int, width: int) -> Floats:
    return aligned_zeros((rows, -(-width // PANEL) * PANEL), np.float32)
