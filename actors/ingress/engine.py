"""What the ingress knows of the engine behind it, and the questions to other actors that pages need answered.

`EngineStatus` is written by the actor alone, read by connections and pages; `EngineProbe` asks: is the engine moving,
what do all of its actors count.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from actors.runtime.ref import ActorRef, ActorStopped
from protocol.errors import RequestError
from protocol.messages import CollectMetrics, GetHealth, Health, MetricsSnapshot, SchedulerInbox, WorkerInbox

HEALTH_TIMEOUT_S = 2.0
METRICS_TIMEOUT_S = 1.0


class EngineProbe:
    """Asks the scheduler and the other actors (`peers`)."""

    def __init__(self, scheduler: ActorRef[SchedulerInbox], peers: Sequence[ActorRef[WorkerInbox]] = ()) -> None:
        self._scheduler = scheduler
        self._peers = peers

    async def health(self) -> Health:
        """The scheduler's own word; not ok when it or a worker is not well or does not answer in time."""
        actors: list[ActorRef[GetHealth]] = [self._scheduler, *self._peers]
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(_health(ref)) for ref in actors]
        words = [answer.result() for answer in answers]
        return next((word for word in words if not word.ok), words[0])

    async def metrics(self) -> list[MetricsSnapshot]:
        """Of all that answer within a second; the others are left out."""
        actors: list[ActorRef[CollectMetrics]] = [self._scheduler, *self._peers]
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(_collect(ref)) for ref in actors]
        return [snapshot for answer in answers if (snapshot := answer.result()) is not None]


async def _health(ref: ActorRef[GetHealth]) -> Health:
    try:
        answer: Health = await ref.ask(GetHealth(), timeout_s=HEALTH_TIMEOUT_S)
    except TimeoutError:
        return Health(ok=False, detail=f"{ref.name} has not answered for {HEALTH_TIMEOUT_S:g} s")
    except ActorStopped:
        return Health(ok=False, detail=f"{ref.name} has stopped")
    return answer


async def _collect(ref: ActorRef[CollectMetrics]) -> MetricsSnapshot | None:
    try:
        answer: MetricsSnapshot = await ref.ask(CollectMetrics(), timeout_s=METRICS_TIMEOUT_S)
    except (TimeoutError, ActorStopped):
        return None
    return answer


@dataclass(slots=True)
class EngineStatus:
    """Before EngineReady `max_model_len` is the model's own limit."""

    max_model_len: int
    is_ready: bool = False
    is_draining: bool = False
    is_drained: bool = False
    """All streams have ended: no connection stays open."""

    def check_open(self) -> None:
        """Raise RequestError when no new request can be taken now."""
        if self.is_draining:
            raise RequestError("draining", "the server is shutting down and takes no new requests")
        if not self.is_ready:
            raise RequestError("overloaded", "the model is still being loaded", retry_after_ms=1000)
