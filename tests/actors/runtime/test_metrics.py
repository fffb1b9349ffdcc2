import asyncio

from prometheus_client import CollectorRegistry, Counter, Histogram

from actors.runtime.metrics import RuntimeMetrics, snapshot_of
from tests.actors.runtime.clock import VirtualClock, settle


def test_a_snapshot_holds_each_sample_once_and_no_creation_times() -> None:
    registry = CollectorRegistry()
    Counter("apples_total", "Apples.", ["kind"], registry=registry).labels("red").inc(3)
    Histogram("weights", "Weights.", buckets=(1, 2), registry=registry).observe(1.5)
    families = {family.name: family for family in snapshot_of(registry).families}
    assert [(s.name, s.labels, s.value) for s in families["apples"].samples] == [("apples_total", {"kind": "red"}, 3.0)]
    assert families["weights"].kind == "histogram"
    assert [(s.name, s.value) for s in families["weights"].samples] == [
        ("weights_bucket", 0.0),
        ("weights_bucket", 1.0),
        ("weights_bucket", 1.0),
        ("weights_count", 1.0),
        ("weights_sum", 1.5),
    ]


async def test_lag_is_what_the_clock_says_beyond_the_period() -> None:
    clock = VirtualClock()
    registry = CollectorRegistry()
    metrics = RuntimeMetrics(registry, "worker:0", lambda: 12)
    sampling = asyncio.create_task(metrics.sample_lag(clock))
    await settle()
    await clock.advance(1.0)
    sampling.cancel()
    samples = {s.name: s for family in snapshot_of(registry).families for s in family.samples}
    assert samples["tokenstage_mailbox_depth"].value == 12
    assert samples["tokenstage_mailbox_depth"].labels == {"actor": "worker:0"}
    assert samples["tokenstage_event_loop_lag_seconds_count"].value == 10
    assert samples["tokenstage_event_loop_lag_seconds_sum"].value < 1e-9


def test_an_actor_that_has_not_died_counts_no_restart() -> None:
    registry = CollectorRegistry()
    RuntimeMetrics(registry, "ingress", lambda: 0)
    families = snapshot_of(registry).families
    (restarts,) = [sample for family in families for sample in family.samples if "restarts" in sample.name]
    assert (restarts.name, restarts.labels, restarts.value) == (
        "tokenstage_actor_restarts_total",
        {"actor": "ingress"},
        0,
    )
