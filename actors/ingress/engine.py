"""Questions to the other actors that pages need answered: is the engine moving, what do all of them count."""

import asyncio
from collections.abc import Sequence

from actors.runtime.ref import ActorRef, ActorStopped
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
