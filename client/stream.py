"""One generation as its caller sees it: an async context manager, an async iterator of text, a result.

It waits, times out and retries; what has arrived is counted by `client.stream_state`, the socket belongs to
`client.connection`.
"""

import asyncio
import random
from typing import Self

from msgspec import Struct

from client.connection import LiveStreams
from client.errors import APIError, APITimeoutError, OverloadedError
from client.stream_state import Result, StreamItem, StreamState
from protocol.wire import Generate, Tokens

_DEFAULT_RETRY_MS = 500
_draw = random.SystemRandom()


class Timeouts(Struct, frozen=True, kw_only=True):
    """Seconds; None waits for ever. All but `connect_s` count only while the caller waits for the stream."""

    connect_s: float = 10.0
    """TCP, TLS, WebSocket handshake and the server's `hello`, together; for one attempt."""
    first_token_s: float | None = 600.0
    """From entering the stream to its first token: a full queue is in here."""
    idle_s: float | None = 60.0
    """Between two frames of one stream once it has begun; a reconnection happens in here."""
    total_s: float | None = None
    """From entering the stream to its end."""


class Stream:
    """Enter it to send the request; read it from one task; leaving it early cancels the request on the server."""

    def __init__(
        self, live: LiveStreams, generate: Generate, *, timeouts: Timeouts, can_continue: bool, max_retries: int
    ) -> None:
        self._live = live
        self._state = StreamState(generate, can_continue=can_continue)
        self._timeouts = timeouts
        self._entered_at = 0.0
        self._num_retries_left = max_retries
        self.request_id = generate.id
        """The request's id on the wire and in the server's log."""

    async def __aenter__(self) -> Self:
        """Send the request; connects first if need be.

        Raises APIConnectionError, APITimeoutError, AuthenticationError, ConflictError.
        """
        self._entered_at = asyncio.get_running_loop().time()
        try:
            await self._live.attach(self._state)
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel the request on the server unless it has ended."""
        await self._leave()

    def __aiter__(self) -> Self:
        """Itself: iterating yields pieces of text as they arrive, never half a character."""
        return self

    async def __anext__(self) -> str:
        """The next piece of text; raises what `next_event` raises."""
        while (event := await self.next_event()) is not None:
            if isinstance(event, Tokens) and event.text:
                return event.text
        raise StopAsyncIteration

    def events(self) -> "Events":
        """Iterate over whole events instead of text; raises what `next_event` raises."""
        return Events(self)

    async def next_event(self) -> StreamItem | None:
        """Accepted (again after a reconnection), Tokens, and Finished at last; None after that.

        Raises APIStatusError if the request fails, APIConnectionError if the connection is lost for good,
        APITimeoutError if a timeout passes. Safe to cancel: no event is lost.
        """
        if self._state.is_over:
            return None
        if credit := self._state.grant():  # before waiting: once an item is taken nothing may be awaited
            await self._live.send(credit)
        while True:
            await self._wait_for_item()
            item = self._state.take()
            if not isinstance(item, APIError):
                return item
            await self._retry_or_raise(item)

    @property
    def result(self) -> Result:
        """What the caller has taken so far; complete once `finish_reason` is set."""
        return self._state.result()

    async def _leave(self) -> None:
        self._state.leave()
        if self._state.is_live:
            await self._live.detach(self._state)

    async def _wait_for_item(self) -> None:
        if not self._state.is_empty:
            return
        now = asyncio.get_running_loop().time()
        moment, words = min(self._limits(now), default=(None, ""))
        while self._state.is_empty:
            self._state.arrived.clear()
            try:
                async with asyncio.timeout_at(moment):
                    await self._state.arrived.wait()
            except TimeoutError:
                if self._state.is_empty:
                    raise APITimeoutError(f"no answer within {words}", request_id=self.request_id) from None

    def _limits(self, now: float) -> list[tuple[float, str]]:
        """The timeouts that count from here on, as (moment on the loop's clock, words)."""
        timeouts = self._timeouts
        limits = []
        if timeouts.total_s is not None:
            limits.append((self._entered_at + timeouts.total_s, f"the total timeout of {timeouts.total_s:g} s"))
        if self._state.has_first_token:
            if timeouts.idle_s is not None:
                limits.append((now + timeouts.idle_s, f"the idle timeout of {timeouts.idle_s:g} s"))
        elif timeouts.first_token_s is not None:
            moment = self._entered_at + timeouts.first_token_s
            limits.append((moment, f"the first-token timeout of {timeouts.first_token_s:g} s"))
        return limits

    async def _retry_or_raise(self, error: APIError) -> None:
        """Ask again after the server's hint if it was only busy and there is time; else raise."""
        now = asyncio.get_running_loop().time()
        hint_ms = _DEFAULT_RETRY_MS if error.retry_after_ms is None else error.retry_after_ms
        wait_s = hint_ms / 1000 * _draw.uniform(1, 1.5)  # all who were refused at once shall not come back at once
        is_late = any(now + wait_s > moment for moment, _ in self._limits(now))
        is_busy = isinstance(error, OverloadedError) and error.code == "overloaded" and self._state.nothing_came
        if not is_busy or is_late or self._num_retries_left == 0:
            raise error
        self._num_retries_left -= 1
        await asyncio.sleep(wait_s)
        await self._live.attach(self._state)
        self._state.drop_refusal()


class Events:
    """The events of one stream, in order."""

    def __init__(self, stream: "Stream") -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    async def __anext__(self) -> StreamItem:
        """The next event; raises what `Stream.next_event` raises."""
        if (event := await self._stream.next_event()) is None:
            raise StopAsyncIteration
        return event
