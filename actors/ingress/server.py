"""The listening side: which TCP connections become WebSockets, which get a page, which are refused before either.

Owns the websockets server on a given listening socket (TLS if configured) and all open connections: the life of each
from handshake to close, and what is done to all at once. Full-policy: past `max_connections` a new one is closed with
1013. Read `connection` for what happens after.
"""

import logging
import secrets
import socket
import ssl
import time
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

import structlog
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import WebSocketException
from websockets.headers import parse_subprotocol
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from actors.ingress.access import (
    BEARER_SUBPROTOCOL,
    Keys,
    is_address_loopback,
    is_host_loopback,
    is_origin_allowed,
    key_of_header,
    key_of_subprotocols,
)
from actors.ingress.client_socket import ClientSocket
from actors.ingress.config import IngressConfig
from actors.ingress.connection import GOING_AWAY, INTERNAL, OVERLOADED, Connection, Shared
from actors.ingress.http import OPEN_PATHS, VERSION, Pages, refuse
from protocol.native.session import NativeSession
from protocol.responses import ResponsesSession
from protocol.session import Session
from protocol.wire import JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL, PROTOCOL_VERSION, Hello

log = structlog.get_logger()

STREAM_PATH = "/v1/stream"
RESPONSES_PATH = "/v1/responses"
SOCKET_PATHS = (STREAM_PATH, RESPONSES_PATH)


async def open_server(shared: Shared, pages: Pages, connections: "Connections", listener: socket.socket) -> Server:
    """Serve on `listener`, closed with the server. Raises OSError or ssl.SSLError for certificates it cannot read."""
    config = shared.config
    handshake = Handshake(config, shared.keys, pages, is_loopback=is_address_loopback(str(listener.getsockname()[0])))
    return await serve(
        connections.serve,
        sock=listener,
        ssl=_tls(config),
        create_connection=ClientSocket,
        process_request=handshake.process_request,
        select_subprotocol=select_subprotocol,
        server_header="tokenstage",
        compression=None,  # a frame holds one token: deflate costs more than it saves, and memory for each connection
        max_size=config.max_message_bytes,
        write_limit=config.write_buffer_bytes,
        ping_interval=config.ping_interval_s,
        ping_timeout=config.ping_interval_s,
        close_timeout=config.close_timeout_s,
        logger=_careful_logger(),
    )


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


class Handshake:
    """Decides on each request before it becomes a WebSocket."""

    def __init__(self, config: IngressConfig, keys: Keys, pages: Pages, *, is_loopback: bool) -> None:
        self._config = config
        self._keys = keys
        self._pages = pages
        self._is_loopback = is_loopback

    async def process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        """None: go on shaking hands; else the answer."""
        path = path_of(request)
        host = _single(request, "Host")
        if self._is_loopback and not is_host_loopback(host):
            return refuse(HTTPStatus.FORBIDDEN, "this server answers to names of the loopback interface only")
        if path in SOCKET_PATHS:
            return self._process_upgrade(connection, request, host)
        is_closed = path not in OPEN_PATHS and self._keys.are_required
        if is_closed and self._keys.tenant_of(key_of_header(_single(request, "Authorization"))) is None:
            return _unauthorized()
        return await self._pages.answer(request, path)

    def _process_upgrade(self, connection: ServerConnection, request: Request, host: str | None) -> Response | None:
        if "websocket" not in ", ".join(request.headers.get_all("Upgrade")).lower():
            return refuse(HTTPStatus.UPGRADE_REQUIRED, "this path speaks WebSocket only", {"Upgrade": "websocket"})
        if not is_origin_allowed(_single(request, "Origin"), host, self._config.allowed_origins):
            return refuse(HTTPStatus.FORBIDDEN, "pages of this origin may not connect (--allowed-origin)")
        key = self._key_of(request)
        tenant = self._keys.tenant_of(key)
        if key is not None and tenant is None:
            return _unauthorized()
        if isinstance(connection, ClientSocket):
            connection.tenant = tenant
        return None

    def _key_of(self, request: Request) -> str | None:
        key = key_of_header(_single(request, "Authorization"))
        if key is None and path_of(request) == RESPONSES_PATH:
            key = key_of_subprotocols(_offered(request))
        return key


def select_subprotocol(connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """The first offered one that is spoken here; none is fine too. A key among them is never echoed."""
    if connection.request is not None and path_of(connection.request) == RESPONSES_PATH:
        return next((name for name in offered if not name.startswith(BEARER_SUBPROTOCOL)), None)
    return next((name for name in offered if name in (JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL)), None)


def path_of(request: Request) -> str:
    """The path without its query."""
    return urlsplit(request.path).path


def _tls(config: IngressConfig) -> ssl.SSLContext | None:
    if config.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
    return context


def _careful_logger() -> logging.Logger:
    """Only errors, and of those only what and which: at debug level websockets logs whole frames, which are prompts."""
    logger = logging.getLogger("actors.ingress.websockets")
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.handlers = [_Forwarder()]
    return logger


class _Forwarder(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        kind = record.exc_info[0] if record.exc_info else None
        log.error("websocket server", problem=record.getMessage(), error=kind.__name__ if kind else None)


def _unauthorized() -> Response:
    return refuse(HTTPStatus.UNAUTHORIZED, "a valid API key is needed", {"WWW-Authenticate": "Bearer"})


def _single(request: Request, name: str) -> str | None:
    """A header's value; of several none is to be trusted."""
    values = request.headers.get_all(name)
    return values[0] if len(values) == 1 else None


def _offered(request: Request) -> list[str]:
    try:
        return [
            name for value in request.headers.get_all("Sec-WebSocket-Protocol") for name in parse_subprotocol(value)
        ]
    except WebSocketException:
        return []
