"""A forward pass as a list of integers, run by all cores at once without the interpreter: a CUDA graph, on the CPU.

A `Program` is recorded once (`cuda.cpu.ops` does, by calling the decoder's forward pass); a step only changes
the batch arrays that its instructions point at. Every thread walks the same instructions, takes pieces of each from a
shared counter, and waits at its end until all pieces are done, not until all threads are there: a thread that the
system has put aside holds nobody up unless it holds a piece. Owns the threads; knows no requests. Read
`cuda.cpu.kernels.linear` next.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numba import types

from cuda.cpu.kernels.attention import attention
from cuda.cpu.kernels.jit import device, kernel, one_compiler
from cuda.cpu.kernels.linear import linear
from cuda.cpu.kernels.meet import LATE_RANK, meet
from cuda.cpu.kernels.memory import Address, Longs, address, aligned_zeros, doubles, fetch_add, load_acquire, longs
from cuda.cpu.kernels.pack import fill_panels
from cuda.cpu.kernels.rope import load_shape, rope_and_store
from cuda.cpu.kernels.rows import add_rms_norm, embed, silu_mul, sum_parts, take_rows
from cuda.cpu.kernels.sample import sample

EMBED, ADD_RMS_NORM, LINEAR, ROPE_AND_STORE, ATTENTION, SILU_MUL, TAKE_ROWS, SAMPLE, MEET, SUM_PARTS = range(10)
FIELDS = 20
"""int64 of an instruction: operation, address of its number of rows, arguments."""

_SYNC = 16  # int64 of two cache lines: pieces taken, pieces done
_CLOSED = 1 << 60  # in both: whoever comes late finds nothing to take and nothing to wait for
_MAX_LATE = 3  # steps whose helpers have not come back; past it a step runs without helpers
_SPINS = 4000
_yield_core = types.ExternalFunction("sched_yield", types.int32())


def compile_kernels() -> None:
    """Compile, or load from the cache, everything that Python calls; takes seconds the first time on a machine."""
    nothing = np.zeros(1, np.int64)
    with one_compiler():
        fill_panels(0, 0, 0, 0, 0, 0, 0, 0, 0)
        run_program(address(nothing), 0, address(nothing), 0)


class Program:
    """Instructions, and the threads that run them. `record` first, then `run` any number of times."""

    def __init__(self, num_threads: int, scratch_bytes: int) -> None:
        self._num_threads = num_threads
        self._recorded: list[list[int]] = []
        self._instructions = np.zeros((0, FIELDS), np.int64)
        self._late: list[tuple[list[Future[None]], Longs]] = []
        self._scratch_bytes = -(-scratch_bytes // 4096) * 4096
        self._scratch = aligned_zeros(num_threads * self._scratch_bytes, np.uint8)
        self._helpers = ThreadPoolExecutor(max(1, num_threads - 1), thread_name_prefix="cpu-kernel")

    def record(self, operation: int, arguments: Sequence[int]) -> None:
        """Append one instruction; the first argument is the address of its number of rows (int64)."""
        fields = [operation, *arguments]
        self._recorded.append(fields + [0] * (FIELDS - len(fields)))
        self._instructions = np.zeros((0, FIELDS), np.int64)

    def run(self) -> None:
        """Run all instructions in order, on all threads; returns when the last piece of the last one is done."""
        if len(self._instructions) != len(self._recorded):
            self._instructions = np.array(self._recorded, np.int64)
        self._late = [(helpers, sync) for helpers, sync in self._late if not all(helper.done() for helper in helpers)]
        num_threads = self._num_threads if len(self._late) < _MAX_LATE else 1
        sync = aligned_zeros(len(self._recorded) * _SYNC, np.int64)
        instructions = self._instructions  # a late helper must find what belongs to its `sync`
        helpers = [
            self._helpers.submit(self._run_thread, thread, instructions, sync) for thread in range(1, num_threads)
        ]
        self._run_thread(0, instructions, sync)
        sync[:] = _CLOSED
        self._late.append((helpers, sync))

    def close(self) -> None:
        """End the threads."""
        self._helpers.shutdown()

    def _run_thread(self, thread: int, instructions: Longs, sync: Longs) -> None:
        scratch = address(self._scratch) + thread * self._scratch_bytes
        run_program(address(instructions), len(instructions), address(sync), scratch)


@device
def _wait(done: Address, mine: int, total: int) -> None:
    """Add the pieces that this thread did, wait for the others; gives the core away when that takes long."""
    fetch_add(done, mine)
    spins = 0
    while load_acquire(done) < total:
        spins += 1
        if spins > _SPINS:
            _yield_core()


@kernel
def run_program(  # noqa: C901, PLR0912 - one arm an operation
    instructions: Address, count: int, sync: Address, scratch: Address
) -> None:
    """What each thread does; `_wait` orders all writes of an instruction before the reads of the next.

    The program ends early, for all threads, at a meeting that another rank did not come to.
    """
    for index in range(count):
        a = longs(instructions + index * FIELDS * 8, FIELDS)
        taken = sync + index * _SYNC * 8
        rows = longs(a[1], 1)[0]
        operation, mine, total = a[0], 0, rows
        if rows == 0:
            continue
        if operation == LINEAR:
            total = a[10]
            mine = linear(taken, rows, a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13])
        elif operation == ADD_RMS_NORM:
            mine = add_rms_norm(taken, rows, a[2], a[3], a[4], a[5], a[6], a[7], a[8], doubles(a[9], 1)[0])
        elif operation == ATTENTION:
            total = rows * load_shape(a[4]).num_kv_heads
            mine = attention(taken, rows, a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], scratch)
        elif operation == ROPE_AND_STORE:
            mine = rope_and_store(
                taken, rows, a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], doubles(a[12], 1)[0]
            )
        elif operation == SILU_MUL:
            mine = silu_mul(taken, rows, a[2], a[3], a[4], a[5], a[6])
        elif operation == EMBED:
            mine = embed(
                taken, rows, a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15]
            )  # fmt: skip
        elif operation == TAKE_ROWS:
            mine = take_rows(taken, rows, a[2], a[3], a[4], a[5], a[6], a[7])
        elif operation == SAMPLE:
            mine = sample(
                taken, rows, a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], scratch
            )  # fmt: skip
        elif operation == MEET:
            total = 1
            mine = meet(taken, a[2], a[3], a[4], a[5], a[6], a[7], a[8])
        elif operation == SUM_PARTS:
            mine = sum_parts(taken, rows, a[2], a[3], a[4], a[5], a[6])
        _wait(taken + 64, mine, total)
        if operation == MEET and longs(a[7], 1)[LATE_RANK] != 0:
            return
