"""One open socket to `/v1/stream`: commands out, events in.

It knows no streams; `client.live_streams` decides what to do when it breaks. Every way it can end is raised by
`receive` as an error of `client.errors`.
"""

import asyncio
from http import HTTPStatus

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from client.endpoint import Endpoint
from client.errors import (
    APIConnectionError,
    APIError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
)
from protocol.native.client import decode_event
from protocol.session import Encoding, encode
from protocol.wire import (
    JSON_SUBPROTOCOL,
    MSGPACK_SUBPROTOCOL,
    PROTOCOL_VERSION,
    Failed,
    Hello,
    StreamCommand,
    StreamEvent,
)

PATH = "/v1/stream"
SEND_DEADLINE_S = 30.0


class Connection:
    """Use `open`; then `send` from anywhere and `receive` from one place."""

    def __init__(self, socket: ClientConnection, encoding: Encoding) -> None:
        self._socket = socket
        self._encoding = encoding
        self.hello = Hello(protocol=0, server="", models=[], max_model_len=0, max_message_bytes=0, authenticated=False)

    @classmethod
    async def open(cls, endpoint: Endpoint) -> "Connection":
        """Connect and read `hello`. Raises APIConnectionError, APITimeoutError, AuthenticationError, NotFoundError."""
        url = endpoint.ws + PATH
        subprotocol = JSON_SUBPROTOCOL if endpoint.encoding == "json" else MSGPACK_SUBPROTOCOL
        try:
            async with asyncio.timeout(endpoint.connect_s):
                socket = await endpoint.open(PATH, subprotocols=[Subprotocol(subprotocol)])
                connection = cls(socket, endpoint.encoding)
                await connection._greet(endpoint)
                return connection
        except TimeoutError as error:
            raise APITimeoutError(f"{url}: no connection within {endpoint.connect_s:g} s") from error
        except InvalidStatus as error:
            raise _refused(endpoint, error.response.status_code) from error
        except (OSError, WebSocketException) as error:
            raise APIConnectionError(f"{url}: cannot connect: {error}") from error

    async def _greet(self, endpoint: Endpoint) -> None:
        try:
            self.hello = _checked(await self.receive(), endpoint)
        except BaseException:
            self._socket.transport.abort()
            raise

    async def send(self, command: StreamCommand) -> None:
        """Send one command; waits while the socket is full. If it is broken nothing happens here: `receive` tells.

        Raises BadRequestError if the command is larger than the server takes.
        """
        try:
            frame = encode(command, self._encoding)
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
            return decode_event(await self._socket.recv(decode=False), self._encoding)
        except ConnectionClosed as error:
            raise _closed(error) from error
        except msgspec.DecodeError as error:
            raise APIConnectionError(f"the server sent a frame that is no event: {error}") from error

    async def close(self) -> None:
        """Close with code 1000; waits at most CLOSE_S for the server's answer."""
        await self._socket.close()


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


def _refused(endpoint: Endpoint, status: int) -> APIError:
    url = endpoint.ws + PATH
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
