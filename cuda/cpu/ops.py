"""The CPU's ops for `cuda.models.decoder.forward`: each call is written down as one instruction of a program.

Where a group of ranks shares the model, what a rank computes is at times a part of a sum: it is written into memory
that all ranks see, the ranks meet, and whoever reads the sum adds up the parts. Owns the activation buffers, which
every layer reuses. A handle is where a buffer lies and how its rows are counted.
"""

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cuda.cpu.kernels import program
from cuda.cpu.kernels.memory import address, aligned_zeros
from cuda.cpu.kernels.pack import Packed
from cuda.cpu.kernels.tile import PANEL
from cuda.cpu.ranks import CpuRanks
from cuda.cpu.slots import Batch, SlotTable
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
    parts: npt.NDArray[np.int64] | None = None
    """Addresses of the parts that this is the sum of, if it is one of them."""

    @property
    def stride(self) -> int:
        """Bytes from row to row: whole panels."""
        return 4 * padded(self.width)


@dataclass(frozen=True)
class CpuMatrix:
    """A packed weight [N, K] and its bias [N], padded to whole panels."""

    weight: Packed
    bias: Floats | None
    first_row: int = 0
    """Of the rows of the model's matrix that this rank holds: which output, or token, its first is."""
    is_part: bool = False
    """The rank holds some columns of the model's matrix: the sum of all ranks' products is the output."""


@dataclass(frozen=True)
class CpuState:
    """What ops point at besides weights."""

    spec: ModelSpec
    batch: Batch
    slots: SlotTable
    pools: list[npt.NDArray[np.uint8]]
    """One a layer, `[page, 2, kv_head, slot, head_dim]`."""
    shape: npt.NDArray[np.int64]
    """See `cuda.cpu.kernels.rope`."""
    rope_table: Floats
    ranks: CpuRanks | None
    """The group that shares the model; `spec` is then this rank's own."""


class CpuOps:
    """Records into `recorder`; buffers hold `max_tokens` rows (logits: `max_rows`)."""

    def __init__(self, state: CpuState, recorder: program.Program, max_tokens: int, max_rows: int) -> None:
        spec = state.spec
        self._state = state
        self._program = recorder
        self._num_sums = 0
        self._tables: list[npt.NDArray[np.int64]] = []  # keeps what instructions point at
        attended = spec.num_heads * spec.head_dim
        qkv = attended + 2 * spec.num_kv_heads * spec.head_dim
        self._eps = np.array([spec.rms_norm_eps], np.float64)
        self._residual = _buffer(max_tokens, spec.hidden_size)
        self._normed = _buffer(max_tokens, spec.hidden_size)
        self._linear_out = _buffer(max_tokens, max(qkv, spec.hidden_size, 2 * spec.intermediate_size))
        self._attended = _buffer(max_tokens, attended)
        self._activated = _buffer(max_tokens, spec.intermediate_size)
        self._sampled = _buffer(max_rows, spec.hidden_size)
        self.logits = (
            _buffer(max_rows, spec.vocab_size)
            if state.ranks is None
            else _at(state.ranks.logits_at, max_rows, padded(spec.vocab_size))
        )

    def embed(self, embedding: CpuMatrix) -> Handle:
        """See `Ops`."""
        residual = self._tokens(self._residual, self._state.spec.hidden_size)
        slots, batch, ranks = self._state.slots, self._state.batch, self._state.ranks
        out = residual if ranks is None else self._part(ranks, residual.width)
        self._record(
            program.EMBED, out.rows_at, address(batch.slots), address(batch.positions),
            address(slots.tokens), slots.tokens.strides[0], *embedding.weight.addresses, out.width, out.at, out.stride,
            embedding.first_row, embedding.weight.num_columns,
        )  # fmt: skip
        if ranks is not None and out.parts is not None:
            ranks.record_meeting(self._program, out.rows_at)
            self._record(
                program.SUM_PARTS, out.rows_at, address(out.parts), len(out.parts), residual.at, out.width, out.stride
            )
        return residual

    def add_rms_norm(self, residual: Handle, delta: Handle | None, weight: Floats) -> Handle:
        """See `Ops`."""
        out = self._tokens(self._normed, residual.width)
        deltas = self._parts_of(delta)
        self._record(
            program.ADD_RMS_NORM, out.rows_at, residual.at, address(deltas), len(deltas), address(weight), out.at,
            out.width, out.stride, address(self._eps),
        )  # fmt: skip
        return out

    def linear(self, x: Handle, weight: CpuMatrix) -> Handle:
        """See `Ops`; of sampled rows: logits."""
        packed, ranks = weight.weight, self._state.ranks
        if x.rows_at == self._state.batch.num_sampled_at:
            return self._logits(x, weight)
        if ranks is None or not weight.is_part:
            out = self._tokens(self._linear_out, packed.num_columns)
            self._multiply(x, weight, out.at, out.stride)
            return out
        out = self._part(ranks, packed.num_columns)
        self._multiply(x, weight, out.at, out.stride)
        ranks.record_meeting(self._program, out.rows_at)
        return out

    def _logits(self, x: Handle, weight: CpuMatrix) -> Handle:
        """Each rank's columns beside the others'."""
        state = self._state
        out = Handle(address(self.logits), state.spec.vocab_size, x.rows_at)
        self._multiply(x, weight, out.at + 4 * weight.first_row, out.stride)
        if state.ranks is not None:  # also in a pass without sampled rows: `cuda.cpu.ranks` says why
            state.ranks.record_meeting(self._program, state.batch.num_tokens_at)
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
        results = batch.results
        self._record(
            program.SAMPLE, logits.rows_at, logits.at, logits.stride, logits.width, address(batch.sampled_slots),
            address(batch.sampled_positions), address(slots.tokens), slots.tokens.strides[0], address(slots.reals),
            address(slots.integers), address(results.tokens), address(results.logprobs), address(results.top_ids),
            address(results.top_logprobs),
        )  # fmt: skip

    def _multiply(self, x: Handle, weight: CpuMatrix, out: int, stride: int) -> None:
        packed = weight.weight
        self._record(
            program.LINEAR, x.rows_at, x.at, x.stride, *packed.addresses, packed.num_inputs, packed.num_panels,
            address(weight.bias), out, stride,
        )  # fmt: skip

    def _part(self, ranks: CpuRanks, width: int) -> Handle:
        """This rank's part of the next sum; the two buffers take turns."""
        index = self._num_sums % 2
        self._num_sums += 1
        return Handle(ranks.own_part(index), width, self._state.batch.num_tokens_at, ranks.parts[index])

    def _parts_of(self, delta: Handle | None) -> npt.NDArray[np.int64]:
        """A table of the addresses that make up a sum."""
        if delta is not None and delta.parts is not None:
            return delta.parts
        self._tables.append(np.array([] if delta is None else [delta.at], np.int64))
        return self._tables[-1]

    def _tokens(self, buffer: Floats, width: int) -> Handle:
        return Handle(address(buffer), width, self._state.batch.num_tokens_at)

    def _record(self, operation: int, *arguments: int) -> None:
        self._program.record(operation, arguments)


def padded(width: int) -> int:
    """Values of a row of `width`: whole panels."""
    return -(-width // PANEL) * PANEL


def _buffer(rows: int, width: int) -> Floats:
    return aligned_zeros((rows, padded(width)), np.float32)


def _at(where: int, rows: int, width: int) -> Floats:
    """An array in memory that is somebody else's."""
    return np.ctypeslib.as_array((ctypes.c_float * (rows * width)).from_address(where)).reshape(rows, width)
