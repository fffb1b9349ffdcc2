"""Asks benchmark requests over `/v1/responses`: a socket for each running request, kept for the next one.

Text deltas carry no counts, so each counts as one token for ITL; TPOT and the totals come from the events' usage.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from client.bench.outcome import Outcome
from client.bench.requests import BenchRequest
from client.connection import Endpoint
from client.errors import APIConnectionError, APIError, OverloadedError


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0


class _Error(msgspec.Struct):
    code: str | None = None
    message: str = ""


class _Response(msgspec.Struct):
    usage: _Usage | None = None
    error: _Error | None = None


class _Event(msgspec.Struct):
    type: str
    response: _Response | None = None
    error: _Error | None = None


_decoder = msgspec.json.Decoder(_Event)
_ENDS = ("response.completed", "response.incomplete")


class ResponsesTarget:
    """An async context manager; `ask` fits `client.bench.load.Ask`."""

    def __init__(self, endpoint: Endpoint, *, temperature: float, clock: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._temperature = temperature
        self._clock = clock
        self._sockets = AsyncExitStack()
        self._free: list[ClientConnection] = []

    async def __aenter__(self) -> Self:
        """Nothing is opened yet."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all sockets."""
        await self._sockets.aclose()

    async def ask(self, request: BenchRequest, outcome: Outcome) -> None:
        """Send, and note when text comes. Raises APIError."""
        try:
            socket = self._free.pop() if self._free else await self._open()
            outcome.sent_at = self._clock()  # opening a socket is not part of the answer
            await socket.send(self._create(request))
            await self._read_answer(socket, outcome)
        except APIError:
            self._free.append(socket)  # it refused or failed this answer and is as good as before
            raise
        except (OSError, WebSocketException, msgspec.DecodeError) as error:
            raise APIConnectionError(f"{self._endpoint.address.responses}: {error}") from error
        self._free.append(socket)

    async def _open(self) -> ClientConnection:
        address = self._endpoint.address
        opening = connect(
            address.responses,
            additional_headers=self._endpoint.headers(),
            proxy=None if address.is_loopback else True,
            ssl=self._endpoint.trust(),
            compression=None,
            open_timeout=self._endpoint.connect_s,
            close_timeout=1,
            max_size=None,
        )
        return await self._sockets.enter_async_context(opening)

    def _create(self, request: BenchRequest) -> str:
        command: dict[str, Any] = {
            "type": "response.create",
            "input": request.text(),
            "max_output_tokens": request.max_tokens,
            "temperature": self._temperature,
        }
        return msgspec.json.encode(command).decode()

    async def _read_answer(self, socket: ClientConnection, outcome: Outcome) -> None:
        while True:
            event = _decoder.decode(await socket.recv(decode=False))
            if event.type == "response.output_text.delta":
                outcome.tokens_arrived(1, self._clock())
            elif event.type in _ENDS and event.response and event.response.usage:
                outcome.input_tokens = event.response.usage.input_tokens
                outcome.output_tokens = event.response.usage.output_tokens
                return
            elif event.type in ("error", "response.failed"):
                raise _fault(event)


def _fault(event: _Event) -> APIError:
    error = event.error or (event.response.error if event.response else None) or _Error(message=event.type)
    if error.code in ("overloaded", "slo_unattainable", "rate_limit_exceeded"):
        return OverloadedError(error.message, code="overloaded")
    return APIError(error.message)
