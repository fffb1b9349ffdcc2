"""A CPU rank of the proof's sum: writes its part, meets the others, adds all parts up in rank order. See `end`."""

from collections.abc import Sequence

import numpy as np

from cuda.collectives.membership import Membership
from cuda.cpu.kernels.memory import address, aligned_zeros
from cuda.cpu.kernels.program import SUM_PARTS, TAKE_ROWS, Program, compile_kernels
from cuda.cpu.ranks import CpuRanks

ROWS, COLUMNS = 8, 576
TIMEOUT_S = 10.0


class CpuSummer:
    """See `Summer`."""

    def __init__(self, rank: int, world_size: int) -> None:
        compile_kernels()
        self._rank, self._world_size = rank, world_size
        self._ranks = CpuRanks(Membership(rank, world_size, TIMEOUT_S), ROWS * COLUMNS * 4)
        self._program = Program(1, 64)

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
        right = parts[0].copy()
        for part in parts[1:]:
            right += part
        count, order, out = (
            np.array([ROWS], np.int64),
            np.arange(ROWS, dtype=np.int32),
            aligned_zeros(right.shape, np.float32),
        )
        rows_at, row_bytes, target = address(count), COLUMNS * 4, self._ranks.own_part(0)
        source = address(parts[self._rank])
        self._program.record(TAKE_ROWS, [rows_at, address(order), source, row_bytes, target, row_bytes, COLUMNS])
        self._ranks.record_meeting(self._program, rows_at)
        addresses = self._ranks.parts[0]
        arguments = [address(addresses), self._world_size, address(out), COLUMNS, row_bytes]
        self._program.record(SUM_PARTS, [rows_at, *arguments])
        self._program.run()
        self._ranks.check(0)
        return int(np.count_nonzero(out != right))

    def close(self) -> None:
        """See `Summer`."""
        self._program.close()
        self._ranks.close()
