"""The scheduler's numbers as Prometheus families, read off its state when somebody asks.

Names are the field's usual ones. `step_duration_seconds` and `step_gap_seconds` are each worker's own.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from actors.scheduler.group import GroupState
from actors.scheduler.scheduler import Scheduler
from actors.scheduler.stats import GroupStats, Histogram, Stats

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

GROUP_GAUGES: tuple[tuple[str, str, Callable[[GroupState, GroupStats], float]], ...] = (
    ("num_requests_running", "Requests in a batch.", lambda group, _: group.num_running),
    ("num_requests_waiting", "Requests waiting.", lambda group, _: group.num_waiting),
    ("kv_cache_usage_perc", "Pages held, 1 is all.", lambda group, _: group.pool.num_held / group.pool.num_pages),
    ("kv_pages_free", "Pages without meaning.", lambda group, _: group.pool.num_free),
    ("kv_pages_cached", "Pages nobody holds.", lambda group, _: group.pool.num_cached),
    ("kv_pages_held", "Pages requests hold.", lambda group, _: group.pool.num_held),
    ("kv_pages_total", "Pages of the pool.", lambda group, _: group.pool.num_pages),
    (
        "batch_utilization",
        "Rows that did useful work by row slots held, over the last steps.",
        lambda _, stats: stats.utilization,
    ),
    ("step_tokens", "Tokens of the latest step.", lambda _, stats: stats.step_tokens),
)
TOTALS: tuple[tuple[str, str, Callable[[Stats], int]], ...] = (
    ("prompt_tokens", "Prompt tokens of admitted requests.", lambda stats: stats.prompt_tokens),
    ("generation_tokens", "Output tokens sampled.", lambda stats: stats.generation_tokens),
    ("prefix_cache_queries", "Prompt tokens looked up.", lambda stats: stats.cache_queries),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda stats: stats.cache_hits),
    ("slo_attained", "Requests within their latency targets.", lambda stats: stats.slo_attained),
    ("slo_missed", "Requests that missed a latency target.", lambda stats: stats.slo_missed),
)
HISTOGRAMS: tuple[tuple[str, str, Callable[[Stats], Histogram]], ...] = (
    ("time_to_first_token_seconds", "From submission.", lambda stats: stats.time_to_first_token),
    ("inter_token_latency_seconds", "Between tokens of one request.", lambda stats: stats.inter_token_latency),
    ("e2e_request_latency_seconds", "From submission to the end.", lambda stats: stats.e2e_latency),
    ("request_queue_time_seconds", "From submission to admission.", lambda stats: stats.queue_time),
    ("request_prompt_tokens", "Prompt tokens of a request.", lambda stats: stats.request_prompt_tokens),
    ("request_generation_tokens", "Output tokens of a request.", lambda stats: stats.request_generation_tokens),
)


def registry_of(scheduler: Scheduler) -> CollectorRegistry:
    """A private registry that shows one scheduler."""
    registry = CollectorRegistry()
    registry.register(SchedulerCollector(scheduler))
    return registry


class SchedulerCollector(Collector):
    """Makes families out of the state of the moment."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._model = scheduler.model.name

    def collect(self) -> Iterator[Family]:
        """All families; called by the registry."""
        groups = self._scheduler.groups.values()
        stats, of_group = self._scheduler.stats, self._scheduler.group_stats
        for name, words, gauge in GROUP_GAUGES:
            family = GaugeMetricFamily(f"tokenstage_{name}", words, labels=["model_name", "group"])
            for group in groups:
                family.add_metric([self._model, str(group.index)], gauge(group, of_group[group.index]))
            yield family
        preemptions = {str(group.index): group.num_preemptions for group in groups}
        yield self._counter("num_preemptions", "Requests put back for lack of pages.", "group", preemptions)
        yield self._counter("request_success", "Requests finished.", "finished_reason", stats.success)
        yield self._counter("request_failure", "Requests failed or refused.", "code", stats.failure)
        for name, words, total in TOTALS:
            counter = CounterMetricFamily(f"tokenstage_{name}", words, labels=["model_name"])
            counter.add_metric([self._model], total(stats))
            yield counter
        for name, words, histogram in HISTOGRAMS:
            yield self._histogram(name, words, ["model_name"], [([self._model], histogram(stats))])
        errors = [([self._model, str(index)], stat.prediction_error) for index, stat in of_group.items()]
        words = "|predicted - measured| step time by measured."
        yield self._histogram("step_prediction_error_ratio", words, ["model_name", "group"], errors)

    def _counter(self, name: str, words: str, label: str, values: Mapping[str, int]) -> Family:
        family = CounterMetricFamily(f"tokenstage_{name}", words, labels=["model_name", label])
        for key, value in values.items():
            family.add_metric([self._model, key], value)
        return family

    def _histogram(self, name: str, words: str, labels: list[str], values: list[tuple[list[str], Histogram]]) -> Family:
        family = HistogramMetricFamily(f"tokenstage_{name}", words, labels=labels)
        for key, histogram in values:
            family.add_metric(key, _buckets(histogram), histogram.total)
        return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(repr, map(float, histogram.bounds)), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
