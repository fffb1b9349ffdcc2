"""Length-prefixed frames: bytes in, frames out. No I/O.

    u32 payload length | u8 kind | u64 correlation id | payload (msgpack)

The correlation id pairs an ANSWER, STOPPED or REFUSED frame with its ASK; TELL frames carry 0.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from actors.runtime.ref import MessageRefused

HEADER = struct.Struct("<IBQ")
MAX_FRAME_BYTES = 64 * 2**20

_encode = msgspec.msgpack.Encoder().encode


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


def encode_frame(kind: FrameKind, correlation: int, message: Any) -> bytes:  # noqa: ANN401 - of any inbox
    """Bytes of one frame. Raises MessageRefused if the payload is over the bound."""
    payload = _encode(message)
    if len(payload) > MAX_FRAME_BYTES:
        raise MessageRefused(f"a message of {len(payload):,} bytes; the limit is {MAX_FRAME_BYTES:,}")
    return HEADER.pack(len(payload), kind, correlation) + payload


class FrameReader:
    """Splits what a socket delivers into frames; keeps at most one that is unfinished."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def split(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` has completed; to be read to the end. Raises FrameRefused."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= HEADER.size:
            length, kind, correlation = HEADER.unpack_from(buffer, start)
            if length > MAX_FRAME_BYTES or kind > FrameKind.REFUSED:
                raise FrameRefused(f"a frame of {length:,} bytes and kind {kind}; the limit is {MAX_FRAME_BYTES:,}")
            end = start + HEADER.size + length
            if len(buffer) < end:
                break
            yield Frame(FrameKind(kind), correlation, bytes(buffer[start + HEADER.size : end]))
            start = end
        del buffer[:start]
