"""One client connection: a dialect session, the socket between it and its client, and what it asked for (`Listener`).

A reader takes frames in order and obeys what each commands; events leave from `flush`, once a tick, and only while the
client keeps up: else they wait in their streams, and the writer task flushes once the socket has drained. A command
that cannot be obeyed becomes a `failed` for its request and touches nothing else. `enforce_deadlines` drops clients
that do not authenticate or do not read. `except Exception` stands here: what breaks is one client's.
"""

import asyncio
import math
import traceback
from collections import deque
from dataclasses import dataclass
from typing import assert_never

import structlog
from websockets.exceptions import ConnectionClosed

from actors.ingress.access import Keys
from actors.ingress.client_socket import ClientSocket
from actors.ingress.config import IngressConfig
from actors.ingress.live_requests import EngineStatus, Listener, LiveRequests
from actors.ingress.metrics import IngressMetrics
from actors.runtime.clock import Clock
from protocol.errors import RequestError
from protocol.model_info import ModelInfo
from protocol.session import Session
from protocol.wire import (
    Authenticate,
    Cancel,
    Credit,
    Draining,
    Generate,
    Resume,
    SessionCommand,
    Warm,
    failed_event,
)

log = structlog.get_logger()

GOING_AWAY = 1001
ABNORMAL = 1006
POLICY = 1008
INTERNAL = 1011
OVERLOADED = 1013

