"""How many warps of a multiprocessor a kernel can keep busy, from what its compiler says: NVIDIA's occupancy calculator
in a few lines ("CUDA C++ Programming Guide", Compute Capabilities; the granularities are those of cuda_occupancy.h).
"""

from dataclasses import dataclass

REGISTERS = 65_536
REGISTER_UNIT = 256
"""Registers of a warp are given out in such lots."""
NUM_PARTITIONS = 4
"""Each quarter of a multiprocessor has its own registers and warps."""
SHARED_UNIT = 128
RESERVED_BYTES = 1024
"""Shared memory that the system takes of each block."""


@dataclass(frozen=True)
class Multiprocessor:
    """What one can hold at once."""

    max_warps: int
    max_blocks: int
    shared_bytes: int


MULTIPROCESSORS = {
    "sm_80": Multiprocessor(64, 32, 164 << 10),
    "sm_89": Multiprocessor(48, 24, 100 << 10),
    "sm_90": Multiprocessor(64, 32, 228 << 10),
    "sm_100": Multiprocessor(64, 32, 228 << 10),
}


def resident_blocks(architecture: str, num_threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks of one kernel that a multiprocessor runs at once."""
    limits = MULTIPROCESSORS[architecture]
    num_warps = _up(num_threads, 32) // 32
    warps_of_partition = REGISTERS // NUM_PARTITIONS // _up(32 * registers, REGISTER_UNIT)
    return min(
        limits.max_blocks,
        limits.max_warps // num_warps,
        warps_of_partition * NUM_PARTITIONS // num_warps,
        limits.shared_bytes // _up(shared_bytes + RESERVED_BYTES, SHARED_UNIT),
    )


def occupancy(architecture: str, num_threads: int, registers: int, shared_bytes: int) -> float:
    """The same as a fraction of the warps that it can hold."""
    num_warps = resident_blocks(architecture, num_threads, registers, shared_bytes) * (_up(num_threads, 32) // 32)
    return num_warps / MULTIPROCESSORS[architecture].max_warps


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
