"""All open connections: each one's life from handshake to close, and what is done to all of them at once.

Full-policy: past `max_connections` a new one is closed with 1013. The path and the subprotocol agreed on say which
dialect a connection speaks.
"""

import secrets
import time

from websockets.asyncio.server import ServerConnection

from actors.ingress.client_socket import ClientSocket
from actors.ingress.connection import GOING_AWAY, INTERNAL, OVERLOADED, Connection, Shared
from actors.ingress.http import VERSION
from actors.ingress.server import RESPONSES_PATH, path_of
from protocol.native.session import NativeSession
from protocol.responses import ResponsesSession
from protocol.session import Session
from protocol.wire import MSGPACK_SUBPROTOCOL, PROTOCOL_VERSION, Hello


class Connections:
    """`serve` is the websockets server's handler."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._open: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def are_idle(self) -> bool:
        """Every client has got everything."""
        return all(connection.is_idle for connection in self._open)

    async def serve(self, socket: ServerConnection) -> None:
        """One connection, until it is closed."""
        if not isinstance(socket, ClientSocket):
            raise TypeError(f"a ClientSocket was expected, not {type(socket).__name__}")
        self._shared.metrics.count_open()
        code = INTERNAL
        try:
            code = await self._run(socket)
        finally:
            self._shared.metrics.count_close(code)

    def announce_drain(self, deadline_ms: int) -> None:
        """Tell every client."""
        for connection in self._open:
            connection.announce_drain(deadline_ms)

    def enforce_deadlines(self) -> None:
        """Part with clients that keep the server waiting."""
        now = self._shared.clock.now()
        for connection in tuple(self._open):
            connection.enforce_deadlines(now)

    def close(self, code: int, reason: str) -> None:
        """Start to close every connection."""
        for connection in tuple(self._open):
            connection.close(code, reason)

    def abort(self) -> None:
        """Drop every connection."""
        for connection in tuple(self._open):
            connection.abort()

    async def _run(self, socket: ClientSocket) -> int:
        if self._shared.status.is_drained:
            await socket.close(GOING_AWAY, "the server is going away")
            return GOING_AWAY
        if len(self._open) >= self._shared.config.max_connections:
            await socket.close(OVERLOADED, "too many connections")
            return OVERLOADED
        connection = Connection(socket, new_session(socket, self._shared), self._shared)
        self._open.add(connection)
        try:
            return await connection.run()
        finally:
            self._open.discard(connection)


def new_session(socket: ClientSocket, shared: Shared) -> Session:
    """The session of a socket that has just shaken hands."""
    model, max_model_len = shared.model.name, shared.status.max_model_len
    if socket.request is not None and path_of(socket.request) == RESPONSES_PATH:
        return ResponsesSession(models=(model,), max_model_len=max_model_len, new_id=_new_id, clock=time.time)
    hello = Hello(
        protocol=PROTOCOL_VERSION,
        server=f"tokenstage/{VERSION}",
        models=[model],
        max_model_len=max_model_len,
        max_message_bytes=shared.config.max_message_bytes,
        authenticated=socket.tenant is not None,
    )
    return NativeSession("msgpack" if socket.subprotocol == MSGPACK_SUBPROTOCOL else "json", hello=hello)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
