# ruff: noqa: PLR0913, PLR0917 - kernels take addresses one by one
"""Where the ranks of a group meet within a step: nobody goes on before all have come, and nobody waits for ever.

Each rank has a flag in memory that all ranks see: how many meetings it has come to. To come is to store that number
with release, to wait is to load the others' with acquire, so what a rank wrote before a meeting is read by all after
it. Numbers are 32 bits and wrap; only their difference counts. Read `cuda.cpu.ranks` for who uses it.
"""

import time
from typing import Any

import numpy as np
from numba import types

from cuda.cpu.kernels.jit import device
from cuda.cpu.kernels.memory import Address, fetch_add, ints, load_acquire_int, longs, pause, store_release_int

NUM_STATUS = 4
"""int64 of a status; all zero while all is well."""
LATE_RANK, LATE_MEETING = 0, 1
"""Of a status: 1 + the rank that did not come in time, and which meeting of the pass it did not come to."""

_TIME = 2  # of a status: two words that the clock is read into
_PAUSES = 2000  # tens of microseconds: longer than ranks on cores of their own are apart
_LOOKS = 8
"""In a timeout, at least: a rank that looks less often was stopped itself, perhaps with the whole node: no waiting."""
_CLOCK = time.CLOCK_MONOTONIC
_yield_core = types.ExternalFunction("sched_yield", types.int32())
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))


@device
def meet(
    next_piece: Address,
    flags: Address,
    num_ranks: int,
    rank: int,
    count_at: Address,
    timeout_ns: int,
    status: Address,
    meeting: int,
) -> int:
    """One thread of the rank comes and waits for all others; the others wait for that thread.

    `flags` are the addresses of all ranks' flags; `count_at` is where this rank keeps its own number. If a rank does
    not come within `timeout_ns`, `status` says which: nothing that follows in the program may run then.
    """
    if fetch_add(next_piece, 1) > 0:
        return 0
    flag_of = longs(flags, num_ranks)
    count = ints(count_at, 1)
    number = np.int32(count[0] + 1)
    count[0] = number
    # Release: the sums that this rank's threads wrote are seen before the flag. They were all written, or read, before
    # this thread got here, because it waited (acquire) for every piece of the instructions before.
    store_release_int(flag_of[rank], number)
    waited, seen_at = 0, 0
    pauses = 0
    for peer in range(num_ranks):
        while not _has_come(flag_of[peer], number):
            if pauses < _PAUSES:
                pauses += 1
                pause()
                continue
            _yield_core()
            now = _read_clock(status)
            if seen_at != 0:
                waited += min(now - seen_at, timeout_ns // _LOOKS)
            seen_at = now
            # Looked at again after the clock: a rank that was itself stopped must not blame one that came meanwhile.
            if waited >= timeout_ns and not _has_come(flag_of[peer], number):
                words = longs(status, NUM_STATUS)
                words[LATE_MEETING] = meeting
                words[LATE_RANK] = peer + 1
                return 1
    return 1


@device
def _has_come(flag: Address, number: np.int32) -> bool:
    return bool(np.int32(load_acquire_int(flag) - number) >= 0)


@device
def _read_clock(status: Address) -> int:
    """Nanoseconds."""
    _clock_gettime(_CLOCK, status + _TIME * 8)
    words = longs(status, NUM_STATUS)
    return int(words[_TIME] * 1_000_000_000 + words[_TIME + 1])
