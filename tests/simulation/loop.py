"""An event loop whose time jumps to the next timer and whose ready callbacks run in an order drawn from a seed.

So a test of minutes takes milliseconds, never waits, and every run of one seed is the same run. No real I/O.
"""

import asyncio
import random
import selectors
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and moves only when nobody has anything to do."""

    _ready: deque[asyncio.Handle]

    def __init__(self, seed: int) -> None:
        self._now = 0.0
        self._random = random.Random(seed)
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def _run_once(self) -> None:
        self._random.shuffle(self._ready)
        super()._run_once()  # type: ignore[misc] # private: the one place where callbacks can be put in another order


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("nobody has anything to do, now or ever: a deadlock")
        self._loop.advance(max(0.0, timeout))
        return []


class VirtualClock:
    """`actors.runtime.clock.Clock` of the running loop."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_virtual(main: Coroutine[Any, Any, T], seed: int) -> T:
    """Run to the end on a loop of its own."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(seed)) as runner:
        return runner.run(main)
