"""Runs one instruction of the CPU program on NumPy arrays, with two threads, as the device would."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cuda.cpu.kernels.memory import address, aligned_zeros
from cuda.cpu.kernels.program import Program

SCRATCH_BYTES = 4 << 20


def run_op(operation: int, rows: int, arguments: Sequence[Any], *, num_threads: int = 2) -> None:
    """Arrays among `arguments` are passed as their addresses."""
    count = np.array([rows], np.int64)
    program = Program(num_threads, SCRATCH_BYTES)
    program._scratch[:] = 0x3F  # as other kernels leave it
    values = [address(value) if isinstance(value, np.ndarray) else int(value) for value in arguments]
    program.record(operation, [address(count), *values])
    program.run()
    program.close()


def aligned(array: Any, dtype: Any = np.float32) -> Any:
    """A copy that starts on a cache line."""
    source = np.asarray(array)
    out = aligned_zeros(source.shape, dtype)
    out[...] = source
    return out
