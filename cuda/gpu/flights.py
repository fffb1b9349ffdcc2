"""Steps on their way, oldest first; how long each took and how long the device had nothing to do before.

The host sees that a step is done only when it looks, so an idle time that is told is the most that it can have been.
"""

import time
from collections import deque

from cuda.gpu.stages import Pass
from protocol.step import StepPlan, StepResult


class Flight:
    """One step."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self.passes: list[Pass] = []
        """As they were queued."""
        self.queued_at = 0.0
        """When its first work was (time.perf_counter)."""
        self.idle_s = 0.0
        """How long the device had had nothing to do then."""

    def is_done(self) -> bool:
        """Whether all of it has run. Raises what failed on the device."""
        return not self.passes or self.passes[-1].is_done()


class Flights:
    """All of them."""

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()
        self._ended_at: float | None = None
        """When the latest one that has ended was seen to."""
        self._busy_at = 0.0
        """When the device was last seen to have work."""

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def oldest_step(self) -> int:
        """The number of the oldest one's step; 0 if there is none."""
        return self._flights[0].plan.step if self._flights else 0

    def begin(self, flight: Flight) -> None:
        """The first work of a step is about to be queued; more calls change nothing."""
        if flight.queued_at:
            return
        flight.queued_at = time.perf_counter()
        if self._flights:
            flight.idle_s = flight.queued_at - self._busy_at if self._flights[-1].is_done() else 0.0
        elif self._ended_at is not None:
            flight.idle_s = flight.queued_at - self._ended_at

    def add(self, flight: Flight) -> None:
        """All of a step is queued."""
        self._flights.append(flight)
        self._busy_at = flight.queued_at

    def poll(self) -> StepResult | None:
        """The oldest step's result if it is done."""
        if not self._flights:
            return None
        if self._flights[0].is_done():
            return self.wait()
        self._busy_at = time.perf_counter()
        return None

    def wait(self) -> StepResult:
        """The oldest step's result. IndexError if there is none."""
        flight = self._flights[0]
        rows = [row for one in flight.passes for row in one.collect()]
        self._flights.popleft()
        now = time.perf_counter()
        began = flight.queued_at if self._ended_at is None else max(flight.queued_at, self._ended_at)
        self._ended_at = now
        return StepResult(flight.plan.epoch, flight.plan.step, rows, duration_s=now - began)
