"""Streams: work in order on an OS thread of its own, so that kernels of different streams really run at once."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self


class Event:
    """A point in a stream's order."""

    def __init__(self, reached: Future[None]) -> None:
        self._reached = reached

    def synchronize(self) -> None:
        """Waits until the stream has come here; does not raise what failed before."""
        wait([self._reached])


class Stream:
    """Runs submitted launches one after the other. After a failure it runs nothing more until `synchronize`."""

    def __init__(self, name: str = "stream") -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._work: list[Future[None]] = []

    def submit(self, work: Callable[[], None]) -> None:
        """Queues `work`; the queue holds what the caller submits between two calls of `synchronize`."""
        before = self._work[-1] if self._work else None

        def run() -> None:
            if before is None or before.exception() is None:
                work()
            else:
                before.result()

        self._work.append(self._executor.submit(run))

    def record(self) -> Event:
        """An event behind all that was submitted so far."""
        self.submit(lambda: None)
        return Event(self._work[-1])

    def wait_event(self, event: Event) -> None:
        """What is submitted from here on runs after `event`."""
        self.submit(event.synchronize)

    def synchronize(self) -> None:
        """Waits for all work.

        Raises:
            KernelError: The first failure.
        """
        work, self._work = self._work, []
        wait(work)
        for done in work:
            done.result()

    def close(self) -> None:
        """Waits for the work and ends the OS thread."""
        self._executor.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
