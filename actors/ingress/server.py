"""The listening side: which TCP connections become WebSockets, which get a page, which are refused before either.

Owns the websockets server on a given listening socket (TLS if configured). Read `connection` for what happens after.
"""

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
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
from actors.ingress.http import OPEN_PATHS, Pages, refuse
from protocol.wire import JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL

log = structlog.get_logger()

STREAM_PATH = "/v1/stream"
RESPONSES_PATH = "/v1/responses"
SOCKET_PATHS = (STREAM_PATH, RESPONSES_PATH)


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


async def open_server(
    config: IngressConfig,
    keys: Keys,
    pages: Pages,
    listener: socket.socket,
    handler: Callable[[ServerConnection], Awaitable[None]],
) -> Server:
    """Serve on `listener`, closed with the server. Raises OSError or ssl.SSLError for certificates it cannot read."""
    handshake = Handshake(config, keys, pages, is_loopback=is_address_loopback(str(listener.getsockname()[0])))
    return await serve(
        handler,
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
