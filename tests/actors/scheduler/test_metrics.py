from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client.parser import text_string_to_metric_families

from actors.runtime.metrics import snapshot_of
from actors.scheduler.metrics import _buckets, registry_of
from actors.scheduler.stats import LATENCY_BUCKETS, Histogram
from tests.actors.scheduler.rig import Rig, make_config

NAMES = {
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "kv_pages_free",
    "kv_pages_cached",
    "kv_pages_held",
    "kv_pages_total",
    "batch_utilization",
    "step_tokens",
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "request_success_total",
    "slo_attained_total",
    "slo_missed_total",
    "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_count",
    "e2e_request_latency_seconds_count",
    "request_queue_time_seconds_count",
    "request_prompt_tokens_count",
    "request_generation_tokens_count",
    "step_prediction_error_ratio_count",
}


def values(rig: Rig) -> dict[str, float]:
    families = snapshot_of(registry_of(rig.scheduler)).families
    return {sample.name.removeprefix("tokenstage_"): sample.value for family in families for sample in family.samples}


def test_every_name_of_the_interface_is_there() -> None:
    rig = Rig(make_config())
    rig.submit([1, 2, 3], max_tokens=2, ignore_eos=True)
    rig.run()
    assert values(rig).keys() >= NAMES


def test_numbers_are_those_of_the_requests() -> None:
    rig = Rig(make_config(overlap=False))
    for _ in range(2):
        rig.submit(list(range(10, 19)), max_tokens=3, ignore_eos=True)
        rig.run()
    seen = values(rig)
    assert seen["prompt_tokens_total"] == 18
    assert seen["generation_tokens_total"] == 6
    assert seen["prefix_cache_queries_total"] == 18
    assert seen["prefix_cache_hits_total"] == 8
    assert seen["request_success_total"] == 2
    assert seen["inter_token_latency_seconds_count"] == 4
    assert seen["inter_token_latency_seconds_sum"] == 4.0  # one second a step
    assert seen["kv_pages_free"] + seen["kv_pages_cached"] + seen["kv_pages_held"] == seen["kv_pages_total"] == 64


def test_buckets_are_those_of_the_library() -> None:
    registry = CollectorRegistry()
    library = PrometheusHistogram("x", "x", buckets=LATENCY_BUCKETS, registry=registry)
    ours = Histogram(LATENCY_BUCKETS)
    for value in (0.0, 0.001, 0.0011, 0.3, 5.0, 1e9):
        library.observe(value)
        ours.observe(value)
    (family,) = registry.collect()
    theirs = {sample.labels["le"]: sample.value for sample in family.samples if sample.name == "x_bucket"}
    assert dict(_buckets(ours)) == theirs


def test_the_library_can_render_and_read_them() -> None:
    rig = Rig(make_config())
    rig.submit([1, 2, 3])
    rig.run()
    text = generate_latest(registry_of(rig.scheduler)).decode()
    assert {family.name for family in text_string_to_metric_families(text)} >= {"tokenstage_kv_pages_free"}
