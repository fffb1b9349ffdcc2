"""A server that does what a test's script says: real sockets and the real dialect session, no engine.

One script serves one connection; what a script raises fails the test when the server is left.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Literal, Self, TypeVar

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from protocol.messages import FinishReason, Timing, Usage
from protocol.native.session import NativeSession
from protocol.wire import (
    JSON_SUBPROTOCOL,
    MSGPACK_SUBPROTOCOL,
    Accepted,
    Finished,
    Generate,
    Hello,
    SessionCommand,
    SessionEvent,
    Tokens,
)

CommandT = TypeVar("CommandT", bound=SessionCommand)
Script = Callable[["Peer"], Awaitable[None]]


def hello(*, authenticated: bool = True, max_message_bytes: int = 8 * 2**20) -> Hello:
    return Hello(
        protocol=1,
        server="fake",
        models=["demo"],
        max_model_len=2048,
        max_message_bytes=max_message_bytes,
        authenticated=authenticated,
    )


class Peer:
    """The server's end of one connection."""

    def __init__(self, socket: ServerConnection, greeting: Hello) -> None:
        encoding: Literal["json", "msgpack"] = "msgpack" if socket.subprotocol == MSGPACK_SUBPROTOCOL else "json"
        self.socket = socket
        self.encoding = encoding
        self._session = NativeSession(encoding, hello=greeting)
        self._commands: deque[SessionCommand] = deque()

    async def flush(self) -> None:
        for frame in self._session.take_frames():
            await self.socket.send(frame)

    async def send(self, *events: SessionEvent) -> None:
        for event in events:
            self._session.send_event(event)
        await self.flush()

    async def next(self) -> SessionCommand:
        """Wait for the next command."""
        while not self._commands:
            command = self._session.receive_frame(await self.socket.recv())
            if command is not None:
                self._commands.append(command)
            await self.flush()
        return self._commands.popleft()

    async def expect(self, kind: type[CommandT]) -> CommandT:
        """Wait for the next command; it must be of this kind."""
        command = await self.next()
        assert isinstance(command, kind), f"{kind.__name__} was due; {command} came"
        return command

    async def accept(self) -> Generate:
        generate = await self.expect(Generate)
        await self.send(Accepted(id=generate.id, prompt_tokens=3))
        return generate

    def drop(self) -> None:
        """Break the connection without a close frame."""
        self.socket.transport.abort()

    async def until_closed(self) -> None:
        await self.socket.wait_closed()


def tokens(generate: Generate, index: int, *pieces: str) -> Tokens:
    """One frame, a token for each piece; the ids are 100 + index, so each tells its place."""
    ids = [100 + index + offset for offset in range(len(pieces))]
    return Tokens(
        id=generate.id,
        index=index,
        count=len(pieces),
        text="".join(pieces),
        tokens=ids if generate.return_tokens else None,
    )


def finished(generate: Generate, completion_tokens: int, reason: FinishReason = "stop") -> Finished:
    usage = Usage(prompt_tokens=3, completion_tokens=completion_tokens)
    return Finished(id=generate.id, reason=reason, usage=usage, timing=Timing(ttft_ms=1.0))


class FakeServer:
    """`async with FakeServer(script, …) as server`: connection i runs script i, the last one any further."""

    def __init__(
        self,
        *scripts: Script,
        greeting: Hello | None = None,
        pages: Mapping[str, bytes] | None = None,
        api_key: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._scripts = scripts
        self._greeting = greeting or hello()
        self._pages = pages or {}
        self._api_key = api_key
        self._tls = tls
        self._server: Server | None = None
        self._faults: list[BaseException] = []
        self.statuses: dict[str, list[HTTPStatus]] = {}
        """For a page that is not always 200: one a request, the last one for ever."""
        self.num_connections = 0
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._handle,
            "127.0.0.1",
            0,
            subprotocols=[Subprotocol(JSON_SUBPROTOCOL), Subprotocol(MSGPACK_SUBPROTOCOL)],
            process_request=self._page,
            ssl=self._tls,
            compression=None,
            close_timeout=1,
        )
        port = next(iter(self._server.sockets)).getsockname()[1]
        self.url = f"{'wss' if self._tls else 'ws'}://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        if error is None and self._faults:
            raise self._faults[0]

    async def _page(self, socket: ServerConnection, request: Request) -> Response | None:
        if self._api_key and request.headers.get("Authorization") != f"Bearer {self._api_key}":
            return socket.respond(HTTPStatus.UNAUTHORIZED, '{"error": {}}')
        if statuses := self.statuses.get(request.path):
            status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
            return socket.respond(status, "{}")
        if request.path in self._pages:
            return socket.respond(HTTPStatus.OK, self._pages[request.path].decode())
        return None if request.path == "/v1/stream" else socket.respond(HTTPStatus.NOT_FOUND, "{}")

    async def _handle(self, socket: ServerConnection) -> None:
        script = self._scripts[min(self.num_connections, len(self._scripts) - 1)]
        self.num_connections += 1
        peer = Peer(socket, self._greeting)
        try:
            await peer.flush()
            await script(peer)
        except ConnectionClosed:
            return  # the client is done with it
        except asyncio.CancelledError:
            raise
        except BaseException as fault:
            self._faults.append(fault)
            raise
