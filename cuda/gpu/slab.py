"""The memory in which the GPU ranks of a group exchange: what is exchanged, by which algorithm, and where it lies.

Numbers only. Read `cuda/kernels/all_reduce.cu` for who writes and reads each part of a slab.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import torch

from cuda.kernels.all_reduce import HEAD_BYTES

_ALIGNMENT: Final = 256


@dataclass(frozen=True)
class Thresholds:
    """Bytes of a part up to which something holds."""

    few_ranks: int = 512 << 10
    """One shot, for 3 and 4 ranks."""
    many_ranks: int = 256 << 10
    """One shot, for more."""
    one_round: int = 8 << 20
    """One call; what is larger is exchanged in rounds of this."""

    def one_shot(self, world_size: int) -> int:
        """One shot. It has half the latency; two shots move 2/N of its bytes, which for 2 ranks are as many."""
        if world_size == 2:
            return sys.maxsize
        return self.few_ranks if world_size <= 4 else self.many_ranks


DEFAULTS: Final = Thresholds()


def algorithm(num_bytes: int, world_size: int, thresholds: Thresholds = DEFAULTS) -> Literal["one-shot", "two-shot"]:
    """How parts of so many bytes are summed."""
    return "one-shot" if num_bytes <= thresholds.one_shot(world_size) else "two-shot"


@dataclass(frozen=True)
class Exchanged:
    """What the ranks exchange; the same on all of them."""

    dtype: torch.dtype
    """Of parts: float32 or bfloat16."""
    max_tokens: int
    """T."""
    hidden_size: int
    """E."""
    eps: float
    """Of the norm behind a sum."""
    max_rows: int = 0
    """R, of logits."""
    vocabulary: tuple[range, ...] = ()
    """Each rank's columns of logits, in rank order."""

    @property
    def row_bytes(self) -> int:
        """Of a part."""
        return self.hidden_size * self.dtype.itemsize

    @property
    def num_columns(self) -> int:
        """V."""
        return sum(map(len, self.vocabulary))


@dataclass(frozen=True)
class Slab:
    """Offsets of a slab's parts, in their order; its head of flags and generations is what the kernels say."""

    round_rows: int
    """Rows of a part that one call takes."""
    slots: int
    slot_bytes: int
    """Of one of the 2 N slots."""
    sums: int
    parts: int
    logits: int
    num_bytes: int

    @classmethod
    def of(cls, exchanged: Exchanged, world_size: int, thresholds: Thresholds = DEFAULTS) -> "Slab":
        """A slab in which every rank of a group exchanges."""
        row_bytes = exchanged.row_bytes
        round_rows = max(1, min(exchanged.max_tokens, thresholds.one_round // row_bytes))
        one_shot_rows = min(round_rows, thresholds.one_shot(world_size) // row_bytes)
        slot_bytes = _aligned(one_shot_rows * row_bytes)
        slots = HEAD_BYTES
        sums = slots + 2 * world_size * slot_bytes
        parts = sums + (_aligned(round_rows * row_bytes) if one_shot_rows < round_rows else 0)
        logits = parts + _aligned(exchanged.max_tokens * row_bytes)
        end = logits + _aligned(exchanged.max_rows * exchanged.num_columns * 4)
        return cls(round_rows, slots, slot_bytes, sums, parts, logits, end)

    def rounds(self, num_rows: int) -> Iterator[slice]:
        """The rows of each call that a part of `num_rows` takes."""
        for first in range(0, num_rows, self.round_rows):
            yield slice(first, min(num_rows, first + self.round_rows))


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
