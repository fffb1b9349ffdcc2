"""A bare all-reduce: ranks that write, meet and sum many times in one recorded program, as a device's layers do."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cuda.collectives.membership import Membership
from cuda.cpu.kernels.memory import address, aligned_zeros
from cuda.cpu.kernels.program import SUM_PARTS, TAKE_ROWS, Program, compile_kernels
from cuda.cpu.ranks import CpuRanks

Floats = npt.NDArray[np.float32]
BUSY_VALUES = 1 << 18
"""Copied by a rank that is to be late: some hundred microseconds."""


@dataclass(frozen=True)
class Job:
    """What all ranks of a group do."""

    world_size: int
    rows: int = 3
    width: int = 40
    rounds: int = 50
    """Of one run of the program."""
    first_meeting: int = 0
    num_threads: int = 1
    late: bool = False
    """Ranks are late at random, before they write and before they read."""
    timeout_s: float = 20.0

    def start(self, rank: int) -> "Rank":
        return Rank(self, rank)


def inputs(job: Job, rank: int, run: int) -> Floats:
    """[rounds, rows, width]; magnitudes differ, so that another order of summing shows."""
    random = np.random.default_rng((rank, run))
    shape = (job.rounds, job.rows, job.width)
    return (random.normal(size=shape) * 10.0 ** random.integers(-3, 4, shape)).astype(np.float32)


def expected(job: Job, run: int) -> Floats:
    """The sums in rank order, in float32."""
    total = inputs(job, 0, run)
    for rank in range(1, job.world_size):
        total += inputs(job, rank, run)
    return total


def digest(array: Floats) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


class Rank:
    """One rank of a job."""

    def __init__(self, job: Job, rank: int) -> None:
        compile_kernels()  # before others wait
        self._job, self._rank = job, rank
        self._row_bytes = job.width * 4
        member = Membership(rank, job.world_size, job.timeout_s)
        self.ranks = CpuRanks(member, job.rows * self._row_bytes, first_meeting=job.first_meeting)
        self._program = Program(job.num_threads, 64)
        self._count, self._busy_count = np.array([job.rows], np.int64), np.array([4], np.int64)
        self._order = np.arange(job.rows, dtype=np.int32)
        self._busy_order, self._busy = np.zeros(4, np.int32), np.zeros((5, BUSY_VALUES), np.float32)
        self._x, self._out = (aligned_zeros((job.rounds, job.rows, job.width), np.float32) for _ in range(2))

    def open_peers(self, handles: Sequence[bytes]) -> None:
        self.ranks.open_peers(handles)
        random = np.random.default_rng(self._rank)
        for index in range(self._job.rounds):
            self._record_lateness(random)
            part, parts = self.ranks.own_part(index % 2), self.ranks.parts[index % 2]
            self._take(self._x[index], part)
            self.ranks.record_meeting(self._program, address(self._count))
            self._record_lateness(random)
            sizes = self._job.width, self._row_bytes
            arguments = [address(parts), len(parts), address(self._out[index]), *sizes]
            self._program.record(SUM_PARTS, [address(self._count), *arguments])

    def run(self, run: int) -> Floats:
        """The sums of all rounds."""
        self._x[:] = inputs(self._job, self._rank, run)
        self._out[:] = np.nan
        self._program.run()
        self.ranks.check(run)
        self.ranks.seal()
        return np.array(self._out)

    def close(self) -> None:
        self._program.close()
        self.ranks.close()

    def _take(self, source: Any, target: int) -> None:
        sizes = self._row_bytes, target, self._row_bytes, self._job.width
        self._program.record(TAKE_ROWS, [address(self._count), address(self._order), address(source), *sizes])

    def _record_lateness(self, random: np.random.Generator) -> None:
        if self._job.late and random.random() < 0.2:
            stride = BUSY_VALUES * 4
            arguments = [address(self._busy_order), address(self._busy), stride, address(self._busy[1]), stride]
            self._program.record(TAKE_ROWS, [address(self._busy_count), *arguments, BUSY_VALUES])
