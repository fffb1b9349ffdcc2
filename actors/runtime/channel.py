"""One lane of a RemoteRef: one Unix socket to one life of an actor, connected when needed and again after it broke.

Owns a bounded outgoing queue (full: senders wait). All frames that wait at the end of a loop turn go in one write.
What was queued for a life that has ended is never sent to the next one.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

from actors.runtime.frames import Frame, FrameKind, FrameReader, FrameRefused, encode_frame
from actors.runtime.lane import Lane
from actors.runtime.ref import ActorStopped

MAX_WRITE_BYTES = 2**20
RETRY_S = 0.02


class MessageRefused(Exception):  # noqa: N818 - pairs with ActorStopped
    """The actor's inbox has no such message, or it is too large."""


class Link:
    """Frames to the socket at `path` and the answers that come back on it."""

    def __init__(
        self, path: Path, on_refused: Callable[[str], None], *, capacity: int, connect_timeout_s: float
    ) -> None:
        self._path = path
        self._on_refused = on_refused
        self._connect_timeout_s = connect_timeout_s
        self._outgoing: Lane[bytes] = Lane(capacity)
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._last_correlation = 0
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._flush_is_due = False

    async def tell(self, payload: bytes) -> None:
        """Send; waits for the connection and for room. Raises ActorStopped, MessageRefused (too large)."""
        await self._send(_encode(FrameKind.TELL, 0, payload))

    def try_tell(self, payload: bytes) -> bool:
        """Send if there is room now. True while a connection is being made; that message is lost if it fails."""
        frame = _encode(FrameKind.TELL, 0, payload)
        self._connect_if_needed()
        if not self._outgoing.offer(frame):
            return False
        self._flush_soon()
        return True

    async def ask(self, payload: bytes) -> bytes:
        """Send and return the answer's payload. Raises ActorStopped, MessageRefused."""
        self._last_correlation += 1
        correlation = self._last_correlation
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[correlation] = answer
        try:
            await self._send(_encode(FrameKind.ASK, correlation, payload))
            return await answer
        finally:
            self._asked.pop(correlation, None)
            answer.cancel()

    async def close(self) -> None:
        """Send what is queued as far as the socket takes it, then drop the connection."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        self._flush()
        if self._connection is not None:
            self._connection.close()
        self._lose("the ref was closed")

    async def _send(self, frame: bytes) -> None:
        connecting = self._connect_if_needed()
        entered = self._outgoing.push(frame)
        self._flush_soon()
        if entered is not None:
            await entered
        if connecting is not None:
            await asyncio.wait([connecting])
            if self._connection is None:
                raise ActorStopped(f"nobody listens on {self._path}")

    def _flush_soon(self) -> None:
        if not self._flush_is_due and self._connection is not None:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        while self._connection is not None and not self._connection.is_full and len(self._outgoing):
            self._connection.write(b"".join(self._take_frames()))

    def _take_frames(self) -> list[bytes]:
        frames: list[bytes] = []
        num_bytes = 0
        while num_bytes < MAX_WRITE_BYTES and (frame := self._outgoing.pop()) is not None:
            frames.append(frame)
            num_bytes += len(frame)
        return frames

    def _connect_if_needed(self) -> asyncio.Task[None] | None:
        if self._connection is not None:
            return None
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        return self._connecting

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                while self._connection is None:
                    try:
                        await loop.create_unix_connection(lambda: _Connection(self), str(self._path))
                    except (FileNotFoundError, ConnectionRefusedError):  # not there yet, or not there again
                        await asyncio.sleep(RETRY_S)
        except (OSError, TimeoutError):
            self._lose(f"nobody listens on {self._path}")
        finally:
            self._connecting = None

    # ---- called by the connection -----------------------------------------------------------------------------------

    def connected(self, connection: "_Connection") -> None:
        """A life to talk to."""
        self._connection = connection
        self._flush()

    def disconnected(self, connection: "_Connection") -> None:
        """That life is over."""
        if self._connection is connection:
            self._lose(f"the actor behind {self._path} has stopped")

    def resume(self) -> None:
        """Room again in the socket."""
        self._flush()

    def receive(self, frame: Frame) -> None:
        """Take an answer, or the refusal of a message that was told."""
        if frame.kind is FrameKind.REFUSED and frame.correlation == 0:
            self._on_refused(frame.payload.decode())
            return
        answer = self._asked.get(frame.correlation)
        if answer is None or answer.done():
            return  # its asker has given up
        if frame.kind is FrameKind.ANSWER:
            answer.set_result(frame.payload)
        elif frame.kind is FrameKind.REFUSED:
            answer.set_exception(MessageRefused(frame.payload.decode()))
        else:
            answer.set_exception(ActorStopped(f"the actor behind {self._path} has stopped"))

    def _lose(self, reason: str) -> None:
        self._connection = None
        self._outgoing.clear(reason)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ActorStopped(reason))


class _Connection(asyncio.Protocol):
    def __init__(self, link: Link) -> None:
        self._link = link
        self._reader = FrameReader()
        self._transport: asyncio.WriteTransport | None = None
        self.is_full = False

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self._link.connected(self)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (frame := self._reader.next_frame()) is not None:
                self._link.receive(frame)
        except FrameRefused:
            self.close()  # then `connection_lost` ends everybody's wait

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._link.resume()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it broke changes nothing
        self._transport = None
        self._link.disconnected(self)


def _encode(kind: FrameKind, correlation: int, payload: bytes) -> bytes:
    try:
        return encode_frame(kind, correlation, payload)
    except FrameRefused as refused:
        raise MessageRefused(str(refused)) from None
