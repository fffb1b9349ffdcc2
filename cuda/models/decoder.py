"""The forward pass of every supported decoder, once, as a straight list of ops.

`Ops` is what a device brings: it may compute at each call or write the calls down and run them later. Values flow
through handles of the device's own making. What the batch is (tokens, positions, page tables, sampled rows) the ops
know; nothing here depends on it. Read `cuda.cpu.ops` for the CPU's ops.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Buffer = TypeVar("Buffer")
"""Activations: a row a token, or a row a sampled row."""
Vector = TypeVar("Vector")
"""A norm's weight."""
Matrix = TypeVar("Matrix")
"""A linear's weight and bias, as the device packs them."""
Vector_contra = TypeVar("Vector_contra", contravariant=True)
Matrix_contra = TypeVar("Matrix_contra", contravariant=True)


@dataclass(frozen=True)
class DecoderLayer(Generic[Vector, Matrix]):
    """One layer's weights, as a checkpoint has them or as a device keeps them; shapes are [out, in]."""

    input_norm: Vector
    """[E]."""
    qkv: Matrix
    """[(H + 2K) * D, E]: rows of queries, then keys, then values."""
    q_norm: Vector | None
    """[D], Qwen3 only."""
    k_norm: Vector | None
    """[D], Qwen3 only."""
    o: Matrix
    """[E, H * D]."""
    post_attention_norm: Vector
    """[E]."""
    gate_up: Matrix
    """[2F, E]: rows of the gate, then of what it gates."""
    down: Matrix
    """[E, F]."""


@dataclass(frozen=True)
class DecoderWeights(Generic[Vector, Matrix]):
    """A decoder's weights."""

    embedding: Matrix
    """[V, E]."""
    layers: list[DecoderLayer[Vector, Matrix]]
    final_norm: Vector
    """[E]."""
    lm_head: Matrix
    """[V, E]; when tied, the same as `embedding`."""


class Ops(Protocol[Buffer, Vector_contra, Matrix_contra]):
    """What a device must bring; T tokens of the step, R sampled rows. Formulas are in `cuda.kernels.reference`."""

    def embed(self, embedding: Matrix_contra) -> Buffer:
        """[T, E]: the residual stream."""

    def add_rms_norm(self, residual: Buffer, delta: Buffer | None, weight: Vector_contra) -> Buffer:
        """Add `delta` to `residual` in place; [T, E] normed."""

    def linear(self, x: Buffer, weight: Matrix_contra) -> Buffer:
        """[T, out]; valid until the next call of `linear`."""

    def rope_and_store(
        self, qkv: Buffer, layer_index: int, q_norm: Vector_contra | None, k_norm: Vector_contra | None
    ) -> Buffer:
        """Norm (if any) and rotate queries and keys, write keys and values to their pages; [T, H * D] queries."""

    def attention(self, queries: Buffer, layer_index: int) -> Buffer:
        """[T, H * D]: each token over its row's pages up to itself."""

    def silu_mul(self, gate_up: Buffer) -> Buffer:
        """[T, F]."""

    def sampled_rows(self, x: Buffer) -> Buffer:
        """[R, E]: the last token of every row that samples."""

    def sample(self, logits: Buffer) -> None:
        """Draw R tokens from [R, V]; they go to the step's result and into their slots."""


def forward(ops: Ops[Buffer, Vector, Matrix], weights: DecoderWeights[Vector, Matrix]) -> Buffer:
    """One step: embeddings to sampled tokens. Returns the logits [R, V]."""
    residual = ops.embed(weights.embedding)
    delta: Buffer | None = None
    for index, layer in enumerate(weights.layers):
        normed = ops.add_rms_norm(residual, delta, layer.input_norm)
        queries = ops.rope_and_store(ops.linear(normed, layer.qkv), index, layer.q_norm, layer.k_norm)
        attended = ops.linear(ops.attention(queries, index), layer.o)
        normed = ops.add_rms_norm(residual, attended, layer.post_attention_norm)
        delta = ops.linear(ops.silu_mul(ops.linear(normed, layer.gate_up)), layer.down)
    normed = ops.add_rms_norm(residual, delta, weights.final_norm)
    logits = ops.linear(ops.sampled_rows(normed), weights.lm_head)
    ops.sample(logits)
    return logits
