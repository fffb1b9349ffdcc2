"""An actor as its process runs it: the actor, the metrics of its runtime, and a word to whoever watches it."""

from collections.abc import Callable
from typing import Any, TypeVar

from actors.runtime.actor import Actor
from actors.runtime.clock import Clock
from actors.runtime.metrics import RuntimeMetrics, snapshot_of
from protocol.messages import MetricsSnapshot

InboxT = TypeVar("InboxT")


class HostedActor(Actor[InboxT]):
    """Passes every hook on; adds RuntimeMetrics to each MetricsSnapshot that the actor answers."""

    def __init__(
        self,
        inner: Actor[InboxT],
        metrics: RuntimeMetrics,
        clock: Clock,
        on_received: Callable[[InboxT], None] = lambda _: None,
    ) -> None:
        self._inner = inner
        self._metrics = metrics
        self._clock = clock
        self._on_received = on_received

    def bind(self, tasks: Any) -> None:  # noqa: ANN401 - see Actor.bind
        """Both live on one task group."""
        super().bind(tasks)
        self._inner.bind(tasks)

    def is_control(self, message: InboxT) -> bool:
        """As the actor has it."""
        return self._inner.is_control(message)

    async def started(self) -> None:
        """Begin to measure."""
        self.spawn(self._metrics.sample_lag(self._clock), name="loop-lag")
        await self._inner.started()

    async def receive(self, message: InboxT) -> Any:  # noqa: ANN401 - what the actor answers
        """Pass on."""
        answer = await self._inner.receive(message)
        self._on_received(message)
        if isinstance(answer, MetricsSnapshot):
            return MetricsSnapshot([*answer.families, *snapshot_of(self._metrics.registry).families])
        return answer

    async def after_batch(self) -> None:
        """Pass on."""
        await self._inner.after_batch()

    async def stopped(self) -> None:
        """Pass on."""
        await self._inner.stopped()
