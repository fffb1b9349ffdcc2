"""Which rank of a group this process is, and where the ranks' hosts meet when they begin and when they end.

Steps are met for on the devices: read `cuda.gpu.ranks` and `cuda.cpu.ranks`.
"""

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cuda.collectives.shared_memory import SharedMemory

_PAGE_BYTES = 4096
_PAUSE_S = 0.001


@dataclass(frozen=True)
class Membership:
    """This rank among the others of its group, and how long it waits for them."""

    rank: int
    world_size: int
    timeout_s: float


class HostMeeting:
    """One rank's end: a page of shared memory that says how many meetings it has come to."""

    def __init__(self, member: Membership) -> None:
        self._member = member
        self._memory = SharedMemory(member.rank, [_PAGE_BYTES] * member.world_size)
        self._counts: list[ctypes.c_int64] = []
        self._count = 0

    def export(self) -> bytes:
        """The handle of this rank's page."""
        return self._memory.export()

    def open_peers(self, handles: Sequence[bytes]) -> None:
        """Map all pages. PeerMemoryFailed as `SharedMemory`."""
        self._counts = [ctypes.c_int64.from_address(at) for at in self._memory.open_peers(handles)]

    def meet(self, timeout_s: float) -> int | None:
        """Come, and wait for the others; who did not come in time. Before the pages are open there is nobody."""
        if not self._counts:
            return None
        self._count += 1
        self._counts[self._member.rank].value = self._count
        deadline = time.monotonic() + timeout_s
        for rank, count in enumerate(self._counts):
            while count.value < self._count:
                if time.monotonic() > deadline:
                    return rank
                time.sleep(_PAUSE_S)
        return None

    def seal(self) -> None:
        """All have opened the pages."""
        self._memory.seal()

    def close(self) -> None:
        """Let go of all pages."""
        self._counts = []
        self._memory.close()
