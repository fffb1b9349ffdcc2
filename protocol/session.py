"""The seam between a socket and a dialect: frames in, commands out; events in, frames out. No I/O, no clock.

Two implementations: `protocol.native.session.NativeSession` and `protocol.responses.ResponsesSession`. What a frame or
an event commands is handed back at once, at most one command each; frames gather until `take_frames`, so that those of
a tick leave together, and `take_refusals` is for whoever counts. Below stands what both share: which ids are in use,
and reading any bytes.
"""

from abc import ABC, abstractmethod
from typing import Literal

import msgspec
from msgspec import Struct

from protocol.errors import ErrorCode, RequestError, invalid
from protocol.wire import SessionCommand, SessionEvent

Frame = str | bytes
Encoding = Literal["json", "msgpack"]

_JSON = msgspec.json.Encoder()
_MSGPACK = msgspec.msgpack.Encoder()

MAX_LIVE = 16_384
MAX_ENDED = 4_096


class Session(ABC):
    """One connection's dialect state. Nothing that arrives makes it raise: a bad frame becomes an outgoing error."""

    def __init__(self) -> None:
        self._ids = LiveIds()
        self._frames: list[Frame] = []
        self._refusals: list[ErrorCode] = []

    @abstractmethod
    def receive_frame(self, frame: Frame) -> SessionCommand | None:
        """Take one complete WebSocket message, text as str, binary as bytes; returns what it commands."""

    @abstractmethod
    def send_event(self, event: SessionEvent) -> SessionCommand | None:
        """Take one event of a request that this session asked for; events of unknown ids are dropped.

        Returns the command that has waited for this end.
        """

    @property
    def has_frames(self) -> bool:
        """There is something to send."""
        return bool(self._frames)

    def take_frames(self) -> list[Frame]:
        """Frames to send, oldest first; each is handed out once."""
        frames, self._frames = self._frames, []
        return frames

    def take_refusals(self) -> list[ErrorCode]:
        """Codes of the frames that the session itself has refused, oldest first; each is handed out once."""
        refusals, self._refusals = self._refusals, []
        return refusals


class LiveIds:
    """Which ids of one connection are running, which have ended, and which the client never used.

    With it "exactly one terminal event, nothing after it" is true per connection. Memory is bounded: at most MAX_LIVE
    running ids, and the MAX_ENDED youngest of those that ended.
    """

    def __init__(self) -> None:
        self._live: dict[str, bool] = {}
        """id -> muted: its terminal event is out already, the engine's own one is still to come."""
        self._ended: dict[str, None] = {}

    def begin(self, name: str) -> None:
        """`name` runs from now on. Raises RequestError when no further one may, until one ends."""
        if len(self._live) >= MAX_LIVE:
            message = f"this connection has {MAX_LIVE:,} requests running, which is the limit"
            raise RequestError("overloaded", message, retry_after_ms=1000)
        self._ended.pop(name, None)
        self._live[name] = False

    def end(self, name: str) -> None:
        """`name` has its terminal event and may be used again."""
        self._live.pop(name, None)
        self._ended[name] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.pop(next(iter(self._ended)))

    def mute(self, name: str) -> None:
        """The client was told the end of `name`; whatever the engine still says of it is dropped."""
        self._live[name] = True

    def is_live(self, name: str) -> bool:
        """It occupies its name, muted or not."""
        return name in self._live

    def is_heard(self, name: str) -> bool:
        """It runs and the client waits for its events."""
        return self._live.get(name) is False

    def was_used(self, name: str) -> bool:
        """It runs or ended lately: what still arrives about it is late, not wrong."""
        return name in self._live or name in self._ended


def encode(message: Struct, encoding: Encoding) -> Frame:
    """A frame to send: text for JSON, binary for msgpack."""
    return _JSON.encode(message).decode() if encoding == "json" else _MSGPACK.encode(message)


def read_map(frame: Frame, encoding: Encoding) -> dict[str, object]:
    """Decode any bytes, the first step of both dialects; RequestError, and nothing else, for what is not one map.

    Sizes are bounded by the socket's message limit, nesting by the decoder's recursion limit.
    """
    try:
        if encoding == "json":
            if not isinstance(frame, str):
                raise invalid(None, "this connection speaks JSON in text frames; a binary frame came")
            value = msgspec.json.decode(frame)
        else:
            if isinstance(frame, str):
                raise invalid(None, "this connection speaks msgpack in binary frames; a text frame came")
            value = msgspec.msgpack.decode(frame)
    except RecursionError as error:
        raise invalid(None, "the frame is nested too deeply") from error
    except (ValueError, OverflowError) as error:  # msgspec's errors are ValueErrors, and so is a lone surrogate
        reason = "it is not valid Unicode" if isinstance(error, UnicodeError) else str(error)
        raise invalid(None, f"the frame is not valid {encoding}: {reason}") from error
    if not isinstance(value, dict):
        raise invalid(None, "the frame is not an object")
    return value
