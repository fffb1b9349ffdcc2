"""Time that only moves when a test says so."""

import asyncio
import heapq
from itertools import count


class VirtualClock:
    """A Clock: `sleep` ends when `advance` has moved the time past its end."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Move on, waking sleepers at their moments, in order; lets the loop run after each."""
        end = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            moment, _, woken = heapq.heappop(self._sleepers)
            self._now = moment
            if not woken.done():
                woken.set_result(None)
            await settle()
        self._now = end
        await settle()


async def settle() -> None:
    """Let everything that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)
