"""What the host's memory allows."""

from pathlib import Path


def available_memory() -> int:
    """Bytes that can be taken without swapping (Linux's MemAvailable)."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("/proc/meminfo has no MemAvailable")
