"""The chat page and a scripted `/v1/stream` behind it: a test says what the server says, and sees what it hears.

The page is served under a Content-Security-Policy that allows nothing inline but its own script and style.
"""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

import actors.ingress
from protocol.messages import FinishReason, Timing, Usage
from protocol.wire import (
    JSON_SUBPROTOCOL,
    Accepted,
    Authenticate,
    Event,
    Failed,
    Finished,
    Generate,
    Hello,
    Ping,
    Pong,
    StreamCommand,
    Tokens,
)

PAGE = Path(actors.ingress.__file__).parent / "pages" / "index.html"
_read_command = msgspec.json.Decoder(StreamCommand).decode


class PageServer:
    """One page, any number of connections one after the other; commands of all of them in one queue."""

    def __init__(self, key: str | None, max_model_len: int) -> None:
        self._key = key
        self._max_model_len = max_model_len
        self._page = PAGE.read_bytes()
        self._server: Server | None = None
        self.socket: ServerConnection | None = None
        """The newest connection."""
        self.commands: asyncio.Queue[StreamCommand] = asyncio.Queue(1000)
        """All but ping and authenticate, which answer themselves."""

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}/"

    @asynccontextmanager
    async def running(self) -> AsyncIterator["PageServer"]:
        subprotocols = [Subprotocol(JSON_SUBPROTOCOL)]
        async with serve(
            self._converse, "127.0.0.1", 0, process_request=self._page_or_socket, subprotocols=subprotocols
        ) as self._server:
            yield self

    async def next_question(self) -> "Question":
        """The next `generate`, accepted."""
        command = await asyncio.wait_for(self.commands.get(), 20)
        assert isinstance(command, Generate), command
        question = Question(self, command)
        await self.say(Accepted(id=command.id, prompt_tokens=7))
        return question

    async def say(self, event: Event) -> None:
        assert self.socket is not None
        await self.socket.send(msgspec.json.encode(event).decode())

    def _page_or_socket(self, _: ServerConnection, request: Request) -> Response | None:
        if request.path == "/v1/stream":
            return None
        headers = {"Content-Security-Policy": self._policy(), "Content-Type": "text/html; charset=utf-8"}
        headers |= {"Content-Length": str(len(self._page)), "Connection": "close"}
        return Response(HTTPStatus.OK, "OK", Headers(headers), self._page)

    def _policy(self) -> str:
        def allowed(tag: str) -> str:
            (body,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>".encode(), self._page, re.DOTALL)
            return f"'sha256-{base64.b64encode(hashlib.sha256(body).digest()).decode()}'"

        sources = f"script-src {allowed('script')}; style-src {allowed('style')}; connect-src 'self'; img-src data:"
        return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"

    async def _converse(self, socket: ServerConnection) -> None:
        self.socket = socket
        await self.say(
            Hello(
                protocol=1,
                server="page_server",
                models=["scripted"],
                max_model_len=self._max_model_len,
                max_message_bytes=1 << 20,
                authenticated=self._key is None,
            )
        )
        try:
            async for frame in socket:
                await self._hear(_read_command(frame))
        except ConnectionClosed:
            return

    async def _hear(self, command: StreamCommand) -> None:
        match command:
            case Ping(nonce=nonce):
                await self.say(Pong(nonce=nonce))
            case Authenticate(key=key) if key != self._key:
                await self.say(Failed(code="unauthenticated", message="the key is not valid", param="key"))
                assert self.socket is not None
                await self.socket.close(1008)
            case Authenticate():
                pass
            case _:
                self.commands.put_nowait(command)


class Question:
    """One `generate` and how it is answered."""

    def __init__(self, server: PageServer, command: Generate) -> None:
        self._server = server
        self.command = command
        self._num_sent = 0

    @property
    def turns(self) -> list[tuple[str, str]]:
        """Role and content of each message."""
        return [(message.role, message.content) for message in self.command.messages or []]

    async def write(self, text: str, count: int = 1) -> None:
        await self._server.say(Tokens(id=self.command.id, index=self._num_sent, count=count, text=text))
        self._num_sent += count

    async def end(self, reason: FinishReason = "stop") -> None:
        usage = Usage(prompt_tokens=7, completion_tokens=self._num_sent)
        timing = Timing(queue_ms=1.0, ttft_ms=42.0, tpot_ms=25.0, total_ms=400.0)
        await self._server.say(Finished(id=self.command.id, reason=reason, usage=usage, timing=timing))

    async def fail(self, failed: Failed) -> None:
        await self._server.say(msgspec.structs.replace(failed, id=self.command.id))
