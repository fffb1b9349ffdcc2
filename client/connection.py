"""One open socket to `/v1/stream`: commands out, events in.

It knows no streams; `client.live_streams` decides what to do when it breaks. Every way it can end is raised by
`receive` as an error of `client.errors`.
"""

import asyncio
import ssl
from http import HTTPStatus

import msgspec
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from client.endpoint import Address
from client.errors import (
    APIConnectionError,
    APIError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
)
from protocol.native.client import decode_event, encode_command
from protocol.session import Encoding
from protocol.wire import (
    JSON_SUBPROTOCOL,
    MSGPACK_SUBPROTOCOL,
    PROTOCOL_VERSION,
    Failed,
    Hello,
    StreamCommand,
    StreamEvent,
)

MAX_EVENT_BYTES = 64 * 2**20
SEND_DEADLINE_S = 30.0
CLOSE_S = 2.0


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where and how to connect; `connect_s` bounds one attempt, hello included."""

    address: Address
    encoding: Encoding = "json"
    api_key: str | None = None
    tls: ssl.SSLContext | None = None
    connect_s: float = 10.0

    def headers(self) -> dict[str, str]:
        """The key, if there is one."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def trust(self) -> ssl.SSLContext | None:
        """For wss: what was given, else the machine's own certificate authorities."""
        if not self.address.secure:
            return None
        return self.tls or ssl.create_default_context()

    def bad_key(self) -> AuthenticationError:
        """The server does not take this key, or wants one."""
        fault = "does not know this API key" if self.api_key else "wants an API key"
        return AuthenticationError(f"the server {fault}", code="unauthenticated")


class Connection:
    """Use `open`; then `send` from anywhere and `receive` from one place."""

    def __init__(self, socket: ClientConnection, encoding: Encoding, hello: Hello) -> None:
        self._socket = socket
        self._encoding = encoding
        self.hello = hello

    @classmethod
    async def open(cls, endpoint: Endpoint) -> "Connection":
        """Connect and read `hello`. Raises APIConnectionError, APITimeoutError, AuthenticationError, NotFoundError."""
        url = endpoint.address.stream
        subprotocol = JSON_SUBPROTOCOL if endpoint.encoding == "json" else MSGPACK_SUBPROTOCOL
        try:
            async with asyncio.timeout(endpoint.connect_s):
                socket = await connect(
                    url,
                    subprotocols=[Subprotocol(subprotocol)],
                    additional_headers=endpoint.headers(),
                    proxy=None if endpoint.address.is_loopback else True,
                    ssl=endpoint.trust(),
                    compression=None,
                    open_timeout=None,
                    close_timeout=CLOSE_S,
                    max_size=MAX_EVENT_BYTES,
                )
                return await cls._greet(socket, endpoint)
        except TimeoutError as error:
            raise APITimeoutError(f"{url}: no connection within {endpoint.connect_s:g} s") from error
        except InvalidStatus as error:
            raise _status(endpoint, error.response.status_code) from error
        except (OSError, WebSocketException) as error:
            raise APIConnectionError(f"{url}: cannot connect: {error}") from error

    @classmethod
    async def _greet(cls, socket: ClientConnection, endpoint: Endpoint) -> "Connection":
        connection = cls(socket, endpoint.encoding, hello=_NO_HELLO)
        try:
            connection.hello = _checked(await connection.receive(), endpoint)
        except BaseException:
            socket.transport.abort()
            raise
        return connection

    async def send(self, command: StreamCommand) -> None:
        """Send one command; waits while the socket is full. If it is broken nothing happens here: `receive` tells.

        Raises BadRequestError if the command is larger than the server takes.
        """
        try:
            frame = encode_command(command, self._encoding)
        except UnicodeEncodeError as error:
            raise BadRequestError(f"a text is no valid Unicode: {error}", code="invalid_request") from error
        if len(frame) > self.hello.max_message_bytes:
            raise BadRequestError(
                f"the request has {len(frame):,} bytes; limit is {self.hello.max_message_bytes:,}",
                code="invalid_request",
            )
        try:
            async with asyncio.timeout(SEND_DEADLINE_S):
                await self._socket.send(frame)
        except TimeoutError:
            self._socket.transport.abort()
        except ConnectionClosed:
            return

    async def receive(self) -> StreamEvent | None:
        """Wait for one event; None is one of an unknown type. Raises an APIError once the socket is gone."""
        try:
            frame = await self._socket.recv(decode=False)
        except ConnectionClosed as error:
            raise _closed(error) from error
        try:
            return decode_event(frame, self._encoding)
        except msgspec.DecodeError as error:
            raise APIConnectionError(f"the server sent a frame that is no event: {error}") from error

    async def close(self) -> None:
        """Close with code 1000; waits at most CLOSE_S for the server's answer."""
        await self._socket.close()


_NO_HELLO = Hello(protocol=0, server="", models=[], max_model_len=0, max_message_bytes=0, authenticated=False)


def _checked(event: StreamEvent | None, endpoint: Endpoint) -> Hello:
    match event:
        case Hello(authenticated=True, protocol=version) if version == PROTOCOL_VERSION:
            return event
        case Hello(authenticated=False):
            raise endpoint.bad_key()
        case Hello(protocol=version):
            raise APIConnectionError(f"the server speaks protocol {version}; this client speaks {PROTOCOL_VERSION}")
        case Failed(message=message):
            raise APIConnectionError(f"the server refused the connection: {message}")
        case _:
            raise APIConnectionError("the server did not say hello first")


def _status(endpoint: Endpoint, status: int) -> APIError:
    url = endpoint.address.stream
    if status == HTTPStatus.UNAUTHORIZED:
        return endpoint.bad_key()
    if status == HTTPStatus.FORBIDDEN:
        return AuthenticationError(f"{url}: refused with HTTP {status}", code="unauthenticated")
    if status == HTTPStatus.NOT_FOUND:
        return NotFoundError(f"{url}: no such path (HTTP 404); is this a tokenstage server?")
    return APIConnectionError(f"{url}: refused with HTTP {status}")


def _closed(error: ConnectionClosed) -> APIError:
    code = error.rcvd.code if error.rcvd else None
    reason = f": {error.rcvd.reason}" if error.rcvd and error.rcvd.reason else ""
    if code == 1008:
        return AuthenticationError(f"the server closed the connection by policy (1008){reason}", code="unauthenticated")
    if code == 1009:
        return BadRequestError(f"a message was too big for the server (1009){reason}", code="invalid_request")
    return APIConnectionError(f"the connection was lost ({code or 'no close frame'}){reason}")
