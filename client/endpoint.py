"""Where a server is and how it is reached (addresses, key, trust, attempts): opens its WebSockets, reads its pages.

It keeps nothing open. Pages are read by HTTP/1.1 over asyncio streams, parsed by the standard library, without a proxy.
Read `client.connection` next.
"""

import asyncio
import io
import ipaddress
import random
import socket
import ssl
from http.client import HTTPException, HTTPResponse
from types import SimpleNamespace
from typing import cast
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from client.errors import APIConnectionError, APITimeoutError, AuthenticationError, BadRequestError
from protocol.session import Encoding

MAX_EVENT_BYTES = 64 * 2**20
MAX_PAGE_BYTES = 16 * 2**20
CLOSE_S = 2.0
_SCHEMES = {"ws": ("ws", "http"), "wss": ("wss", "https"), "http": ("ws", "http"), "https": ("wss", "https")}
_PATHS = ("/v1/stream", "/v1/responses", "/v1")
_draw = random.SystemRandom()


class Endpoint(Struct, frozen=True, kw_only=True):
    """`ws` and `http` begin the addresses (`ws://host:port`); `connect_s` bounds one attempt, hello included."""

    ws: str
    http: str
    encoding: Encoding = "json"
    api_key: str | None = None
    tls: ssl.SSLContext | None = None
    connect_s: float = 10.0

    async def open(self, path: str, *, subprotocols: list[Subprotocol] | None = None) -> ClientConnection:
        """Open the WebSocket at `path`. Raises OSError (TimeoutError is one) and WebSocketException."""
        return await connect(
            self.ws + path,
            subprotocols=subprotocols,
            additional_headers=self._headers(),
            proxy=None if self._is_loopback() else True,
            ssl=self._trust(),
            compression=None,
            open_timeout=self.connect_s,
            close_timeout=CLOSE_S,
            max_size=MAX_EVENT_BYTES,
        )

    async def get(self, path: str) -> tuple[int, bytes]:
        """HTTP status and body of a page such as `/readyz`. Raises APIConnectionError, APITimeoutError."""
        url = urlsplit(self.http + path)
        headers = {"Host": url.netloc, "Connection": "close", **self._headers()}
        lines = [f"GET {url.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        try:
            async with asyncio.timeout(self.connect_s):
                return _parse(await self._exchange(url, "\r\n".join([*lines, "", ""]).encode("latin-1")))
        except TimeoutError as error:
            raise APITimeoutError(f"{url.geturl()}: no answer within {self.connect_s:g} s") from error
        except (OSError, HTTPException) as error:
            raise APIConnectionError(f"{url.geturl()}: cannot read: {error}") from error

    def bad_key(self) -> AuthenticationError:
        """The server does not take this key, or wants one."""
        fault = "does not know this API key" if self.api_key else "wants an API key"
        return AuthenticationError(f"the server {fault}", code="unauthenticated")

    async def _exchange(self, url: SplitResult, request: bytes) -> bytes:
        trust = self._trust()
        reader, writer = await asyncio.open_connection(url.hostname, url.port or (443 if trust else 80), ssl=trust)
        try:
            writer.write(request)
            answer = bytearray()
            while chunk := await reader.read(2**16):
                answer += chunk
                if len(answer) > MAX_PAGE_BYTES:
                    raise HTTPException(f"page has more than {MAX_PAGE_BYTES:,} bytes")
            return bytes(answer)
        finally:
            writer.transport.abort()

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def _trust(self) -> ssl.SSLContext | None:
        """For wss: what was given, else the machine's own certificate authorities."""
        if not self.ws.startswith("wss:"):
            return None
        return self.tls or ssl.create_default_context()

    def _is_loopback(self) -> bool:
        """On this machine: a proxy from the environment must not get in between."""
        host = urlsplit(self.http).hostname or ""
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


class Reconnect(Struct, frozen=True, kw_only=True):
    """Exponential backoff with full jitter: before attempt n sleep a random part of min(cap_s, base_s * 2**n)."""

    max_attempts: int = 10
    """Attempts in a row without one token received; 0 never reconnects."""
    base_s: float = 0.1
    cap_s: float = 5.0

    def delay_s(self, num_failures: int) -> float | None:
        """Seconds to wait after `num_failures` (from 1) attempts in a row; None: give up."""
        if num_failures > self.max_attempts:
            return None
        return _draw.uniform(0, min(self.cap_s, self.base_s * 2 ** (num_failures - 1)))


def parse_url(url: str) -> tuple[str, str]:
    """What WebSocket and HTTP addresses begin with, from `ws://host:port` (or wss, http, https).

    A path of ours at the end is taken off. Raises BadRequestError.
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.port != 0 and parts.scheme in _SCHEMES and bool(parts.hostname)
    except ValueError:  # brackets that do not match, or a port that is no number or too large
        is_valid = False
    if not is_valid:
        raise BadRequestError(f"url {url!r} is not of the form ws://host:port", code="invalid_request", param="url")
    path = parts.path.rstrip("/")
    for known in _PATHS:
        path = path.removesuffix(known)
    ws, http = _SCHEMES[parts.scheme]
    return f"{ws}://{parts.netloc}{path}", f"{http}://{parts.netloc}{path}"


def _parse(answer: bytes) -> tuple[int, bytes]:
    received = SimpleNamespace(makefile=lambda _mode: io.BytesIO(answer))  # as much of a socket as HTTPResponse uses
    response = HTTPResponse(cast("socket.socket", received))
    response.begin()
    return response.status, response.read()
