"""Cores of this machine: how many this process may use at a time, and which ones each rank of a CPU group keeps to.

A rank that keeps to its cores finds its weights in their caches, and never shares a core with a rank that waits for it.
"""

import math
import os
import sys
from pathlib import Path

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CPUS = Path("/sys/devices/system/cpu")


def usable_cores(quota_file: Path = CGROUP_QUOTA) -> int:
    """Return at least 1: the affinity, and what a container's quota leaves of that."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min(cores, _quota(quota_file) or cores))


def core_shares(num_shares: int, quota_file: Path = CGROUP_QUOTA, cpus: Path = CPUS) -> list[tuple[int, ...]]:
    """Return equal shares; hardware threads of one core, and cores of one socket, stay together as far as they can.

    Shares are empty where to keep to cores could only hurt: there are fewer than shares, or a container may use a part
    of them only, of which others choose theirs too.
    """
    affinity = os.sched_getaffinity(0) if sys.platform == "linux" else set()
    size = len(affinity) // num_shares
    if not size or usable_cores(quota_file) < len(affinity):
        return [()] * num_shares
    ordered = sorted(affinity, key=lambda cpu: _place(cpus, cpu))
    return [tuple(ordered[begin : begin + size]) for begin in range(0, num_shares * size, size)]


def _place(cpus: Path, cpu: int) -> tuple[int, int, int]:
    """Socket, core, hardware thread; each logical CPU is a core where the kernel does not say."""
    topology = cpus / f"cpu{cpu}" / "topology"
    try:
        socket, core = (int((topology / name).read_text("ascii")) for name in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        return 0, cpu, cpu
    return socket, core, cpu


def _quota(file: Path) -> int | None:
    """Cores by the kernel's `QUOTA PERIOD` in microseconds; None for `max` and where there is no such file."""
    try:
        quota, period = file.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else math.ceil(int(quota) / int(period))
