"""Streams, events and graphs, with CuPy's names.

A stream is an OS thread that works in order, so kernels of different streams really run at once. Check mode is told
what streams, events and waits order, so that an order which only happened is not taken for one that was asked for.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self

from cuda.emulator.library import load_runtime

Work = Callable[[int], None]  # takes its ticket in the stream's order


class Event:
    """A point in a stream's order."""

    def __init__(self, reached: Future[None], number: int) -> None:
        self.number = number
        self._reached = reached

    def synchronize(self) -> None:
        """Waits until the stream has come here; does not raise what failed before."""
        self.wait()
        load_runtime().emulator_host_waits_for_event(self.number)

    def wait(self) -> None:
        """The waiting alone, for a stream's thread: it tells the host nothing."""
        wait([self._reached])


class Graph:
    """Launches recorded once with their arguments, to be run again as they are."""

    def __init__(self, launches: tuple[Work, ...]) -> None:
        self._launches = launches

    def launch(self, stream: "Stream") -> None:
        """Queues every recorded launch, in order."""
        for launch in self._launches:
            stream.submit(launch)


class Stream:
    """Runs submitted launches one after the other. After a failure it runs nothing more until `synchronize`."""

    def __init__(self, name: str = "stream") -> None:
        self._number: int = load_runtime().emulator_create_stream()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._work: list[Future[None]] = []
        self._captured: list[Work] | None = None

    def submit(self, work: Work) -> None:
        """Queues `work`, or records it while capturing. What is queued is bounded by the calls of `synchronize`."""
        if self._captured is not None:
            self._captured.append(work)
            return
        ticket = load_runtime().emulator_submit(self._number)
        self._queue(lambda: work(ticket))

    def _queue(self, work: Callable[[], None]) -> Future[None]:
        before = self._work[-1] if self._work else None

        def run() -> None:
            if before is None or before.exception() is None:
                work()
            else:
                before.result()

        self._work.append(self._executor.submit(run))
        return self._work[-1]

    def begin_capture(self) -> None:
        """From here on launches are recorded, not run."""
        self._captured = []

    def end_capture(self) -> Graph:
        """What was recorded since `begin_capture`.

        Raises:
            ValueError: Nothing is being captured.
        """
        if self._captured is None:
            raise ValueError("end_capture without begin_capture")
        launches, self._captured = tuple(self._captured), None
        return Graph(launches)

    def record(self) -> Event:
        """An event behind all that was submitted so far."""
        return Event(self._queue(lambda: None), load_runtime().emulator_record_event(self._number))

    def wait_event(self, event: Event) -> None:
        """What is submitted from here on runs after `event`."""
        load_runtime().emulator_stream_waits_for_event(self._number, event.number)
        self._queue(event.wait)

    def synchronize(self) -> None:
        """Waits for all work.

        Raises:
            KernelError: The first failure.
        """
        work, self._work = self._work, []
        wait(work)
        load_runtime().emulator_host_waits_for_stream(self._number)
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
