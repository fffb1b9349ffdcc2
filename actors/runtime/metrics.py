"""Metrics of one actor as a message, and those that the runtime itself keeps: mailbox depth, event loop lag, restarts.

Every actor keeps a private registry; whoever renders `/metrics` asks all of them and merges by family.
"""

from collections.abc import Callable
from typing import Any, Literal, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from actors.runtime.clock import Clock
from actors.runtime.ref import ActorStopped
from protocol.messages import GetHealth, Health, MetricFamily, MetricsSnapshot, Sample

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

    def __init__(self, actor: str, depth: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        Gauge("tokenstage_mailbox_depth", "Messages waiting.", ["actor"], registry=self.registry).labels(
            actor
        ).set_function(depth)
        Counter(  # stays at 0 as long as the policy for a dead actor is to end the node
            "tokenstage_actor_restarts", "Lives of an actor before this one.", ["actor"], registry=self.registry
        ).labels(actor)
        self._lag = Histogram(
            "tokenstage_event_loop_lag_seconds",
            "How late the event loop wakes a sleeper.",
            ["actor"],
            buckets=LAG_BUCKETS,
            registry=self.registry,
        ).labels(actor)

    async def sample_lag(self, clock: Clock) -> None:
        """Measure for ever; spawn it."""
        while True:
            due = clock.now() + LAG_PERIOD_S
            await clock.sleep(LAG_PERIOD_S)
            self._lag.observe(max(0.0, clock.now() - due))


class MetricsProbe:
    """An ActorRef in name only: it answers for this very process: CollectMetrics with its RuntimeMetrics."""

    name = "runtime"

    def __init__(self, metrics: RuntimeMetrics) -> None:
        self._metrics = metrics

    async def tell(self, message: object) -> None:
        """Nothing can be told to it."""
        raise ActorStopped(f"nobody takes {type(message).__name__} here")

    def try_tell(self, message: object) -> bool:  # noqa: ARG002 - the same for all
        """Nothing can be told to it."""
        return False

    async def ask(self, message: object, *, timeout_s: float) -> Any:  # noqa: ANN401, ARG002 - an ActorRef
        """Return the metrics, or that this process is well: it runs this line."""
        return Health(ok=True) if isinstance(message, GetHealth) else snapshot_of(self._metrics.registry)
