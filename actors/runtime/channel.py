"""The sender's side between two actors' processes: a ref with two channels, each a Unix socket to one actor.

A channel connects when it is needed, and again after it broke. It buffers no more than its socket's transport takes;
past that senders wait, in order. What was sent to a life that has ended is never sent to the next one. The other side
is `actors.runtime.transport`.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec

from actors.runtime.ref import ActorRef, ActorStopped, Inbox, MessageRefused
from actors.runtime.transport import Frame, FrameKind, FrameReader, FrameRefused, encode_frame

InboxT = TypeVar("InboxT")
CONNECT_TIMEOUT_S = 5.0
RETRY_S = 0.02
MAX_UNSENT_BYTES = 2**20
"""In a channel's transport, give or take one message."""
_refusal_decoder = msgspec.msgpack.Decoder(str)


class RemoteRef(Generic[InboxT]):
    """An ActorRef to the mailbox served at `path`. Control messages have a socket of their own: neither waits."""

    def __init__(self, path: Path, name: str, inbox: Inbox, *, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        self.name = name
        self._control_types = inbox.control
        self._decoders = {asked: msgspec.msgpack.Decoder(answer) for asked, answer in inbox.replies.items()}
        self._messages = Channel(path, inbox, connect_timeout_s)
        self._control = Channel(path, inbox, connect_timeout_s)

    async def tell(self, message: InboxT) -> None:
        """Send; waits for the connection and for room. Raises ActorStopped, or MessageRefused if it is too large."""
        channel, frame = self.channel_for(message), encode_frame(FrameKind.TELL, 0, message)
        if not channel.try_send(frame):
            await channel.send_in_turn(frame)

    def try_tell(self, message: InboxT) -> bool:
        """Send without waiting; False when full or not connected."""
        return self.channel_for(message).try_send(encode_frame(FrameKind.TELL, 0, message))

    async def ask(self, message: InboxT, *, timeout_s: float) -> Any:  # noqa: ANN401 - what `receive` returned
        """Send and wait for the answer. Raises ActorStopped, TimeoutError, MessageRefused."""
        decoder = self._decoders[type(message)]
        async with asyncio.timeout(timeout_s):
            payload = await self.channel_for(message).ask(message)
        return decoder.decode(payload)

    async def close(self) -> None:
        """Drop both sockets."""
        await self._control.close()
        await self._messages.close()

    def channel_for(self, message: InboxT) -> "Channel":
        """The one of the two that such a message goes by."""
        return self._control if isinstance(message, self._control_types) else self._messages


async def tell_all(refs: Sequence[ActorRef[InboxT]], message: InboxT) -> list[str]:
    """Tell each of `refs`; what leaves the process is encoded once. Returns the names of those that have stopped."""
    frame = b""
    stopped = []
    for ref in refs:
        try:
            if isinstance(ref, RemoteRef):
                frame = frame or encode_frame(FrameKind.TELL, 0, message)
                channel = ref.channel_for(message)
                if not channel.try_send(frame):
                    await channel.send_in_turn(frame)
            else:
                await ref.tell(message)
        except ActorStopped:
            stopped.append(ref.name)
    return stopped


class Channel(asyncio.Protocol):
    """Frames to the socket at `path` and the answers that come back on it. Its last methods are the transport's."""

    def __init__(self, path: Path, inbox: Inbox, connect_timeout_s: float) -> None:
        self._path = path
        self._on_refused = inbox.on_refused
        self._connect_timeout_s = connect_timeout_s
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._is_full = False
        self._waiting: deque[tuple[bytes, asyncio.Future[None]]] = deque()
        """Frames for which there is no connection or no room, and who waits with each."""
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._last_correlation = 0
        self._reader = FrameReader()

    def try_send(self, frame: bytes) -> bool:
        """Send if that is possible now; False when it is full, others wait already, or nobody is connected."""
        if self._transport is None or self._transport.is_closing() or self._is_full or self._waiting:
            return False
        self._transport.write(frame)
        return True

    async def send_in_turn(self, frame: bytes) -> None:
        """Wait for the connection, for room and for those who came before, then send. Raises ActorStopped."""
        if self._transport is None and self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        sent = asyncio.get_running_loop().create_future()
        self._waiting.append((frame, sent))
        await sent

    async def ask(self, message: Any) -> bytes:  # noqa: ANN401 - of any inbox
        """Send and return the answer's payload. Raises ActorStopped, MessageRefused."""
        self._last_correlation += 1
        correlation = self._last_correlation
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[correlation] = answer
        try:
            frame = encode_frame(FrameKind.ASK, correlation, message)
            if not self.try_send(frame):
                await self.send_in_turn(frame)
            return await answer
        finally:
            self._asked.pop(correlation, None)
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # seen, also if sending has raised the same

    async def close(self) -> None:
        """Drop the connection; what its transport has, it still sends as far as the socket takes it."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._transport is not None:
            self._transport.close()
        self._lose("the ref was closed")

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                while self._transport is None:
                    try:
                        await loop.create_unix_connection(lambda: self, str(self._path))
                    except (FileNotFoundError, ConnectionRefusedError):  # not there yet, or not there again
                        await asyncio.sleep(RETRY_S)
        except (OSError, TimeoutError):
            self._lose(f"nobody listens on {self._path}")
        finally:
            self._connecting = None

    def _send_waiting(self) -> None:
        while self._waiting and self._transport is not None and not self._is_full:
            frame, sent = self._waiting.popleft()
            if not sent.done():  # it is when its sender has given up
                self._transport.write(frame)
                sent.set_result(None)

    def _lose(self, reason: str) -> None:
        self._transport = None
        self._is_full = False
        self._reader = FrameReader()
        awaited: list[asyncio.Future[Any]] = [*(sent for _, sent in self._waiting), *self._asked.values()]
        self._waiting.clear()
        for future in awaited:
            if not future.done():
                future.set_exception(ActorStopped(reason))

    def _receive(self, frame: Frame) -> None:
        """Take an answer, or the refusal of a message that was told."""
        if frame.kind is FrameKind.REFUSED and frame.correlation == 0:
            self._on_refused(_refusal_decoder.decode(frame.payload))
            return
        answer = self._asked.get(frame.correlation)
        if answer is None or answer.done():
            return  # its asker has given up
        if frame.kind is FrameKind.ANSWER:
            answer.set_result(frame.payload)
        elif frame.kind is FrameKind.REFUSED:
            answer.set_exception(MessageRefused(_refusal_decoder.decode(frame.payload)))
        else:
            answer.set_exception(ActorStopped(f"the actor behind {self._path} has stopped"))

    # ---- called by the transport ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A life to talk to."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        self._send_waiting()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it broke changes nothing
        """That life is over."""
        self._lose(f"the actor behind {self._path} has stopped")

    def data_received(self, data: bytes) -> None:
        """Answers."""
        try:
            for frame in self._reader.split(data):
                self._receive(frame)
        except FrameRefused:
            if self._transport is not None:
                self._transport.close()  # then `connection_lost` ends everybody's wait

    def pause_writing(self) -> None:
        """No room."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Room again."""
        self._is_full = False
        self._send_waiting()