MAX_WRITE_BYTES = 256 * 1024
"""About what streams give for one write, after which the socket is asked whether it takes more."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Shared:
    """What all connections of one ingress share."""

    config: IngressConfig
    model: ModelInfo
    keys: Keys
    status: EngineStatus
    live: LiveRequests
    metrics: IngressMetrics
    clock: Clock


class Connection:
    """Lives as long as its socket; `run` is its whole life."""

    def __init__(self, socket: ClientSocket, session: Session, shared: Shared) -> None:
        self._socket = socket
        self._session = session
        self._shared = shared
        self._config = shared.config
        self._live = shared.live
        self._tenant = socket.tenant
        """None: no valid key yet."""
        self._listener = Listener(self.flush, shared.live)
        self._waiting: deque[SessionCommand] = deque()
        """What the end of a request has let begin, for the writer to obey."""
        self._authenticate_by = shared.clock.now() + shared.config.authenticate_timeout_s
        self._stalled_at: float | None = None
        """Since when the socket is full."""
        self._closing: tuple[int, str] | None = None
        self._close_by = math.inf
        self._writer_due = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing waits to be sent."""
        return not self._listener.streams and not self._waiting and self._stalled_at is None

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
            self._live.abandon(self._listener)
        if self._closing is not None:
            return self._closing[0]
        return self._socket.close_code or ABNORMAL

    def close(self, code: int, reason: str) -> None:
        """Ask for a close handshake after what is buffered; at once when the client does not read."""
        if self._closing is not None:
            return
        self._closing = (code, reason)
        self._close_by = self._shared.clock.now() + self._config.close_timeout_s
        self._writer_due.set()
        if not self._socket.is_writable:
            self._socket.abort()

    def abort(self) -> None:
        """Drop the client without a farewell."""
        self._socket.abort()

    def announce_drain(self, deadline_ms: int) -> None:
        """Tell the client how long its requests have."""
        self._session.send_event(Draining(deadline_ms=deadline_ms))
        self.flush()

    def enforce_deadlines(self, now: float) -> None:
        """Part with a client that has not shown a key, or has not read, for too long."""
        if now >= self._close_by:
            self.abort()
        if self._tenant is None and now >= self._authenticate_by:
            self.close(POLICY, "no key within the time allowed")
        if self._stalled_at is not None and now >= self._stalled_at + self._config.send_timeout_s:
            self._drop()

    def flush(self) -> None:
        """Send what is due, in one write unless much has waited; nothing while the client does not keep up.

        What breaks here is this connection's affair, not that of whoever flushes all of them.
        """
        try:
            while not self._is_stalled():
                self._take_events()
                frames = self._session.take_frames()
                if frames:
                    self._socket.send_frames(frames)
                if not self._listener.dirty:
                    break
        except Exception as error:  # noqa: BLE001 - as in `run`
            self._listener.dirty.clear()
            self._fail(error)

    def _take_events(self) -> None:
        """Events of streams to the session, about as much as makes one write; the streams left come first next time."""
        listener = self._listener
        dirty, listener.dirty = listener.dirty, []
        size = 0
        for position, stream in enumerate(dirty, 1):
            size += stream.backlog_bytes
            for event in stream.take_events():
                command = self._session.send_event(event)
                if command is not None:
                    self._obey_later(command)
            if stream.is_dirty:
                listener.dirty.append(stream)
            elif stream.has_ended:
                listener.streams.pop(stream.client_id, None)
            if size > MAX_WRITE_BYTES:
                listener.dirty = dirty[position:] + listener.dirty
                break

    def _obey_later(self, command: SessionCommand) -> None:
        self._waiting.append(command)
        self._writer_due.set()

    def _fail(self, error: Exception) -> None:
        log.error("connection failed", error=_where(error))
        self.close(INTERNAL, "internal error")

    def _drop(self) -> None:
        if self._closing is None:
            log.info("client dropped: it does not read", streams=len(self._listener.streams))
            self.close(POLICY, "not reading")

    def _is_stalled(self) -> bool:
        """Whether the client does not keep up; keeps the time since when, and has the writer wait for it."""
        if self._socket.is_writable:
            self._stalled_at = None
            return False
        if self._stalled_at is None:
            self._stalled_at = self._shared.clock.now()
        self._writer_due.set()
        if sum(stream.backlog_bytes for stream in self._listener.dirty) > self._config.max_backlog_bytes:
            self._drop()
        self._listener.flush_later()  # what waits grows with every tick: look again
        return True

    async def _read(self) -> None:
        try:
            while True:
                frame = await self._socket.recv()
                await self._socket.writable.wait()
                command = self._session.receive_frame(frame)
                for code in self._session.take_refusals():
                    self._shared.metrics.count_failure(code)
                if command is not None:
                    await self._obey(command)
                if self._session.has_frames or self._listener.dirty:
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
                await self._socket.writable.wait()
                while self._waiting:
                    await self._obey(self._waiting.popleft())
                self.flush()
        except ConnectionClosed:
            return

    async def _obey(self, command: SessionCommand) -> None:
        try:
            if isinstance(command, Authenticate):
                self._authenticate(command.key)
            else:
                await self._serve(command)
        except RequestError as error:
            self._shared.metrics.count_failure(error.code)
            name = None if isinstance(command, Authenticate) else command.id
            following = self._session.send_event(failed_event(name, error))
            if following is not None:
                self._obey_later(following)

    def _authenticate(self, key: str) -> None:
        if self._tenant is not None:
            return
        self._tenant = self._shared.keys.tenant_of(key)
        if self._tenant is None:
            self.close(POLICY, "wrong key")
            raise RequestError("unauthenticated", "the key is not valid", param="key")

    async def _serve(self, command: Generate | Warm | Cancel | Credit | Resume) -> None:
        if self._tenant is None:
            raise RequestError("unauthenticated", "no valid key has been sent on this connection")
        streams = self._listener.streams
        match command:
            case Generate():
                await self._live.submit(command, self._tenant, self._listener)
            case Warm(generate=generate):
                await self._live.submit(generate, self._tenant, self._listener, warm=True)
            case Cancel(id=name):
                if name in streams:
                    self._live.cancel(streams[name])
            case Credit(id=name, tokens=tokens):
                if name in streams:
                    self._live.grant(streams[name], tokens)
            case Resume():
                message = "resume_token is unknown or its time is over; send resume_tokens instead"
                raise RequestError("resume_expired", message, param="resume_token")
            case _:
                assert_never(command)


def _where(error: BaseException) -> str:
    """Type and place of an error; not its message, which may quote a client."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {place.name} ({place.filename}:{place.lineno})"
