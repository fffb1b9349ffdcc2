"""Metrics of one actor as a message, and those that the runtime adds to them: mailbox depth, event loop lag, restarts.

Every actor keeps a registry of its own; whoever renders `/metrics` asks all of them and merges by family.
"""

from collections.abc import Callable
from typing import Literal, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from actors.runtime.clock import Clock
from protocol.messages import MetricFamily, MetricsSnapshot, Sample

LAG_PERIOD_S = 0.1
LAG_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


def snapshot_of(registry: CollectorRegistry) -> MetricsSnapshot:
    """All families of `registry`; the creation times that the library adds to counters are left out."""
    return MetricsSnapshot(
        [
            MetricFamily(
                family.name,
                cast("Literal['gauge', 'counter', 'histogram']", family.type),
                family.documentation,
                [
                    Sample(sample.name, dict(sample.labels), sample.value)
                    for sample in family.samples
                    if not sample.name.endswith("_created")
                ],
            )
            for family in registry.collect()
        ]
    )


class RuntimeMetrics:
    """How an actor is doing: `mailbox_depth`, `event_loop_lag_seconds`, `actor_restarts`, all labelled `actor`."""

    def __init__(self, registry: CollectorRegistry, actor: str, depth: Callable[[], int]) -> None:
        Gauge("tokenstage_mailbox_depth", "Messages waiting.", ["actor"], registry=registry).labels(actor).set_function(
            depth
        )
        Counter(  # stays at 0 as long as the policy for a dead actor is to end the node
            "tokenstage_actor_restarts", "Lives of an actor before this one.", ["actor"], registry=registry
        ).labels(actor)
        self._lag = Histogram(
            "tokenstage_event_loop_lag_seconds",
            "How late the event loop wakes a sleeper.",
            ["actor"],
            buckets=LAG_BUCKETS,
            registry=registry,
        ).labels(actor)

    async def sample_lag(self, clock: Clock) -> None:
        """Measure for ever; spawn it."""
        while True:
            due = clock.now() + LAG_PERIOD_S
            await clock.sleep(LAG_PERIOD_S)
            self._lag.observe(max(0.0, clock.now() - due))
