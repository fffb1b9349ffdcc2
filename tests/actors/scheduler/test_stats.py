"""What is counted of steps."""

import pytest

from actors.scheduler.stats import GroupStats


def test_utilization_is_the_mean_at_first() -> None:
    stats = GroupStats()
    for num_useful in (4, 4, 1):
        stats.used(num_useful, 4)
    assert stats.utilization == pytest.approx((1 + 1 + 0.25) / 3)


def test_utilization_then_follows_the_present() -> None:
    stats = GroupStats()
    for _ in range(1000):
        stats.used(4, 4)
    for _ in range(100):
        stats.used(1, 4)
    assert stats.utilization == pytest.approx(0.25, abs=0.01)


def test_a_step_without_slots_says_nothing_of_utilization() -> None:
    stats = GroupStats()
    stats.used(0, 0)
    assert stats.utilization == 0
