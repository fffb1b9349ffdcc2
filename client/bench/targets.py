"""Asks benchmark requests: in the native dialect all on one socket, over `/v1/responses` a socket for each running one.

Text deltas of the Responses dialect carry no counts, so each counts as one token for ITL; TPOT and the totals come from
the events' usage.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from client.bench.load import Ask, BenchRequest
from client.bench.metrics import RequestRecord
from client.client import Client
from client.endpoint import Endpoint
from client.errors import APIConnectionError, APIError, OverloadedError
from protocol.wire import Finished, Tokens

_PATH = "/v1/responses"


def stream_target(client: Client, *, temperature: float, ignore_eos: bool, clock: Callable[[], float]) -> Ask:
    """Over the native dialect: sends, and notes when tokens come."""

    async def ask(request: BenchRequest, record: RequestRecord) -> None:
        async with client.stream(
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_tokens,
            temperature=temperature,
            ignore_eos=ignore_eos,
        ) as stream:
            async for event in stream.events():
                if isinstance(event, Tokens):
                    record.tokens_arrived(event.count, clock())
                elif isinstance(event, Finished):
                    record.input_tokens = event.usage.prompt_tokens
                    record.output_tokens = event.usage.completion_tokens

    return ask


class ResponsesTarget:
    """`ask` fits `client.bench.load.Ask`; a socket is kept for the next request and closed with `sockets`."""

    def __init__(
        self, endpoint: Endpoint, sockets: AsyncExitStack, *, temperature: float, clock: Callable[[], float]
    ) -> None:
        self._endpoint = endpoint
        self._sockets = sockets
        self._temperature = temperature
        self._clock = clock
        self._free: list[ClientConnection] = []

    async def ask(self, request: BenchRequest, record: RequestRecord) -> None:
        """Send, and note when text comes. Raises APIError."""
        command = {
            "type": "response.create",
            "input": request.text(),
            "max_output_tokens": request.max_tokens,
            "temperature": self._temperature,
        }
        try:
            socket = self._free.pop() if self._free else await self._open()
            record.sent_at = self._clock()  # opening a socket is not part of the answer
            await socket.send(msgspec.json.encode(command).decode())
            fault = await self._read_answer(socket, record)
        except (OSError, WebSocketException, msgspec.DecodeError) as error:
            raise APIConnectionError(f"{self._endpoint.ws}{_PATH}: {error}") from error
        self._free.append(socket)  # whether it answered or refused
        if fault is not None:
            raise fault

    async def _open(self) -> ClientConnection:
        socket = await self._endpoint.open(_PATH)
        self._sockets.push_async_callback(socket.close)
        return socket

    async def _read_answer(self, socket: ClientConnection, record: RequestRecord) -> APIError | None:
        while True:
            event = msgspec.json.decode(await socket.recv(decode=False))
            match event:
                case {"type": "response.output_text.delta"}:
                    record.tokens_arrived(1, self._clock())
                case {"type": "response.completed" | "response.incomplete", "response": {"usage": dict(usage)}}:
                    record.input_tokens = usage.get("input_tokens", 0)
                    record.output_tokens = usage.get("output_tokens", 0)
                    return None
                case {"type": "error" | "response.failed" as kind}:
                    return _fault(event.get("error") or event.get("response", {}).get("error") or {"message": kind})


def _fault(error: dict[str, Any]) -> APIError:
    if error.get("code") in ("overloaded", "slo_unattainable", "rate_limit_exceeded"):
        return OverloadedError(error.get("message", ""), code="overloaded")
    return APIError(error.get("message", ""))
