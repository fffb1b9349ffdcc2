"""The seam between a socket and a dialect: frames in, commands out; events in, frames out. No I/O, no clock.

Two implementations: `protocol.native.session.NativeSession` and `protocol.responses.ResponsesSession`. After every call
of `receive_frame` or `send_event` a connection drains `take_commands` and `take_frames`, in that order.
`take_refusals` is for whoever counts.
"""

from abc import ABC, abstractmethod

from protocol.errors import ErrorCode
from protocol.wire import SessionCommand, SessionEvent

Frame = str | bytes


class Session(ABC):
    """One connection's dialect state. Nothing that arrives makes it raise: a bad frame becomes an outgoing error."""

    def __init__(self) -> None:
        self._commands: list[SessionCommand] = []
        self._frames: list[Frame] = []
        self._refusals: list[ErrorCode] = []

    @abstractmethod
    def receive_frame(self, frame: Frame) -> None:
        """Take one complete WebSocket message: text as str, binary as bytes."""

    @abstractmethod
    def send_event(self, event: SessionEvent) -> None:
        """Take one event of a request that this session asked for; events of unknown ids are dropped."""

    def take_commands(self) -> list[SessionCommand]:
        """Commands read so far, oldest first; each is handed out once."""
        commands, self._commands = self._commands, []
        return commands

    def take_frames(self) -> list[Frame]:
        """Frames to send, oldest first; each is handed out once."""
        frames, self._frames = self._frames, []
        return frames

    def take_refusals(self) -> list[ErrorCode]:
        """Codes of the frames that the session itself has refused, oldest first; each is handed out once."""
        refusals, self._refusals = self._refusals, []
        return refusals
