"""What the GPU ranks of a group exchange within a step, through a slab of device memory each: sums and logits.

Chooses the algorithm by size, opens and closes in order, and says who did not come. The same in the emulator. Next:
`cuda/kernels/all_reduce.cu`, who writes and reads each part of a slab, and why nobody overwrites what another reads.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import numpy as np
import torch

from cuda.collectives.membership import HostMeeting, Membership
from cuda.collectives.peer_memory import PeerTimeout
from cuda.gpu.memory import DeviceMemory
from cuda.kernels.add_rms_norm import AddRmsNorm
from cuda.kernels.all_reduce import GENERATIONS_AT, GROUP, HEAD_BYTES, MAX_RANKS, AllReduce
from cuda.kernels.backend import Backend

CLOSE_S: Final = 2.0
"""A peer that does not come to the end within this is taken for dead."""
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


class _Handles(msgspec.Struct, frozen=True, array_like=True):
    slab: bytes
    page: bytes


class GpuRanks:
    """See `Exchange`. ValueError for more than 8 ranks, or a row that the kernels cannot take.

    `first_generation` is the number (uint32, the same on all ranks) from which calls are counted.
    """

    def __init__(
        self,
        backend: Backend,
        member: Membership,
        exchanged: Exchanged,
        *,
        thresholds: Thresholds = DEFAULTS,
        first_generation: int = 0,
    ) -> None:
        if member.world_size > MAX_RANKS:
            raise ValueError(f"{member.world_size} ranks; at most {MAX_RANKS} exchange through each other's memory")
        self._backend = backend
        self._member = member
        self._exchanged = exchanged
        self._thresholds = thresholds
        self._reduce = AllReduce(backend, exchanged.dtype, exchanged.hidden_size, exchanged.eps)
        self._norm = AddRmsNorm(backend, exchanged.dtype, exchanged.hidden_size, exchanged.eps)
        self._error = backend.pinned((1,), torch.int64)
        self._layout = Slab.of(exchanged, member.world_size, thresholds)
        self._memory = DeviceMemory(backend, member.rank, [self._layout.num_bytes] * member.world_size)
        self._meeting = HostMeeting(member)
        self._slab = backend.over(self._memory.address, self._layout.num_bytes)
        self._set_generation(first_generation)
        self._described: np.void = np.zeros(1, GROUP)[0]
        self._patience_s = CLOSE_S

    def export(self) -> bytes:
        """See `Exchange`."""
        return msgspec.msgpack.encode(_Handles(self._memory.export(), self._meeting.export()))

    def open_peers(self, handles: Sequence[bytes]) -> None:
        """See `Exchange`. PeerTimeout if a rank does not come."""
        told = [msgspec.msgpack.decode(handle, type=_Handles) for handle in handles]
        addresses = self._memory.open_peers([each.slab for each in told])
        self._meeting.open_peers([each.page for each in told])
        late = self._meeting.meet(self._member.timeout_s)
        if late is not None:
            raise self._late(late, "to open its peers' memory")
        self._memory.seal()
        self._meeting.seal()
        self._described = self._describe(addresses)

    def part(self, num_rows: int) -> torch.Tensor:
        """See `Exchange`."""
        exchanged = self._exchanged
        return self._rows(self._layout.parts, num_rows, exchanged.hidden_size, exchanged.dtype)

    def all_reduce_add_rms_norm(self, out: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> None:
        """See `Exchange`."""
        for rows in self._layout.rounds(out.shape[0]):
            if self._is_one_shot(rows):
                self._reduce.one_shot_norm(self._described, rows.start, out[rows], residual[rows], weight)
            else:
                self._norm(out[rows], residual[rows], self._two_shot(rows), weight)

    def sum(self, out: torch.Tensor) -> None:
        """See `Exchange`."""
        for rows in self._layout.rounds(out.shape[0]):
            if self._is_one_shot(rows):
                self._reduce.one_shot(self._described, rows.start, out[rows])
            else:
                self._backend.copy(out[rows], self._two_shot(rows))

    def gather_logits(self, mine: torch.Tensor) -> torch.Tensor:
        """See `Exchange`."""
        num_rows = mine.shape[0]
        if num_rows:
            own = self._exchanged.vocabulary[self._member.rank]
            self._reduce.gather_columns(self._described, mine, own.start, self._exchanged.num_columns)
        return self.logits[:num_rows]

    @property
    def logits(self) -> torch.Tensor:
        """See `Exchange`."""
        exchanged = self._exchanged
        return self._rows(self._layout.logits, exchanged.max_rows, exchanged.num_columns, torch.float32)

    def check(self, step: int) -> None:
        """See `Exchange`."""
        word = int(self._error[0]) & (1 << 64) - 1
        if word:
            exchange = word >> 33  # behind the peer's number, meetings; two of them an exchange
            raise self._late((word & 0xFF) - 1, f"in exchange {exchange} (step {step})")

    def close(self) -> None:
        """See `Exchange`. The slab is freed when no rank uses it any more."""
        try:
            self._backend.synchronize()
        except RuntimeError:  # told before, and the group is lost: such a GPU frees nothing before its process ends
            self._patience_s = 0.0
            with suppress(RuntimeError):
                self._close_memory()
        else:
            self._close_memory()
        self._meeting.close()

    def _close_memory(self) -> None:
        self._meeting.meet(self._patience_s)
        self._memory.close_peers()
        self._meeting.meet(self._patience_s)
        self._memory.close()

    def _set_generation(self, generation: int) -> None:
        head = np.zeros(HEAD_BYTES // 4, np.uint32)
        head[: GENERATIONS_AT // 4] = (2 * generation + 1) % (1 << 32)
        head[GENERATIONS_AT // 4 :] = generation
        self._backend.copy(self._slab[:HEAD_BYTES], torch.from_numpy(head.view(np.uint8)))
        self._backend.synchronize()

    def _describe(self, addresses: Sequence[int]) -> np.void:
        """`GROUP`."""
        layout = self._layout
        slabs = (*addresses, *[0] * (MAX_RANKS - len(addresses)))
        offsets = layout.slots, layout.slot_bytes, layout.sums, layout.parts, layout.logits
        words = slabs, self._error.data_ptr(), int(self._member.timeout_s * 1e9), *offsets
        described: np.void = np.array([(*words, self._member.rank, self._member.world_size)], GROUP)[0]
        return described

    def _is_one_shot(self, rows: slice) -> bool:
        num_bytes = (rows.stop - rows.start) * self._exchanged.row_bytes
        return algorithm(num_bytes, self._member.world_size, self._thresholds) == "one-shot"

    def _two_shot(self, rows: slice) -> torch.Tensor:
        num_columns, num_rows = self._exchanged.hidden_size, rows.stop - rows.start
        sums = self._rows(self._layout.sums, num_rows, num_columns, self._exchanged.dtype)
        self._reduce.two_shot(self._described, rows.start, sums)
        return sums

    def _rows(self, offset: int, num_rows: int, num_columns: int, dtype: torch.dtype) -> torch.Tensor:
        num_bytes = num_rows * num_columns * dtype.itemsize
        return self._slab[offset : offset + num_bytes].view(dtype).view(num_rows, num_columns)

    def _late(self, peer: int, where: str) -> PeerTimeout:
        self._patience_s = 0.0  # it is not waited for again
        rank, timeout_s = self._member.rank, self._member.timeout_s
        return PeerTimeout(f"rank {rank} waited {timeout_s:g} s for rank {peer} {where}")
