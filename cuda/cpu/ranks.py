"""What the CPU ranks of a group share, and how they meet in it. Owns the memory; what is written there programs say.

    in each rank's memory     written by              read by
    flag                      its rank, at a meeting  all ranks
    parts[0], parts[1]        its rank's products     all ranks, summed after a meeting
    logits (rank 0's only)    each rank its columns   all ranks, after a meeting

Nothing is overwritten while it is read. A rank writes `parts[i]` again only after a meeting later than the one its
reader read it after, and no reader comes to that one before it has read. So the two buffers take turns, and the first
of a pass may follow the last of the pass before, because the logits are met for in between; the logits themselves are
safe because every pass has sums to meet for before it has logits. Read `cuda.cpu.kernels.meet` for a meeting.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cuda.collectives.membership import Membership
from cuda.collectives.peer_memory import PeerTimeout
from cuda.collectives.shared_memory import SharedMemory
from cuda.cpu.kernels.meet import LATE_MEETING, LATE_RANK, NUM_STATUS
from cuda.cpu.kernels.memory import address, aligned_zeros
from cuda.cpu.kernels.program import MEET, SUM_PARTS, TAKE_ROWS, Program

_FLAG_BYTES = 4096  # a page: nothing else is on the flag's cache line, nor fetched with it


class CpuRanks:
    """One rank's end. `export`, `open_peers`, then `record_meeting` for each meeting of a pass, `check` after each.

    PeerMemoryFailed and PeerTimeout as `cuda.collectives.peer_memory` has them. `first_meeting` is the number (int32,
    the same on all ranks) from which meetings are counted.
    """

    def __init__(self, member: Membership, part_bytes: int, logits_bytes: int = 0, *, first_meeting: int = 0) -> None:
        self._member = member
        self._part_bytes = -(-part_bytes // 64) * 64
        base = _FLAG_BYTES + 2 * self._part_bytes
        self._memory = SharedMemory(member.rank, [base + logits_bytes, *[base] * (member.world_size - 1)])
        self._count = np.array([first_meeting], np.int32)
        ctypes.c_int32.from_address(self._memory.address).value = first_meeting
        self._status = np.zeros(NUM_STATUS, np.int64)
        self._num_meetings = 0
        self.flags: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        """[N] addresses of all ranks' flags, in rank order."""
        self.parts: tuple[npt.NDArray[np.int64], ...] = ()
        """Of the first and the second buffer: [N] addresses of all ranks'."""
        self.logits_at = 0
        """Address of the one buffer of logits."""

    def export(self) -> bytes:
        """The handle of this rank's memory."""
        return self._memory.export()

    def open_peers(self, handles: Sequence[bytes]) -> None:
        """Map all ranks' memory."""
        self.flags = np.array(self._memory.open_peers(handles), np.int64)
        first = self.flags + _FLAG_BYTES
        self.parts = (first, first + self._part_bytes)
        self.logits_at = int(first[0]) + 2 * self._part_bytes

    def own_part(self, index: int) -> int:
        """Address of this rank's first or second buffer."""
        return int(self.parts[index][self._member.rank])

    def record_meeting(self, program: Program, rows_at: int) -> None:
        """Append a meeting; `rows_at` is the address of a number that is not zero in any pass that has it."""
        program.record(
            MEET,
            [
                rows_at, address(self.flags), self._member.world_size, self._member.rank, address(self._count),
                int(self._member.timeout_s * 1e9), address(self._status), self._num_meetings,
            ],
        )  # fmt: skip
        self._num_meetings += 1

    def check(self, step: int) -> None:
        """PeerTimeout if the pass that just ran, of `step`, ended at a meeting; it does so ever after."""
        late, meeting = int(self._status[LATE_RANK]), int(self._status[LATE_MEETING])
        if late:
            raise PeerTimeout(
                f"rank {self._member.rank} waited {self._member.timeout_s:g} s for rank {late - 1} "
                f"in exchange {meeting + 1} of {self._num_meetings} of step {step}"
            )

    def seal(self) -> None:
        """All ranks have met: nobody else opens the memory, and a rank that dies leaves nothing behind."""
        self._memory.seal()

    def close(self) -> None:
        """Unmap everything; no program that meets here may run any more."""
        self._memory.close()


class Sums:
    """A program of nothing but sums, as a step's: write a part of `x`, meet, add up all parts into `out`.

    `count` of them run at once: threads do not begin at quite the same time. Even, or one, for the buffers take turns.
    """

    def __init__(self, ranks: CpuRanks, max_rows: int, width: int, count: int = 1) -> None:
        stride = width * 4
        self.rows = np.array([max_rows], np.int64)
        self.x, self.out = (aligned_zeros((max_rows, width), np.float32) for _ in range(2))
        self._ranks = ranks
        self._order = np.arange(max_rows, dtype=np.int32)
        self._program = Program(1, 64)
        for index in range(count):
            part, parts = ranks.own_part(index % 2), ranks.parts[index % 2]
            source = address(self._order), address(self.x)
            self._program.record(TAKE_ROWS, [address(self.rows), *source, stride, part, stride, width])
            ranks.record_meeting(self._program, address(self.rows))
            sums = address(parts), len(parts), address(self.out)
            self._program.record(SUM_PARTS, [address(self.rows), *sums, width, stride])

    def run(self) -> None:
        """PeerTimeout if another rank does not come."""
        self._program.run()
        self._ranks.check(0)

    def close(self) -> None:
        """End its thread."""
        self._program.close()
