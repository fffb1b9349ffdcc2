"""How the CPU moves the proof's pattern, and how its ranks sum: as a step's program does. See `end`."""

import ctypes
from collections.abc import Sequence
from contextlib import closing

import numpy as np
import numpy.typing as npt

from cuda.check.peers.end import Summer, pattern, seconds_of_one, sums_in_rank_order
from cuda.collectives.membership import Membership
from cuda.collectives.peer_memory import PeerMemory
from cuda.collectives.shared_memory import SharedMemory
from cuda.cpu.kernels.program import compile_kernels
from cuda.cpu.ranks import CpuRanks, Sums

CPU_BYTES = 8 << 20
ROWS, COLUMNS = 8, 576
TIMEOUT_S = 10.0


class CpuMover:
    """The processor."""

    num_bytes = CPU_BYTES
    small_bytes = 64

    def memory(self, rank: int) -> PeerMemory:
        """See `Mover`."""
        return SharedMemory(rank, [self.num_bytes] * 2)

    def write(self, address: int, seed: int) -> None:
        """See `Mover`."""
        np.copyto(_octets(address, self.num_bytes), pattern(seed, self.num_bytes))

    def num_wrong(self, address: int, seed: int) -> int:
        """See `Mover`."""
        return int(np.count_nonzero(_octets(address, self.num_bytes) != pattern(seed, self.num_bytes)))

    def seconds(self, address: int, num_bytes: int) -> float:
        """See `Mover`."""
        source, target = np.ones(num_bytes, np.uint8), _octets(address, num_bytes)
        return seconds_of_one(lambda: np.copyto(target, source))

    def join(self, rank: int, world_size: int) -> Summer:
        """See `Mover`."""
        return CpuSummer(rank, world_size)


class CpuSummer:
    """See `Summer`: writes its part, meets the others, adds all parts up in rank order."""

    def __init__(self, rank: int, world_size: int) -> None:
        compile_kernels()
        self._rank, self._world_size = rank, world_size
        self._ranks = CpuRanks(Membership(rank, world_size, TIMEOUT_S), ROWS * COLUMNS * 4)

    def export(self) -> bytes:
        """See `Summer`."""
        return self._ranks.export()

    def meet(self, handles: Sequence[bytes]) -> None:
        """See `Summer`: the meeting itself is that of the sum."""
        self._ranks.open_peers(handles)

    def num_wrong(self) -> int:
        """See `Summer`."""
        inputs = [np.random.default_rng(rank).normal(size=(ROWS, COLUMNS)) for rank in range(self._world_size)]
        parts = [part.astype(np.float32) for part in inputs]
        with closing(Sums(self._ranks, ROWS, COLUMNS)) as sums:
            sums.x[:] = parts[self._rank]
            sums.run()
            return int(np.count_nonzero(sums.out != sums_in_rank_order(parts)))

    def close(self) -> None:
        """See `Summer`."""
        self._ranks.close()


def _octets(address: int, num_bytes: int) -> npt.NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))
