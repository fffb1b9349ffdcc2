"""What the scheduler counts while it works: plain numbers, cheap enough for every token. Shown by `metrics`."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from actors.scheduler.cost import CostModel
from actors.scheduler.request import Request
from actors.scheduler.step import Applied
from protocol.messages import FinishReason, Timing
from protocol.step import StepResult

LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0,
    2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
TOKEN_BUCKETS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
RECENT = 0.05
"""Weight of the latest step in what follows the present."""
RATIO_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)


class Histogram:
    """Counts by bucket; `observe` can take many equal values at once."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` so many times; a bucket takes values up to and including its bound."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


_latency, _tokens = partial(Histogram, LATENCY_BUCKETS), partial(Histogram, TOKEN_BUCKETS)


@dataclass(slots=True)
class GroupStats:
    """Of one group."""

    step_tokens: int = 0
    """Tokens of the latest step."""
    num_useful_rows: int = 0
    num_held_rows: int = 0
    """Their ratio over all steps is U of the run; `utilization` follows the present."""
    utilization: float = 0.0
    num_steps: int = 0
    prediction_error: Histogram = field(default_factory=lambda: Histogram(RATIO_BUCKETS))

    def used(self, num_useful: int, num_held: int) -> None:
        """A step did useful work in so many of the row slots held."""
        self.num_useful_rows += num_useful
        self.num_held_rows += num_held
        if num_held:
            self.num_steps += 1
            weight = max(RECENT, 1 / self.num_steps)  # at first the plain mean, so it does not climb from zero
            self.utilization += weight * (num_useful / num_held - self.utilization)

    def count_step(self, cost: CostModel, applied: Applied, result: StepResult) -> None:
        """A step was measured: the prediction is judged first, then corrected."""
        step = applied.step
        self.used(step.num_rows - (len(result.rows) - len(applied.deltas)), step.num_held)
        predicted_s = cost.predict(step.load)
        if predicted_s is not None and result.duration_s > 0:
            self.prediction_error.observe(abs(predicted_s - result.duration_s) / result.duration_s)
        cost.observe(step.load, result.duration_s)


@dataclass(slots=True)
class Stats:
    """Of the whole scheduler."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    cache_queries: int = 0
    """Prompt tokens looked up in a prefix cache."""
    cache_hits: int = 0
    """Prompt tokens found there."""
    success: Counter[str] = field(default_factory=Counter)
    failure: Counter[str] = field(default_factory=Counter)
    slo_attained: int = 0
    slo_missed: int = 0
    time_to_first_token: Histogram = field(default_factory=_latency)
    inter_token_latency: Histogram = field(default_factory=_latency)
    e2e_latency: Histogram = field(default_factory=_latency)
    queue_time: Histogram = field(default_factory=_latency)
    request_prompt_tokens: Histogram = field(default_factory=_tokens)
    request_generation_tokens: Histogram = field(default_factory=_tokens)

    def count_admitted(self, requests: list[Request]) -> None:
        """They entered a batch; counted are those who did so for the first time."""
        for request in requests:
            if request.incarnation or request.admitted_at is None:
                continue
            self.prompt_tokens += request.num_prompt
            self.cache_queries += request.num_prompt
            self.cache_hits += request.num_cached
            self.request_prompt_tokens.observe(request.num_prompt)
            self.queue_time.observe(request.admitted_at - request.submitted_at)

    def count_tokens(self, applied: Applied, now: float) -> None:
        """A step's tokens were sampled."""
        self.generation_tokens += len(applied.deltas)
        for last, num_rows in applied.gaps.items():
            self.inter_token_latency.observe(now - last, num_rows)
        for request in applied.first_tokens:
            self.time_to_first_token.observe(now - request.submitted_at)

    def count_finished(self, request: Request, reason: FinishReason, times: Timing) -> None:
        """It ended well, or was cancelled."""
        self.success[reason] += 1
        if times.total_ms is not None:
            self.e2e_latency.observe(times.total_ms / 1e3)
        self.request_generation_tokens.observe(request.num_output)
        slo = request.slo
        if reason == "cancelled" or slo is None or (slo.ttft_ms is None and slo.tpot_ms is None):
            return
        if _within(times.ttft_ms, slo.ttft_ms) and _within(times.tpot_ms, slo.tpot_ms):
            self.slo_attained += 1
        else:
            self.slo_missed += 1


def _within(measured_ms: float | None, target_ms: int | None) -> bool:
    return target_ms is None or measured_ms is None or measured_ms <= target_ms
