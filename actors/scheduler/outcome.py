"""What is told and counted of a request's admission, its tokens and its end."""

from actors.scheduler.apply import Applied
from actors.scheduler.cost import CostModel
from actors.scheduler.request import Request
from actors.scheduler.stats import GroupStats, Stats
from protocol.messages import FinishReason, Timing, Usage
from protocol.step import StepResult


def usage(request: Request) -> Usage:
    """Token counts; resumed output tokens are output tokens."""
    return Usage(request.num_prompt, request.num_cached, request.num_output)


def timing(request: Request, now: float) -> Timing:
    """Milliseconds from submission; TPOT is the mean distance of output tokens after the first."""
    num_gaps = request.num_output - request.num_resumed - 1
    first = request.first_token_at
    return Timing(
        queue_ms=None if request.admitted_at is None else (request.admitted_at - request.submitted_at) * 1e3,
        ttft_ms=None if first is None else (first - request.submitted_at) * 1e3,
        tpot_ms=None if first is None or num_gaps < 1 else (request.last_token_at - first) * 1e3 / num_gaps,
        total_ms=(now - request.submitted_at) * 1e3,
    )


def count_admitted(stats: Stats, request: Request) -> None:
    """It entered a batch for the first time."""
    stats.prompt_tokens += request.num_prompt
    stats.cache_queries += request.num_prompt
    stats.cache_hits += request.num_cached
    stats.request_prompt_tokens.observe(request.num_prompt)
    if request.admitted_at is not None:
        stats.queue_time.observe(request.admitted_at - request.submitted_at)


def count_tokens(stats: Stats, applied: Applied, now: float) -> None:
    """A step's tokens were sampled."""
    stats.generation_tokens += len(applied.deltas)
    for last, num_rows in applied.gaps.items():
        stats.inter_token_latency.observe(now - last, num_rows)
    for request in applied.first_tokens:
        stats.time_to_first_token.observe(now - request.submitted_at)


def count_step(stats: GroupStats, cost: CostModel, applied: Applied, result: StepResult) -> None:
    """A step was measured: the prediction is judged first, then corrected."""
    step = applied.step
    stats.used(step.num_rows - (len(result.rows) - len(applied.deltas)), step.num_held)
    predicted_s = cost.predict(step.load)
    if predicted_s is not None and result.duration_s > 0:
        stats.prediction_error.observe(abs(predicted_s - result.duration_s) / result.duration_s)
    cost.observe(step.load, result.duration_s)


def count_finished(stats: Stats, request: Request, reason: FinishReason, times: Timing) -> None:
    """It ended well, or was cancelled."""
    stats.success[reason] += 1
    if times.total_ms is not None:
        stats.e2e_latency.observe(times.total_ms / 1e3)
    stats.request_generation_tokens.observe(request.num_output)
    slo = request.slo
    if reason == "cancelled" or slo is None or (slo.ttft_ms is None and slo.tpot_ms is None):
        return
    if _within(times.ttft_ms, slo.ttft_ms) and _within(times.tpot_ms, slo.tpot_ms):
        stats.slo_attained += 1
    else:
        stats.slo_missed += 1


def _within(measured_ms: float | None, target_ms: int | None) -> bool:
    return target_ms is None or measured_ms is None or measured_ms <= target_ms
