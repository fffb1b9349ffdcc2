"""What passes between two actors' processes, and the receiver's side of it: a mailbox served on a Unix socket.

    a frame: u32 payload length | u8 kind | u64 correlation id | payload (msgpack)

The correlation id pairs an ANSWER, STOPPED or REFUSED frame with its ASK; TELL frames carry 0. Messages are decoded
against the actor's inbox as they come in; a full mailbox stops the reading, which stops the sender. What waits outside
the mailbox is what one reading of the socket brought. The sender's side is `actors.runtime.channel`.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec
import structlog

from actors.runtime.mailbox import Envelope, Mailbox
from actors.runtime.ref import ActorStopped, MessageRefused

InboxT = TypeVar("InboxT")
HEADER = struct.Struct("<IBQ")
MAX_FRAME_BYTES = 64 * 2**20

log = structlog.get_logger()
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


@asynccontextmanager
async def serve_mailbox(
    mailbox: Mailbox[InboxT],
    path: Path,
    inbox: Any,  # noqa: ANN401 - a union is no type[InboxT]
) -> AsyncIterator[None]:
    """Let other processes reach `mailbox` on the Unix socket `path` while the block runs; `inbox` is what may come."""
    decoder: msgspec.msgpack.Decoder[InboxT] = msgspec.msgpack.Decoder(inbox)
    peers: set[_Peer[InboxT]] = set()
    path.unlink(missing_ok=True)  # noqa: ASYNC240 - quick; the socket of a life that was killed
    server = await asyncio.get_running_loop().create_unix_server(lambda: _Peer(mailbox, decoder, peers), str(path))
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - quick
        await asyncio.sleep(0)  # lets the last answers into their sockets
        for peer in list(peers):
            peer.close()


class _Peer(asyncio.Protocol, Generic[InboxT]):
    """One connection of one other process: frames into the mailbox, answers back."""

    def __init__(
        self, mailbox: Mailbox[InboxT], decoder: "msgspec.msgpack.Decoder[InboxT]", peers: "set[_Peer[InboxT]]"
    ) -> None:
        self._mailbox = mailbox
        self._decoder = decoder
        self._peers = peers
        self._reader = FrameReader()
        self._transport: asyncio.Transport
        self._last_outside: asyncio.Future[None] | None = None
        """Done once nothing that came from here waits for room in the mailbox."""
        self._cannot_answer = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._peers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it broke changes nothing
        self._peers.discard(self)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.split(data):
                self._deliver(frame)
        except FrameRefused as refused:
            log.error("frame refused", reason=str(refused))  # noqa: TRY400 - the peer's fault, no traceback of ours
            self.close()
        except ActorStopped:
            self.close()

    def pause_writing(self) -> None:
        self._cannot_answer = True  # a peer that does not read its answers may not ask for more
        self._set_reading()

    def resume_writing(self) -> None:
        self._cannot_answer = False
        self._set_reading()

    def _set_reading(self) -> None:
        if self._transport.is_closing():
            return
        if self._last_outside is not None or self._cannot_answer:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _deliver(self, frame: Frame) -> None:
        try:
            message = self._decoder.decode(frame.payload)
        except msgspec.DecodeError as error:
            log.error("message refused", reason=str(error))  # noqa: TRY400 - the peer's fault, no traceback of ours
            self._write(FrameKind.REFUSED, frame.correlation, str(error))
            return
        reply = self._reply(frame.correlation) if frame.kind is FrameKind.ASK else None
        entered = self._mailbox.push(Envelope(message, reply))
        if entered is not None:
            self._last_outside = entered
            self._set_reading()
            entered.add_done_callback(self._entered)

    def _entered(self, entered: asyncio.Future[None]) -> None:
        if entered.exception() is not None:
            self.close()
        elif entered is self._last_outside:
            self._last_outside = None
            self._set_reading()

    def _reply(self, correlation: int) -> asyncio.Future[Any]:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        reply.add_done_callback(partial(self._answer, correlation))
        return reply

    def _answer(self, correlation: int, reply: asyncio.Future[Any]) -> None:
        if reply.exception() is not None:
            self._write(FrameKind.STOPPED, correlation, None)
        else:
            self._write(FrameKind.ANSWER, correlation, reply.result())

    def _write(self, kind: FrameKind, correlation: int, message: Any) -> None:  # noqa: ANN401 - any answer
        if not self._transport.is_closing():
            self._transport.write(encode_frame(kind, correlation, message))
