"""The seam between the ranks of a group: memory that one rank owns and all ranks address.

Implementations: `cuda.collectives.shared_memory.SharedMemory`, and `cuda.gpu.memory.DeviceMemory` of GPUs, which is
gone for its peers too when its maker frees it. Who holds what when:

    own memory    made by the constructor, zeroed; gone after `close`
    handles       made by `export`; good until its owner calls `seal`, or `close`
    peers' memory mapped by `open_peers`; stays valid after the peer's `close`, or death, until the own `close`

What goes wrong between ranks. The group is one crash domain: whoever raises one of these is lost, and so are all.

PartFailed
├── PeerTimeout       a rank did not come in time
└── PeerMemoryFailed  a rank's memory cannot be made, opened, or is not what its handle says
"""

from collections.abc import Sequence
from typing import Protocol

from protocol.errors import PartFailed


class PeerMemory(Protocol):
    """One rank's end. Nothing here waits: that all have opened, and that all are done, ranks tell each other."""

    @property
    def address(self) -> int:
        """Where the own memory begins; at least 64-byte aligned."""

    def export(self) -> bytes:
        """The handle under which another process opens this memory."""

    def open_peers(self, handles: Sequence[bytes]) -> tuple[int, ...]:
        """Map the memory of all ranks, given in rank order, once; where each begins here, the own one included.

        PeerMemoryFailed if a handle is not of that rank, or its memory cannot be opened or is of another size.
        """

    def seal(self) -> None:
        """All peers have opened: from now on nobody else can, and nothing is left behind should this process die."""

    def close(self) -> None:
        """Let go of the peers' memory, then of the own; nothing may use either any more. May be called twice."""


class PeerTimeout(PartFailed):
    """Says which rank waited for which, how long, and where."""


class PeerMemoryFailed(PartFailed):
    """Says whose memory, and why."""
