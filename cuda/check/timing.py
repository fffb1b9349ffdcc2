"""How long things take: one of many that take turns, or what the threads of several devices do together.

Where those threads wait for each other, too. Imports nothing that takes time.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

LEAST_S = 0.02
"""Of a measurement of many: a launch and the wait for its end take a thousandth of it."""
TRY_S = 0.2
"""For as long something is run again and again."""
MIN_RUNS, MAX_RUNS = 3, 15

ValueT = TypeVar("ValueT")


class Meeting:
    """Of as many threads as there are devices, each known by its place."""

    def __init__(self, num_devices: int) -> None:
        self._barrier = threading.Barrier(num_devices)
        self._told: list[Any] = [None] * num_devices

    def run(self, work: Callable[[int], ValueT]) -> list[ValueT]:
        """What `work` returns at each place. If one raises, none of the others waits, and its error is raised."""

        def run(place: int) -> ValueT:
            try:
                return work(place)
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(len(self._told)) as threads:
            done = [threads.submit(run, place) for place in range(len(self._told))]
        errors = [error for error in (device.exception() for device in done) if error is not None]
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):  # which the others have
                raise error
        return [device.result() for device in done]

    def gather(self, place: int, value: ValueT) -> list[ValueT]:
        """Everybody's value; all go on at the same time."""
        self._told[place] = value
        self._barrier.wait()
        told = list(self._told)
        self._barrier.wait()
        return told

    def least(self, place: int, run: Callable[[], object]) -> float:
        """Seconds of the run that was disturbed least: whatever else the machine does only adds to them."""
        self._together(place, run)  # memory is touched for the first time, libraries set themselves up
        first = self._together(place, run)
        num_runs = max(MIN_RUNS, min(MAX_RUNS, int(TRY_S / first)))
        return min(first, *(self._together(place, run) for _ in range(num_runs)))

    def _together(self, place: int, run: Callable[[], object]) -> float:
        """Seconds from when the first of all devices begins until the last is done."""
        self.gather(place, None)
        began = time.perf_counter()
        run()
        times = self.gather(place, (began, time.perf_counter()))
        return max(ended for _, ended in times) - min(began for began, _ in times)


def seconds_each(
    spent_on: Callable[[int], float], first: int = 1, most: int = 1 << 30, *, least_s: float = LEAST_S
) -> float:
    """Seconds of one of the many that `spent_on(count)` times: more and more until it takes long enough."""
    count = first
    while True:
        spent = spent_on(count)
        if spent >= least_s or count >= most:
            return spent / count
        count = min(most, max(2 * count, int(1.2 * count * least_s / max(spent, 1e-6))))


def seconds_of(run: Callable[[], object]) -> float:
    """Of one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
