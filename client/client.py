"""The client library's front door. Read `client.stream` next, then `client.connection`."""

import asyncio
import secrets
import ssl
import uuid
from collections.abc import Callable
from http import HTTPStatus
from typing import Self, Unpack

import msgspec

from client.connection import LiveStreams
from client.endpoint import Endpoint, Reconnect, parse_url
from client.errors import APIConnectionError
from client.fields import GenerateFields, build_generate
from client.stream import Stream, Timeouts
from client.stream_state import Result
from protocol.session import Encoding
from protocol.wire import Hello

POLL_S = 0.25


class Model(msgspec.Struct, frozen=True):
    """One served model, as `/v1/models` lists it."""

    id: str
    created: int = 0
    owned_by: str = ""
    max_model_len: int | None = None
    """Prompt + output limit, tokens."""
    max_message_bytes: int | None = None


class _ModelList(msgspec.Struct, frozen=True):
    data: list[Model]


class Client:
    """An async context manager: one socket to one server for any number of concurrent streams.

    The socket opens with the first request and closes with the block. When it breaks, live streams go on where they
    were, with no token lost or repeated: for that the client keeps each stream's token ids (asked of the server, about
    7 bytes a token in JSON), and draws a seed for sampled requests that bring none. `resume=False` does without: then a
    stream that had begun fails with APIConnectionError.

    A request that is refused as `overloaded` is asked again after the server's hint, at most `max_retries` times.

    It belongs to the event loop that entered it (asyncio's or uvloop's). `tls` is used for wss:// addresses.
    """

    def __init__(  # noqa: PLR0913 - the caller's settings, by keyword
        self,
        url: str,
        api_key: str | None = None,
        *,
        encoding: Encoding = "json",
        timeouts: Timeouts | None = None,
        reconnect: Reconnect | None = None,
        resume: bool = True,
        max_retries: int = 2,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._timeouts = timeouts or Timeouts()
        self._resume = resume
        self._max_retries = max_retries
        ws, http = parse_url(url)
        self.endpoint = Endpoint(
            ws=ws, http=http, encoding=encoding, api_key=api_key, tls=tls, connect_s=self._timeouts.connect_s
        )
        self._live = LiveStreams(self.endpoint, reconnect or Reconnect())
        self._tasks: asyncio.TaskGroup | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start; nothing is sent yet."""
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._keeper = self._tasks.create_task(self._live.run(), name="tokenstage-client")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the socket (the server cancels what still runs). Streams that are still read fail."""
        tasks, keeper = self._tasks, self._keeper
        self._tasks = self._keeper = None
        if tasks is not None and keeper is not None:
            keeper.cancel()
            await tasks.__aexit__(None, None, None)  # not the block's own error: a group would wrap it

    async def connect(self) -> Hello:
        """Open the socket now; returns what the server says of itself.

        Raises APIConnectionError, APITimeoutError, AuthenticationError, NotFoundError.
        """
        self._check_open()
        return (await self._live.connected()).hello

    def stream(self, *, timeouts: Timeouts | None = None, **fields: Unpack[GenerateFields]) -> Stream:
        """A generation, sent when entered: `async with client.stream(...) as stream: async for text in stream`.

        Raises BadRequestError, naming the field in `param`, before anything is sent. `id` defaults to a new one.
        """
        self._check_open()
        generate = build_generate({"id": uuid.uuid4().hex, **fields})
        if self._resume:
            seed = secrets.randbits(63) if generate.seed is None else generate.seed
            generate = msgspec.structs.replace(generate, return_tokens=True, seed=seed)
        return Stream(
            self._live,
            generate,
            timeouts=timeouts or self._timeouts,
            can_continue=self._resume,
            max_retries=self._max_retries,
        )

    async def generate(self, *, timeouts: Timeouts | None = None, **fields: Unpack[GenerateFields]) -> Result:
        """Generate to the end; raises what a stream raises."""
        async with self.stream(timeouts=timeouts, **fields) as stream:
            async for _ in stream.events():
                pass
        return stream.result

    async def models(self) -> list[Model]:
        """The served models. Raises APIConnectionError, AuthenticationError."""
        status, body = await self.get("/v1/models")
        if status == HTTPStatus.UNAUTHORIZED:
            raise self.endpoint.bad_key()
        try:
            return msgspec.json.decode(body, type=_ModelList).data
        except msgspec.DecodeError as error:
            url = f"{self.endpoint.http}/v1/models"
            raise APIConnectionError(f"{url}: HTTP {status}, not a list of models") from error

    async def get(self, path: str) -> tuple[int, bytes]:
        """HTTP status and body of one of the server's pages, such as `/readyz`. Raises APIConnectionError."""
        return await self.endpoint.get(path)

    async def wait_until_ready(self, *, limit_s: float, say: Callable[[str], None]) -> None:
        """Return once the server has started and loaded its model; each new reason for waiting is said once.

        Raises APIConnectionError when `limit_s` seconds are over.
        """
        deadline = asyncio.get_running_loop().time() + limit_s
        said = ""
        while (reason := await self._obstacle()) is not None:
            if asyncio.get_running_loop().time() >= deadline:
                raise APIConnectionError(f"{reason}; gave up after {limit_s:g} s" if limit_s else reason)
            if reason != said:
                say(f"{reason}; waiting up to {limit_s:g} s (Ctrl-C to stop)")
                said = reason
            await asyncio.sleep(POLL_S)

    async def _obstacle(self) -> str | None:
        """Why the server cannot answer yet: `/readyz` is 503, or there is none."""
        try:
            status, body = await self.get("/readyz")
        except APIConnectionError:
            return f"no server answers at {self.endpoint.http}; start one (`make serve`) or give its --url"
        if status != HTTPStatus.SERVICE_UNAVAILABLE:
            return None
        return "the server is draining" if b"draining" in body else "the server is loading its model"

    def _check_open(self) -> None:
        if self._tasks is None:
            raise APIConnectionError("the client is not open: use it in `async with Client(...) as client`")
