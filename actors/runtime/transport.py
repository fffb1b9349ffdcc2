"""Actors in processes of their own: a mailbox served on a Unix socket, and the ref that reaches it from elsewhere.

Messages are decoded against the actor's inbox at the door; a full mailbox stops the reading, which stops the sender.
A ref has one socket for control messages and one for all others, so neither waits for the other. Read `link` next.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
import structlog

from actors.runtime.channel import Link
from actors.runtime.frames import MAX_FRAME_BYTES, Frame, FrameKind, FrameReader, FrameRefused, encode_frame
from actors.runtime.mailbox import Envelope, Mailbox
from actors.runtime.ref import ActorStopped

InboxT = TypeVar("InboxT")
CONNECT_TIMEOUT_S = 5.0
OUTGOING_CAPACITY = 1024

log = structlog.get_logger()
encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class Dialect:
    """What a sender must know about messages beside their types."""

    replies: Mapping[type, Any] = field(default_factory=dict)
    """Each message type that may be asked, and the type of its answer."""
    is_control: Callable[[Any], bool] = lambda _: False
    """Which messages go by a socket of their own, past everything that waits."""
    on_refused: Callable[[str], None] = lambda reason: log.error("a message of ours was refused", reason=reason)
    """Hears that a told message was none of the inbox: the sender's mistake. (An ask raises MessageRefused.)"""


class RemoteRef(Generic[InboxT]):
    """An ActorRef to the mailbox served at `path`; connects when first used and again after its actor restarted."""

    def __init__(
        self,
        path: Path,
        name: str,
        dialect: Dialect,
        *,
        capacity: int = OUTGOING_CAPACITY,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._name = name
        self._is_control = dialect.is_control
        self._decoders = {asked: msgspec.msgpack.Decoder(answer) for asked, answer in dialect.replies.items()}
        link = partial(Link, path, dialect.on_refused, capacity=capacity, connect_timeout_s=connect_timeout_s)
        self._messages = link()
        self._control = link()

    @property
    def name(self) -> str:
        """The actor's name."""
        return self._name

    async def tell(self, message: InboxT) -> None:
        """Send; waits for the connection and for room. Raises ActorStopped, or MessageRefused if it is too large."""
        await self._link(message).tell(encode(message))

    def try_tell(self, message: InboxT) -> bool:
        """Send without waiting; False when full."""
        return self._link(message).try_tell(encode(message))

    async def ask(self, message: InboxT, *, timeout_s: float) -> Any:  # noqa: ANN401 - what `receive` returned
        """Send and wait for the answer. Raises ActorStopped, TimeoutError, MessageRefused."""
        decoder = self._decoders[type(message)]
        async with asyncio.timeout(timeout_s):
            payload = await self._link(message).ask(encode(message))
        return decoder.decode(payload)

    async def close(self) -> None:
        """Drop both sockets."""
        await self._control.close()
        await self._messages.close()

    def _link(self, message: InboxT) -> Link:
        return self._control if self._is_control(message) else self._messages


@asynccontextmanager
async def serve_mailbox(
    mailbox: Mailbox[InboxT],
    path: Path,
    inbox: Any,  # noqa: ANN401 - a union is no type[InboxT]
    *,
    max_frame_bytes: int = MAX_FRAME_BYTES,
) -> AsyncIterator[None]:
    """Let other processes reach `mailbox` on the Unix socket `path` while the block runs; `inbox` is what may come."""
    decoder: msgspec.msgpack.Decoder[InboxT] = msgspec.msgpack.Decoder(inbox)
    peers: set[_Peer[InboxT]] = set()
    path.unlink(missing_ok=True)  # noqa: ASYNC240 - quick; the socket of a life that was killed
    server = await asyncio.get_running_loop().create_unix_server(
        lambda: _Peer(mailbox, decoder, peers, max_frame_bytes), str(path)
    )
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
        self,
        mailbox: Mailbox[InboxT],
        decoder: msgspec.msgpack.Decoder[InboxT],
        peers: "set[_Peer[InboxT]]",
        max_frame_bytes: int,
    ) -> None:
        self._mailbox = mailbox
        self._decoder = decoder
        self._peers = peers
        self._reader = FrameReader(max_frame_bytes)
        self._transport: asyncio.Transport
        self._waits_for_room = False
        self._cannot_answer = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._peers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it broke changes nothing
        self._peers.discard(self)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        self._deliver()

    def pause_writing(self) -> None:
        self._cannot_answer = True  # a peer that does not read its answers may not ask for more
        self._set_reading()

    def resume_writing(self) -> None:
        self._cannot_answer = False
        self._set_reading()

    def _set_reading(self) -> None:
        if self._transport.is_closing():
            return
        if self._waits_for_room or self._cannot_answer:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _deliver(self) -> None:
        try:
            while not self._waits_for_room and (frame := self._reader.next_frame()) is not None:
                self._open(frame)
        except FrameRefused as refused:
            log.error("frame refused", reason=str(refused))  # noqa: TRY400 - the peer's fault, no traceback of ours
            self.close()
        except ActorStopped:
            self.close()

    def _open(self, frame: Frame) -> None:
        try:
            message = self._decoder.decode(frame.payload)
        except msgspec.DecodeError as error:
            self._refuse(frame, str(error))
            return
        entered = self._mailbox.push(Envelope(message, self._expect_answer(frame)))
        if entered is not None:
            self._waits_for_room = True
            self._set_reading()
            entered.add_done_callback(self._entered)

    def _entered(self, entered: asyncio.Future[None]) -> None:
        self._waits_for_room = False
        if entered.exception() is not None:
            self.close()
            return
        self._deliver()
        self._set_reading()

    def _refuse(self, frame: Frame, reason: str) -> None:
        log.error("message refused", reason=reason)
        self._write(FrameKind.REFUSED, frame.correlation, reason.encode())

    def _expect_answer(self, frame: Frame) -> asyncio.Future[Any] | None:
        if frame.kind is not FrameKind.ASK:
            return None
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        reply.add_done_callback(partial(self._answer, frame.correlation))
        return reply

    def _answer(self, correlation: int, reply: asyncio.Future[Any]) -> None:
        if reply.exception() is not None:
            self._write(FrameKind.STOPPED, correlation, b"")
        else:
            self._write(FrameKind.ANSWER, correlation, encode(reply.result()))

    def _write(self, kind: FrameKind, correlation: int, payload: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(encode_frame(kind, correlation, payload))
