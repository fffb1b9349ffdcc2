"""The seam between a socket and a dialect: frames in, commands out; events in, frames out. No I/O, no clock.

Two implementations: `protocol.stream.StreamSession` (own dialect) and `protocol.responses.ResponsesSession`. After
every call of `receive_frame` or `send_event` a connection drains `take_commands` and `take_frames`, in that order.
`take_refusals` is for whoever counts.
"""

from typing import Protocol

from protocol.errors import ErrorCode
from protocol.wire import SessionCommand, SessionEvent

Frame = str | bytes


class Session(Protocol):
    """One connection's dialect state. Nothing that arrives makes it raise: a bad frame becomes an outgoing error."""

    def receive_frame(self, frame: Frame) -> None:
        """Take one complete WebSocket message: text as str, binary as bytes."""

    def send_event(self, event: SessionEvent) -> None:
        """Take one event of a request that this session asked for; events of unknown ids are dropped."""

    def take_commands(self) -> list[SessionCommand]:
        """Commands read so far, oldest first; each is handed out once."""

    def take_frames(self) -> list[Frame]:
        """Frames to send, oldest first; each is handed out once."""

    def take_refusals(self) -> list[ErrorCode]:
        """Codes of the frames that the session itself has refused, oldest first; each is handed out once."""
