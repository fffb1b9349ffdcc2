"""What goes wrong between ranks. The group is one crash domain: whoever raises one of these is lost, and so are all.

PartFailed
├── PeerTimeout       a rank did not come in time
└── PeerMemoryFailed  a rank's memory cannot be made, opened, or is not what its handle says
"""

from protocol.errors import PartFailed


class PeerTimeout(PartFailed):
    """Says which rank waited for which, how long, and where."""


class PeerMemoryFailed(PartFailed):
    """Says whose memory, and why."""
