"""The live streams of a client and the one connection that they share: opened by the first, regained while any lives.

It owns the table of live streams and the only task of the library (`run`). That task never raises: what goes wrong ends
in the streams it concerns, or in the call that wanted to connect. Full-policy: none of its own; each stream's buffer is
bounded by its credit (`client.stream_state`), the socket's by the operating system, and `send` waits for that.
"""

import asyncio
import random

from msgspec import Struct

from client.connection import PATH, Connection
from client.endpoint import Endpoint
from client.errors import APIConnectionError, APIError, APITimeoutError, BadRequestError, ConflictError, status_error
from client.stream_state import StreamState
from protocol.wire import Accepted, Cancel, Failed, Finished, StreamCommand, StreamEvent, Tokens

_draw = random.SystemRandom()


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

    async def connected(self) -> Connection:
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

    async def _serve(self, connection: Connection) -> None:
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

    async def _start(self, stream: StreamState, connection: Connection) -> None:
        """Send what opens (or reopens) a stream; one that cannot be sent fails alone."""
        command = stream.open()
        if command is not None:
            try:
                await connection.send(command)
            except BadRequestError as error:
                stream.fail(error)
        if not stream.is_live:
            self._streams.pop(stream.id, None)

    async def _deliver(self, event: StreamEvent | None, connection: Connection) -> None:
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
