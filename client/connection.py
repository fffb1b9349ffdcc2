"""The connection to the server and the live streams that share it: opened by the first, regained while any lives.

LiveStreams owns the table of streams and the only task of the library (`run`). That task never raises: what goes wrong
ends in the streams it concerns, or in the call that wanted to connect. Full-policy: none of its own; each stream's
buffer is bounded by its credit (`client.stream_state`), the socket's by the system, and `send` waits for that.
Connection is one open socket: it knows no streams, and every way it can end is raised by `receive`.
"""

import asyncio
from http import HTTPStatus

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from client.endpoint import Endpoint, Reconnect
from client.errors import (
    APIConnectionError,
    APIError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    NotFoundError,
    status_error,
)
from client.stream_state import StreamState
from protocol.native.client import decode_event
from protocol.session import Encoding, encode
from protocol.wire import (
    JSON_SUBPROTOCOL,
    MSGPACK_SUBPROTOCOL,
    PROTOCOL_VERSION,
    Accepted,
    Cancel,
    Failed,
    Finished,
    Hello,
    StreamCommand,
    StreamEvent,
    Tokens,
)

PATH = "/v1/stream"
SEND_DEADLINE_S = 30.0


class LiveStreams:
    """Start `run` as a task; then `attach` streams and `send` for them."""

    def __init__(self, endpoint: Endpoint, reconnect: Reconnect) -> None:
        self._endpoint = endpoint
        self._reconnect = reconnect
        self._streams: dict[str, StreamState] = {}
        self._connection: Connection | None = None
        self._wanted = asyncio.Event()
        self._opening: asyncio.Future[Connection] | None = None
        self._num_failures = 0
        """Connections lost or refused in a row, without a token received in between."""

    async def connected(self) -> "Connection":
        """The open connection; opens it if there is none. Raises what `Connection.open` raises."""
        if self._connection is not None:
            return self._connection
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()
        self._wanted.set()
        limit_s = self._endpoint.connect_s
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(self._opening)
        except TimeoutError as error:
            raise APITimeoutError(f"{self._endpoint.ws}{PATH}: no connection within {limit_s:g} s") from error

    async def attach(self, stream: StreamState) -> None:
        """Send a stream's request and deliver its events until it ends. Raises ConflictError if its id is live."""
        connection = await self.connected()
        if connection is not self._connection:
            raise APIConnectionError("the server closed the connection as soon as it was open", request_id=stream.id)
        if stream.id in self._streams:
            message = f"id {stream.id!r} is live already"
            raise ConflictError(message, code="duplicate_id", param="id", request_id=stream.id)
        self._streams[stream.id] = stream
        await self._start(stream, connection)

    async def detach(self, stream: StreamState) -> None:
        """Cancel a live stream; its id stays taken until the server has confirmed that."""
        if self._streams.get(stream.id) is not stream:
            return
        if self._connection is None:
            del self._streams[stream.id]
        else:
            await self._connection.send(Cancel(id=stream.id))

    async def send(self, command: StreamCommand) -> None:
        """Send on the open connection; without one there is nothing to tell the server, and nothing is sent."""
        if self._connection is not None:
            await self._connection.send(command)

    async def run(self) -> None:
        """Keep the connection while it is wanted. Runs until cancelled."""
        try:
            while True:
                await self._wanted.wait()
                await self._connect_and_serve()
        finally:
            self._end_all(APIConnectionError("the client was closed"))

    async def _connect_and_serve(self) -> None:
        try:
            connection = await Connection.open(self._endpoint)
            try:
                await self._serve(connection)
            finally:
                self._connection = None
                await connection.close()
        except APIError as error:
            await self._recover(error)

    async def _serve(self, connection: "Connection") -> None:
        """Go on with the live streams on a new connection and deliver events until it breaks (an APIError)."""
        self._connection = connection
        if self._opening is not None:
            self._opening.set_result(connection)
            self._opening = None
        for stream in list(self._streams.values()):
            if stream.is_wanted:  # one may have been left while another was sent
                await self._start(stream, connection)
        while True:
            await self._deliver(await connection.receive(), connection)

    async def _start(self, stream: StreamState, connection: "Connection") -> None:
        """Send what opens (or reopens) a stream; one that cannot be sent fails alone."""
        command = stream.open()
        if command is not None:
            try:
                await connection.send(command)
            except BadRequestError as error:
                stream.fail(error)
        if not stream.is_live:
            self._streams.pop(stream.id, None)

    async def _deliver(self, event: StreamEvent | None, connection: "Connection") -> None:
        match event:
            case Accepted(id=name) | Tokens(id=name) | Finished(id=name) | Failed(id=str(name)):
                stream = self._streams.get(name)
            case Failed():
                raise status_error(event, "the server could not read a frame: ")
            case _:
                return
        if stream is None:
            return
        if isinstance(event, Tokens):
            self._num_failures = 0
        answer = stream.receive(event)
        if answer is not None:
            await connection.send(answer)
        if not stream.is_live:
            del self._streams[name]

    async def _recover(self, error: APIError) -> None:
        """Wait before the next attempt if streams are to go on and may; else end all that waits for the connection."""
        self._streams = {name: stream for name, stream in self._streams.items() if stream.is_wanted}
        self._num_failures += 1
        delay_s = self._reconnect.delay_s(self._num_failures)
        if not self._streams or delay_s is None or not isinstance(error, APIConnectionError):
            self._end_all(error)
        else:
            await asyncio.sleep(delay_s)

    def _end_all(self, error: APIError) -> None:
        self._num_failures = 0
        self._wanted.clear()
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()
        if self._opening is not None:
            self._opening.set_exception(error)
            self._opening.exception()  # whoever waited may have been cancelled: then nobody fetches it
            self._opening = None


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
