"""What is on its way to the device: passes in their stages, and steps, oldest first.

A stage is pinned host memory that holds what one pass tells the device and, later, what it answers; stages are used in
turn, and none is rewritten before its answer has been read. The host sees that a step is done only when it looks, so
an idle time that is told is the most that it can have been.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cuda.devices.rows import Drawn, Ints, Results, sampled_rows
from cuda.gpu.batch import BatchArrays, BatchShape, num_result_words, results_over
from cuda.kernels.backend import Backend, Event
from protocol.step import SampledRow, StepPlan, StepResult


class Stage:
    """Memory of one pass."""

    def __init__(self, backend: Backend, shape: BatchShape, max_start_tokens: int) -> None:
        self.words = backend.pinned((shape.begins[-1],), torch.int32)
        self.batch: BatchArrays[Ints] = BatchArrays.over(self.words.numpy(), shape)
        self.updates: torch.Tensor = BatchArrays.over(self.words, shape).updates
        self.result_words = backend.pinned((num_result_words(shape.max_rows),), torch.int32)
        self.results: Results[Any] = results_over(self.result_words.numpy(), shape.max_rows, np.float32)
        self.start_tokens = backend.pinned((max_start_tokens,), torch.int32)
        self.user: Pass | None = None


class Pass:
    """Work that uses a stage until `done`, and what it draws."""

    def __init__(self, stage: Stage, done: Event, drawn: Sequence[Drawn] = ()) -> None:
        self._stage = stage
        self._done = done
        self._drawn = drawn
        self._rows: list[SampledRow] | None = None
        stage.user = self

    def is_done(self) -> bool:
        """Whether `collect` would return at once. Raises what failed on the device."""
        return self._rows is not None or self._done.is_done()

    def collect(self) -> list[SampledRow]:
        """Wait, read what was drawn and let go of the stage. Raises what failed on the device."""
        if self._rows is None:
            self._done.wait()
            self._rows = sampled_rows(self._stage.results, self._drawn)
            self._stage.user = None
        return self._rows


class Stages:
    """A ring of them."""

    def __init__(self, backend: Backend, shape: BatchShape, max_start_tokens: int, count: int) -> None:
        self._stages = [Stage(backend, shape, max_start_tokens) for _ in range(count)]
        self._num_taken = 0

    def take(self) -> Stage:
        """The stage that was used longest ago, once nobody uses it any more."""
        stage = self._stages[self._num_taken % len(self._stages)]
        self._num_taken += 1
        if stage.user is not None:
            stage.user.collect()
        return stage


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
