"""One client connection: a dialect session, the streams that it asked for (`orders`), the socket between them and it.

A reader takes frames in order and hands commands on; events leave from `flush`, once a tick, and only while the client
keeps up: else they wait in their streams, and the writer task flushes once the socket has drained. `enforce_deadlines`
drops clients that do not authenticate or do not read. `except Exception` stands here: what breaks is one client's.
"""

import asyncio
import math
import traceback

import structlog
from websockets.exceptions import ConnectionClosed

from actors.ingress.client_socket import ClientSocket
from actors.ingress.config import IngressConfig
from actors.ingress.desk import Desk
from actors.ingress.orders import Orders
from actors.ingress.stream import Stream
from protocol.session import Session
from protocol.wire import Draining

log = structlog.get_logger()

GOING_AWAY = 1001
ABNORMAL = 1006
POLICY = 1008
INTERNAL = 1011
OVERLOADED = 1013

MAX_WRITE_BYTES = 256 * 1024
"""About what streams give for one write, after which the socket is asked whether it takes more."""


class Connection:
    """Lives as long as its socket; `run` is its whole life."""

    def __init__(self, socket: ClientSocket, session: Session, desk: Desk, config: IngressConfig) -> None:
        self._socket = socket
        self._session = session
        self._desk = desk
        self._config = config
        self._orders = Orders(session, desk, socket.tenant, self._note)
        self._news: list[Stream] = []
        """Streams with events to take."""
        self._is_dirty = False
        self._authenticate_by = desk.clock.now() + config.authenticate_timeout_s
        self._stalled_at: float | None = None
        """Since when the socket is full."""
        self._closing: tuple[int, str] | None = None
        self._close_by = math.inf
        self._writer_due = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing waits to be sent."""
        return not self._orders.streams and not self._orders.are_left and self._stalled_at is None

    async def run(self) -> int:
        """Serve until the socket is closed; returns the close code."""
        try:
            self.flush()
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self._write())
                await self._read()
                writer.cancel()
        except Exception as error:  # noqa: BLE001 - one client's connection, not the server's
            self._fail(error)
            await self._socket.close(INTERNAL)
        finally:
            self._news.clear()
            self._orders.abandon()
        if self._closing is not None:
            return self._closing[0]
        return self._socket.close_code or ABNORMAL

    def close(self, code: int, reason: str) -> None:
        """Ask for a close handshake after what is buffered; at once when the client does not read."""
        if self._closing is not None:
            return
        self._closing = (code, reason)
        self._close_by = self._desk.clock.now() + self._config.close_timeout_s
        self._writer_due.set()
        if not self._socket.is_writable:
            self._socket.abort()

    def abort(self) -> None:
        """Drop the client without a farewell."""
        self._socket.abort()

    def announce_drain(self, deadline_ms: int) -> None:
        """Tell the client how long its requests have."""
        self._session.send_event(Draining(deadline_ms=deadline_ms))
        self._soil()

    def enforce_deadlines(self, now: float) -> None:
        """Part with a client that has not shown a key, or has not read, for too long."""
        if now >= self._close_by:
            self.abort()
        if self._orders.tenant is None and now >= self._authenticate_by:
            self.close(POLICY, "no key within the time allowed")
        if self._stalled_at is not None and now >= self._stalled_at + self._config.send_timeout_s:
            self._drop()

    def flush(self) -> None:
        """Send what is due, in one write unless much has waited; nothing while the client does not keep up."""
        while not self._is_stalled():
            self._take_news()
            frames = self._session.take_frames()
            if frames:
                self._socket.send_frames(frames)
            if not self._news:
                break

    def _flush_due(self) -> None:
        """What breaks here is this connection's affair, not that of whoever flushes all of them."""
        self._is_dirty = False
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001 - as in `run`
            self._news.clear()
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        log.error("connection failed", error=_where(error))
        self.close(INTERNAL, "internal error")

    def _take_news(self) -> None:
        """Events of streams to the session, about as much as makes one write; the streams left come first next time."""
        news, self._news = self._news, []
        size = 0
        for position, stream in enumerate(news, 1):
            size += stream.backlog_bytes
            for event in stream.take_events():
                self._session.send_event(event)
            if stream.has_news:
                self._news.append(stream)
            elif stream.has_ended:
                self._orders.streams.pop(stream.client_id, None)
                self._orders.collect()
            if size > MAX_WRITE_BYTES:
                self._news = news[position:] + self._news
                break
        if self._orders.are_left:
            self._writer_due.set()

    def _drop(self) -> None:
        if self._closing is None:
            log.info("client dropped: it does not read", streams=len(self._orders.streams))
            self.close(POLICY, "not reading")

    def _is_stalled(self) -> bool:
        """Whether the client does not keep up; keeps the time since when, and has the writer wait for it."""
        if self._socket.is_writable:
            self._stalled_at = None
            return False
        if self._stalled_at is None:
            self._stalled_at = self._desk.clock.now()
        self._writer_due.set()
        if sum(stream.backlog_bytes for stream in self._news) > self._config.max_backlog_bytes:
            self._drop()
        self._soil()  # what waits grows with every tick: look again
        return True

    async def _read(self) -> None:
        try:
            while True:
                frame = await self._socket.recv()
                await self._socket.wait_writable()
                self._session.receive_frame(frame)
                self._count_refusals()
                await self._obey()
                self.flush()
                await asyncio.sleep(0)  # a client that sends without end must not keep others from their turn
        except ConnectionClosed:
            return

    async def _write(self) -> None:
        try:
            while True:
                await self._writer_due.wait()
                self._writer_due.clear()
                if self._closing is not None:
                    await self._socket.close(*self._closing)
                    return
                await self._socket.wait_writable()
                await self._obey()
                self.flush()
        except ConnectionClosed:
            return

    async def _obey(self) -> None:
        await self._orders.obey()
        if self._orders.has_wrong_key:
            self.close(POLICY, "wrong key")

    def _count_refusals(self) -> None:
        for code in self._session.take_refusals():
            self._desk.metrics.count_failure(code)

    def _note(self, stream: Stream) -> None:
        self._news.append(stream)
        self._soil()

    def _soil(self) -> None:
        if not self._is_dirty:
            self._is_dirty = True
            self._desk.due.append(self._flush_due)


def _where(error: BaseException) -> str:
    """Type and place of an error; not its message, which may quote a client."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {place.name} ({place.filename}:{place.lineno})"
