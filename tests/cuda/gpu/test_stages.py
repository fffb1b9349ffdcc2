from typing import Any

import pytest

from cuda.gpu.stages import Flight, Flights
from protocol.step import SampledRow, StepPlan


class Clock:
    """`time.perf_counter` in the test's hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)


class FakePass:
    """A pass that is done when the test says so."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.done = False

    def is_done(self) -> bool:
        return self.done

    def collect(self) -> list[SampledRow]:
        return [SampledRow(0, 0, 0, self.token)]


def fly(flights: Flights, step: int, *passes: Any) -> Flight:
    flight = Flight(StepPlan(1, step, [], []))
    flights.begin(flight)
    flight.passes += passes
    flights.add(flight)
    return flight


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_steps_are_answered_in_order_with_the_rows_of_all_their_passes(clock: Clock) -> None:
    flights, first, second = Flights(), FakePass(5), FakePass(7)
    fly(flights, 1, first, second)
    fly(flights, 2)
    first.done = True
    assert flights.poll() is None
    second.done = True
    result = flights.poll()
    assert result is not None
    assert (result.step, [row.token for row in result.rows]) == (1, [5, 7])
    assert flights.wait().step == 2
    assert flights.poll() is None
    assert clock.now == 100.0


def test_a_step_takes_as_long_as_the_device_works_on_it_not_as_it_is_queued(clock: Clock) -> None:
    flights = Flights()
    fly(flights, 1, FakePass(1))
    clock.now += 1
    fly(flights, 2, FakePass(2))
    clock.now += 2
    assert flights.wait().duration_s == 3
    clock.now += 4
    assert flights.wait().duration_s == 4


def test_the_device_was_idle_from_the_end_of_one_step_to_the_first_work_of_the_next(clock: Clock) -> None:
    flights = Flights()
    assert fly(flights, 1, FakePass(1)).idle_s == 0
    assert fly(flights, 2, FakePass(2)).idle_s == 0
    flights.wait()
    flights.wait()
    clock.now += 3
    flight = Flight(StepPlan(1, 3, [], []))
    flights.begin(flight)
    clock.now += 1
    flights.begin(flight)  # more of the same step
    assert (flight.queued_at, flight.idle_s) == (103, 3)


def test_a_step_that_ended_unseen_counts_as_idle_since_it_was_last_seen_to_run(clock: Clock) -> None:
    flights, last = Flights(), FakePass(1)
    fly(flights, 1, last)
    clock.now += 1
    assert flights.poll() is None
    clock.now += 2
    last.done = True
    assert fly(flights, 2, FakePass(2)).idle_s == 2
