"""Offers requests at their moments and waits for all. It may share a core with the server, so it does little.

Full-policy: requests due while `max_concurrency` are running wait here, and their clocks start when they are sent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from client.bench.outcome import Outcome
from client.bench.requests import BenchRequest
from client.errors import APIError

Ask = Callable[[BenchRequest, Outcome], Awaitable[None]]
"""Sends one request and fills in its outcome; raises APIError if it fails."""


class Load:
    """`clock` gives seconds, `sleep` waits: the loop's own, or a test's."""

    def __init__(
        self,
        ask: Ask,
        *,
        max_concurrency: int | None,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ask = ask
        self._room = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        self._clock = clock
        self._sleep = sleep

    async def offer(self, requests: Sequence[BenchRequest], moments: Iterable[float]) -> list[Outcome]:
        """Ask all requests, each at its moment (seconds from now); outcomes in the order of the requests."""
        start = self._clock()
        async with asyncio.TaskGroup() as tasks:
            running = []
            for request, moment in zip(requests, moments, strict=True):
                if (wait_s := start + moment - self._clock()) > 0:
                    await self._sleep(wait_s)
                running.append(tasks.create_task(self._run(request)))
        return [task.result() for task in running]

    async def _run(self, request: BenchRequest) -> Outcome:
        if self._room is None:
            return await self._measure(request)
        async with self._room:
            return await self._measure(request)

    async def _measure(self, request: BenchRequest) -> Outcome:
        outcome = Outcome(sent_at=self._clock())
        try:
            await self._ask(request, outcome)
        except APIError as error:
            outcome.failed(error.code or "connection", error.message, self._clock())
        else:
            outcome.ended_at = self._clock()
        return outcome
