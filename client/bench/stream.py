"""Asks benchmark requests over the own dialect: all of them on one socket."""

from collections.abc import Callable

from client.bench.outcome import Outcome
from client.bench.requests import BenchRequest
from client.client import Client
from protocol.wire import Finished, Tokens


class StreamTarget:
    """`ask` fits `client.bench.load.Ask`."""

    def __init__(self, client: Client, *, temperature: float, ignore_eos: bool, clock: Callable[[], float]) -> None:
        self._client = client
        self._temperature = temperature
        self._ignore_eos = ignore_eos
        self._clock = clock

    async def ask(self, request: BenchRequest, outcome: Outcome) -> None:
        """Send, and note when tokens come. Raises APIError."""
        stream = self._client.stream(
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_tokens,
            temperature=self._temperature,
            ignore_eos=self._ignore_eos,
        )
        async with stream:
            async for event in stream.events():
                if isinstance(event, Tokens):
                    outcome.tokens_arrived(event.count, self._clock())
                elif isinstance(event, Finished):
                    outcome.input_tokens = event.usage.prompt_tokens
                    outcome.output_tokens = event.usage.completion_tokens
