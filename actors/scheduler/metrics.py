"""The scheduler's numbers as Prometheus families, read off its state when somebody asks.

Names are INTERFACE's. `step_duration_seconds` and `step_gap_seconds` are not here: each worker measures its own device.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from actors.scheduler.scheduler import Scheduler
from actors.scheduler.stats import Histogram

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


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
        yield from self._group_gauges()
        yield from self._counters()
        yield from self._histograms()

    def _group_gauges(self) -> Iterator[Family]:
        groups = self._scheduler.groups.values()
        stats = self._scheduler.group_stats
        yield self._gauge("num_requests_running", "Requests in a batch.", {g.index: g.num_running for g in groups})
        yield self._gauge("num_requests_waiting", "Requests waiting.", {g.index: g.num_waiting for g in groups})
        yield self._gauge(
            "kv_cache_usage_perc",
            "Pages held, 1 is all.",
            {g.index: g.pool.num_held / g.pool.num_pages for g in groups},
        )
        yield self._gauge("kv_pages_free", "Pages without meaning.", {g.index: g.pool.num_free for g in groups})
        yield self._gauge("kv_pages_cached", "Pages nobody holds.", {g.index: g.pool.num_cached for g in groups})
        yield self._gauge("kv_pages_held", "Pages requests hold.", {g.index: g.pool.num_held for g in groups})
        yield self._gauge("kv_pages_total", "Pages of the pool.", {g.index: g.pool.num_pages for g in groups})
        yield self._gauge(
            "batch_utilization",
            "Rows that did useful work by row slots held, over the last steps.",
            {index: stat.utilization for index, stat in stats.items()},
        )
        yield self._gauge(
            "step_tokens", "Tokens of the latest step.", {index: stat.step_tokens for index, stat in stats.items()}
        )
        preemptions = {g.index: g.num_preemptions for g in groups}
        yield self._counter("num_preemptions", "Requests put back for lack of pages.", "group", preemptions)
        errors = {index: stat.prediction_error for index, stat in stats.items()}
        yield self._histogram("step_prediction_error_ratio", "|predicted - measured| step time by measured.", errors)

    def _counters(self) -> Iterator[Family]:
        stats = self._scheduler.stats
        yield self._total("prompt_tokens", "Prompt tokens of admitted requests.", stats.prompt_tokens)
        yield self._total("generation_tokens", "Output tokens sampled.", stats.generation_tokens)
        yield self._total("prefix_cache_queries", "Prompt tokens looked up.", stats.cache_queries)
        yield self._total("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.cache_hits)
        yield self._total("slo_attained", "Requests within their latency targets.", stats.slo_attained)
        yield self._total("slo_missed", "Requests that missed a latency target.", stats.slo_missed)
        yield self._counter("request_success", "Requests finished.", "finished_reason", dict(stats.success))
        yield self._counter("request_failure", "Requests failed or refused.", "code", dict(stats.failure))

    def _histograms(self) -> Iterator[Family]:
        stats = self._scheduler.stats
        for name, help_text, histogram in (
            ("time_to_first_token_seconds", "From submission.", stats.time_to_first_token),
            ("inter_token_latency_seconds", "Between tokens of one request.", stats.inter_token_latency),
            ("e2e_request_latency_seconds", "From submission to the end.", stats.e2e_latency),
            ("request_queue_time_seconds", "From submission to admission.", stats.queue_time),
            ("request_prompt_tokens", "Prompt tokens of a request.", stats.request_prompt_tokens),
            ("request_generation_tokens", "Output tokens of a request.", stats.request_generation_tokens),
        ):
            family = HistogramMetricFamily(f"tokenstage_{name}", help_text, labels=["model_name"])
            family.add_metric([self._model], _buckets(histogram), histogram.total)
            yield family

    def _gauge(self, name: str, help_text: str, values: dict[int, float]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"tokenstage_{name}", help_text, labels=["model_name", "group"])
        for group, value in values.items():
            family.add_metric([self._model, str(group)], value)
        return family

    def _total(self, name: str, help_text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(f"tokenstage_{name}", help_text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter(
        self, name: str, help_text: str, label: str, values: dict[str, int] | dict[int, int]
    ) -> CounterMetricFamily:
        family = CounterMetricFamily(f"tokenstage_{name}", help_text, labels=["model_name", label])
        for key, value in values.items():
            family.add_metric([self._model, str(key)], value)
        return family

    def _histogram(self, name: str, help_text: str, values: dict[int, Histogram]) -> HistogramMetricFamily:
        family = HistogramMetricFamily(f"tokenstage_{name}", help_text, labels=["model_name", "group"])
        for group, histogram in values.items():
            family.add_metric([self._model, str(group)], _buckets(histogram), histogram.total)
        return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    buckets = []
    seen = 0
    for bound, count in zip([*histogram.bounds, float("inf")], histogram.counts, strict=True):
        seen += count
        buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(seen)))
    return buckets
