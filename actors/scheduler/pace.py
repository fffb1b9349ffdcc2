"""How fast waiting requests are let in, for the hint that a refusal carries."""

SMOOTHING = 0.1
MAX_INTERVAL_S = 10.0
"""An interval between admissions longer than this was idleness."""
DEFAULT_MS = 1000
LEAST_MS, MOST_MS = 50, 60_000


class AdmissionPace:
    """Exponentially smoothed seconds between admissions."""

    def __init__(self) -> None:
        self._interval_s: float | None = None
        self._last: float | None = None

    def admitted(self, num_requests: int, now: float) -> None:
        """A step let in so many."""
        if num_requests and self._last is not None:
            interval_s = min(now - self._last, MAX_INTERVAL_S) / num_requests
            previous = interval_s if self._interval_s is None else self._interval_s
            self._interval_s = previous + SMOOTHING * (interval_s - previous)
        if num_requests:
            self._last = now

    def retry_after_ms(self, num_requests: int) -> int:
        """When so many requests will have been let in."""
        if self._interval_s is None:
            return DEFAULT_MS
        return max(LEAST_MS, min(MOST_MS, round(self._interval_s * num_requests * 1000)))
