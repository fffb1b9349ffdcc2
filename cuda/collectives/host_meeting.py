"""Where the ranks' hosts meet when they begin and when they end; steps are met for on the devices."""

import ctypes
import time
from collections.abc import Sequence

from cuda.collectives.shared_memory import SharedMemory
from cuda.cpu.ranks import Group

_PAGE_BYTES = 4096
_PAUSE_S = 0.001


class HostMeeting:
    """One rank's end: a page of shared memory that says how many meetings it has come to."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._memory = SharedMemory(group.rank, [_PAGE_BYTES] * group.world_size)
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
        self._counts[self._group.rank].value = self._count
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
