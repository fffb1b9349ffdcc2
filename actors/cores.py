"""How many cores this process may use: its affinity, and what a container's quota leaves of that."""

import math
import os
import sys
from pathlib import Path

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(quota_file: Path = CGROUP_QUOTA) -> int:
    """Return at least 1."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min(cores, _quota(quota_file) or cores))


def _quota(file: Path) -> int | None:
    """Cores by the kernel's `QUOTA PERIOD` in microseconds; None for `max` and where there is no such file."""
    try:
        quota, period = file.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else math.ceil(int(quota) / int(period))
