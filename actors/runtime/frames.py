"""Length-prefixed frames: bytes in, frames out. No I/O.

    u32 payload length | u8 kind | u64 correlation id | payload (msgpack)

The correlation id pairs an ANSWER, STOPPED or REFUSED frame with its ASK; TELL frames carry 0.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

HEADER = struct.Struct("<IBQ")
MAX_FRAME_BYTES = 64 * 2**20


class FrameKind(IntEnum):
    """What a frame is for."""

    TELL = 0
    ASK = 1
    ANSWER = 2
    STOPPED = 3
    """The actor stopped before it answered."""
    REFUSED = 4
    """The message is none of the actor's inbox; the payload says why."""


class Frame(NamedTuple):
    """One frame."""

    kind: FrameKind
    correlation: int
    payload: bytes


class FrameRefused(Exception):  # noqa: N818 - like websockets' ConnectionClosed, it says what happened
    """A frame is larger than the bound or of an unknown kind: nothing after it can be trusted."""


def encode_frame(kind: FrameKind, correlation: int, payload: bytes, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Bytes of one frame. Raises FrameRefused if the payload is over the bound."""
    if len(payload) > max_bytes:
        raise FrameRefused(f"a message of {len(payload):,} bytes; the limit is {max_bytes:,}")
    return HEADER.pack(len(payload), kind, correlation) + payload


class FrameReader:
    """Splits what a socket delivers into frames; holds at most one unfinished frame and what came with it."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._start = 0
        """Where the next frame begins in the buffer."""

    def feed(self, data: bytes) -> None:
        """Take what arrived."""
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """Return the next complete frame, None if it has not arrived wholly. Raises FrameRefused."""
        start = self._start
        if len(self._buffer) - start < HEADER.size:
            return None
        length, kind, correlation = HEADER.unpack_from(self._buffer, start)
        if length > self._max_bytes or kind > FrameKind.REFUSED:
            raise FrameRefused(f"a frame of {length:,} bytes and kind {kind}; the limit is {self._max_bytes:,}")
        end = start + HEADER.size + length
        if len(self._buffer) < end:
            return None
        self._start = end
        return Frame(FrameKind(kind), correlation, bytes(self._buffer[start + HEADER.size : end]))
