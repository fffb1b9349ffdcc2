"""Streams, events and graphs.

A stream is an OS thread that works in order, so kernels of different streams really run at once. Check mode is told
what streams, events and waits order, so that an order which only happened is not taken for one that was asked for.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import BoundedSemaphore
from typing import NamedTuple

from cuda.emulator.library import load_runtime

Work = Callable[[int], object]
"""A launch, or any closure of the host's: takes its ticket in the stream's order."""


class Use(NamedTuple):
    """That work is given the device array at an address."""

    address: int
    writes: bool


MAX_QUEUED = 8192
"""Pieces of work that a stream holds; who queues more waits until there is room."""


class Event:
    """A point in a stream's order."""

    def __init__(self, reached: Future[None], ticket: int) -> None:
        self.reached = reached
        self.ticket = ticket

    def is_done(self) -> bool:
        """Whether the stream has come here.

        Raises:
            KernelError: What failed before it.
        """
        if not self.reached.done():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Blocks the host until the stream has come here.

        Raises:
            KernelError: What failed before it.
        """
        wait([self.reached])
        load_runtime().emulator_host_waits(self.ticket)
        self.reached.result()


class Graph:
    """Work recorded once with its arguments, to be run again as it is, on the same stream."""

    def __init__(self, recorded: Sequence[tuple[Work, Sequence[Use]]], stream: "CudaStream") -> None:
        self._recorded = tuple(recorded)
        self._stream = stream

    def launch(self) -> None:
        """Queues all that was recorded, in order."""
        for work, uses in self._recorded:
            self._stream.submit(work, uses)


class CudaStream:
    """Runs what is submitted, one after the other. After a failure it runs nothing more until `synchronize`.

    Called from one thread.
    """

    def __init__(self, name: str = "stream") -> None:
        self._number: int = load_runtime().emulator_create_stream()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._room = BoundedSemaphore(MAX_QUEUED)
        self._last: Future[None] | None = None  # it fails if anything before it did
        self._recording: list[tuple[Work, Sequence[Use]]] | None = None

    def submit(self, work: Work, uses: Sequence[Use] = ()) -> None:
        """Queues `work`, or records it while capturing. Blocks while the queue is full.

        The host shall not touch the arrays of `uses` before it has waited for the work.
        """
        if self._recording is not None:
            self._recording.append((work, uses))
            return
        library = load_runtime()
        ticket = library.emulator_submit(self._number)
        for use in uses:
            library.emulator_note_use(ticket, use.address, int(use.writes))
        self._queue(lambda: work(ticket))

    def _queue(self, work: Callable[[], object]) -> Future[None]:
        before = self._last

        def run() -> None:
            try:
                if before is not None:
                    before.result()
                work()
            finally:
                load_runtime().emulator_note_progress()  # for whoever spins meanwhile
                self._room.release()

        self._room.acquire()
        self._last = self._executor.submit(run)
        return self._last

    def begin_capture(self) -> None:
        """From here on work is recorded, not run."""
        self._recording = []

    def end_capture(self) -> Graph:
        """What was recorded since `begin_capture`.

        Raises:
            ValueError: Nothing is being captured.
        """
        if self._recording is None:
            raise ValueError("end_capture without begin_capture")
        recorded, self._recording = self._recording, None
        return Graph(recorded, self)

    def record(self) -> Event:
        """An event behind all that was submitted so far."""
        ticket = load_runtime().emulator_submit(self._number)
        return Event(self._queue(lambda: None), ticket)

    def synchronize(self) -> None:
        """Waits for all work.

        Raises:
            KernelError: The first failure since the last call.
        """
        last, self._last = self._last, None
        if last is not None:
            wait([last])
        load_runtime().emulator_host_waits_for_stream(self._number)
        if last is not None:
            last.result()

    def close(self) -> None:
        """Waits for the work and ends the OS thread."""
        self._executor.shutdown()
        load_runtime().emulator_close_stream(self._number)
