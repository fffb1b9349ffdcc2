"""A forward pass as a list of integers, run by all cores at once without the interpreter: a CUDA graph, on the CPU.

A `Program` is recorded once (`cuda.devices.cpu_ops` does, by calling the decoder's forward pass); a step only changes
the batch arrays that its instructions point at. Every thread walks the same instructions, takes pieces of each from a
shared counter, and waits at its end until all threads are done with it: pieces, not threads, are fixed, so a core that
another process slows down just takes fewer. Owns the threads; knows no requests. Read `cuda.kernels.cpu_linear` next.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import types

from cuda.kernels.cpu_attention import attention
from cuda.kernels.cpu_jit import device, kernel
from cuda.kernels.cpu_linear import linear
from cuda.kernels.cpu_memory import Address, address, aligned_zeros, doubles, fetch_add, load_acquire, longs
from cuda.kernels.cpu_pack import fill_panels
from cuda.kernels.cpu_rope import rope_and_store
from cuda.kernels.cpu_rows import add_rms_norm, embed, silu_mul, take_rows
from cuda.kernels.cpu_sample import sample

EMBED, ADD_RMS_NORM, LINEAR, ROPE_AND_STORE, ATTENTION, SILU_MUL, TAKE_ROWS, SAMPLE = 0, 1, 2, 3, 4, 5, 6, 7
FIELDS = 20
"""int64 of an instruction: operation, address of its number of rows, arguments."""

_SYNC = 16  # int64 of two cache lines: pieces taken, threads done
_SPINS = 4000
_yield_core = types.ExternalFunction("sched_yield", types.int32())


def compile_kernels() -> None:
    """Compile, or load from the cache, everything that Python calls; takes seconds the first time on a machine."""
    nothing = np.zeros(1, np.int64)
    fill_panels(0, 0, 0, 0, 0, 0, 0, 0, 0)
    run_program(1, address(nothing), 0, address(nothing), 0)


class Program:
    """Instructions, and the threads that run them. `record` first, then `run` any number of times."""

    def __init__(self, num_threads: int, scratch_bytes: int) -> None:
        self._num_threads = num_threads
        self._recorded: list[list[int]] = []
        self._instructions = np.zeros((0, FIELDS), np.int64)
        self._sync = np.zeros(0, np.int64)
        self._scratch_bytes = -(-scratch_bytes // 4096) * 4096
        self._scratch = aligned_zeros(num_threads * self._scratch_bytes, np.uint8)
        self._helpers = ThreadPoolExecutor(max(1, num_threads - 1), thread_name_prefix="cpu-kernel")

    def record(self, operation: int, arguments: Sequence[int]) -> None:
        """Append one instruction; the first argument is the address of its number of rows (int64)."""
        fields = [operation, *arguments]
        self._recorded.append(fields + [0] * (FIELDS - len(fields)))
        self._instructions = np.zeros((0, FIELDS), np.int64)

    def run(self) -> None:
        """Run all instructions in order, on all threads; returns when the last is done."""
        if len(self._instructions) != len(self._recorded):
            self._instructions = np.array(self._recorded, np.int64)
            self._sync = aligned_zeros(len(self._recorded) * _SYNC, np.int64)
        self._sync[:] = 0
        helpers = [self._helpers.submit(self._run_thread, thread) for thread in range(1, self._num_threads)]
        self._run_thread(0)
        for helper in helpers:
            helper.result()

    def close(self) -> None:
        """End the threads."""
        self._helpers.shutdown()

    def _run_thread(self, thread: int) -> None:
        scratch = address(self._scratch) + thread * self._scratch_bytes
        run_program(self._num_threads, address(self._instructions), len(self._recorded), address(self._sync), scratch)


@device
def _wait(done: Address, num_threads: int) -> None:
    """Wait until every thread has counted itself into `done`; gives the core away when that takes long."""
    fetch_add(done, 1)
    spins = 0
    while load_acquire(done) < num_threads:
        spins += 1
        if spins > _SPINS:
            _yield_core()


@kernel
def run_program(  # noqa: C901 - one arm an operation
    num_threads: int, instructions: Address, count: int, sync: Address, scratch: Address
) -> None:
    """What each thread does; `_wait` orders all writes of an instruction before the reads of the next."""
    for index in range(count):
        a = longs(instructions + index * FIELDS * 8, FIELDS)
        taken = sync + index * _SYNC * 8
        rows = longs(a[1], 1)[0]
        operation = a[0]
        if rows == 0:
            continue
        if operation == LINEAR:
            linear(taken, rows, a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13])
        elif operation == ADD_RMS_NORM:
            add_rms_norm(taken, rows, a[2], a[3], a[4], a[5], a[6], a[7], doubles(a[8], 1)[0])
        elif operation == ATTENTION:
            attention(taken, rows, a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], scratch)
        elif operation == ROPE_AND_STORE:
            rope_and_store(
                taken, rows, a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], doubles(a[12], 1)[0]
            )
        elif operation == SILU_MUL:
            silu_mul(taken, rows, a[2], a[3], a[4], a[5], a[6])
        elif operation == EMBED:
            embed(taken, rows, a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13])
        elif operation == TAKE_ROWS:
            take_rows(taken, rows, a[2], a[3], a[4], a[5], a[6], a[7])
        elif operation == SAMPLE:
            sample(
                taken, rows, a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], scratch
            )  # fmt: skip
        _wait(taken + 64, num_threads)
