"""The scheduler actor: messages in, one plan for every group that can take one, answers out. The only part with time.

Order of one batch of messages: apply them, send plans (a device must not wait), then tell the ingress. Queues: a worker
gets at most two plans, so its mailbox is never full; a full ingress makes the scheduler wait, since the ingress always
drains its mailbox. A worker that fails or is gone, or a group whose ranks disagree or do not all answer, ends every
live request as `internal` and then this actor. Read `ranks` for what makes several workers one group.
"""

import asyncio
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any, assert_never

from actors.runtime.actor import Actor
from actors.runtime.channel import tell_all
from actors.runtime.clock import Clock
from actors.runtime.metrics import snapshot_of
from actors.runtime.ref import ActorRef
from actors.scheduler.config import SchedulerConfig
from actors.scheduler.metrics import registry_of
from actors.scheduler.ranks import Ranks, RanksDisagree
from actors.scheduler.scheduler import Scheduler
from protocol.errors import PartFailed
from protocol.messages import (
    CancelRequest,
    CollectMetrics,
    ExecuteStep,
    GetHealth,
    GrantCredit,
    Health,
    IngressInbox,
    MemoryExported,
    OpenPeers,
    SchedulerInbox,
    StepCompleted,
    StopRequest,
    Submit,
    WorkerFailed,
    WorkerInbox,
    WorkerReady,
)
from protocol.model_info import ModelInfo
from protocol.step import StepResult

TICK_S = 0.25
"""How late a deadline (credit, a rank that does not answer) may be noticed."""


class SchedulerActor(Actor[SchedulerInbox]):
    """Plans for groups of workers. A worker's index counts over all groups, in the order of their ranks."""

    control = (GetHealth, CollectMetrics, WorkerFailed)
    """Only what does not depend on order: a cancel must not overtake its submit."""

    def __init__(
        self,
        config: SchedulerConfig,
        model: ModelInfo,
        ingress: ActorRef[IngressInbox],
        groups: Sequence[Sequence[ActorRef[WorkerInbox]]],
        clock: Clock,
    ) -> None:
        """`groups`: the workers of each, in rank order."""
        self._config = config
        self._ingress = ingress
        self._groups = groups
        self._places = [(index, rank) for index, ranks in enumerate(groups) for rank in range(len(ranks))]
        """Group and rank of each worker."""
        self._ranks = [Ranks(index, len(ranks)) for index, ranks in enumerate(groups)]
        self._clock = clock
        self._scheduler = Scheduler(config, model, len(groups), partial(secrets.randbelow, 2**63))
        self.registry = registry_of(self._scheduler)
        self._acting = asyncio.Lock()  # keeps plans and answers in order between `after_batch` and the ticker
        self._failure: PartFailed | None = None
        self._alarms: set[int] = set()
        """Groups that will be planned for when their running step is nearly over."""

    async def started(self) -> None:
        """Begin to watch deadlines."""
        self.spawn(self._tick(), name="scheduler-deadlines")

    async def receive(self, message: SchedulerInbox) -> Any:  # noqa: ANN401, C901 - one arm a message, answers differ
        """Change state; what follows from it happens in `after_batch`."""
        scheduler = self._scheduler
        now = self._clock.now()
        match message:
            case Submit():
                scheduler.submit(message, now)
            case CancelRequest(request):
                scheduler.cancel(request, now)
            case StopRequest(request):
                scheduler.stop(request, now)
            case GrantCredit(request, tokens):
                scheduler.grant(request, tokens)
            case StepCompleted(worker, result):
                self._complete(worker, result, now)
            case MemoryExported(worker):
                await self._export(worker, message)
            case WorkerReady():
                self._load(message)
            case WorkerFailed(worker, _, reason):
                self._fail(f"{self._named(worker)}: {reason}")
            case GetHealth():
                return self._health(now)
            case CollectMetrics():
                return snapshot_of(self.registry)
            case _:
                assert_never(message)
        return None

    async def after_batch(self) -> None:
        """Plan for every group that can take a step, then tell the ingress what happened."""
        async with self._acting:
            await self._send_plans()
            if self._failure is not None:
                self._scheduler.fail_all("internal", "the engine has lost a worker")  # also who came after the failure
            await self._send_answers()
        if self._failure is not None:
            raise self._failure

    # ---- what workers say -------------------------------------------------------------------------------------------

    async def _export(self, worker: int, message: MemoryExported) -> None:
        index, rank = self._places[worker]
        open_peers = self._ranks[index].exported(rank, message)
        if open_peers is not None:
            await self._tell_ranks(index, open_peers)

    def _load(self, message: WorkerReady) -> None:
        index, rank = self._places[message.worker]
        pool = self._ranks[index].loaded(rank, message)
        if pool is not None:
            self._scheduler.add_group(index, pool.epoch, pool.num_pages, pool.page_size)

    def _complete(self, worker: int, result: StepResult, now: float) -> None:
        index, rank = self._places[worker]
        group = self._scheduler.groups.get(index)
        if group is None:
            return  # of an earlier life of the worker
        try:
            agreed = self._ranks[index].answered(rank, result, group)
        except RanksDisagree as error:
            self._fail(str(error))
            return
        if agreed is not None:
            self._scheduler.complete(index, agreed, now)

    # ---- what follows -----------------------------------------------------------------------------------------------

    async def _send_plans(self) -> None:
        for index in list(self._scheduler.groups):  # messages are received while a plan is told
            while self._failure is None and self._is_due(index):
                plan = self._scheduler.plan(index, self._clock.now())
                if plan is None:
                    break
                await self._tell_ranks(index, ExecuteStep(plan))

    async def _tell_ranks(self, index: int, message: ExecuteStep | OpenPeers) -> None:
        for name in await tell_all(self._groups[index], message):
            self._fail(f"{name} is gone")

    def _is_due(self, index: int) -> bool:
        """Whether to plan for a group now; if it is too early, an alarm is set."""
        wait_s = self._scheduler.plan_due(index) - self._clock.now()
        if wait_s <= 0:
            return True
        group = self._scheduler.groups[index]
        if len(group.in_flight) < group.max_in_flight and index not in self._alarms:
            self._alarms.add(index)
            self.spawn(self._alarm(index, wait_s), name=f"alarm-{index}")
        return False

    async def _alarm(self, index: int, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._alarms.discard(index)
        await self.after_batch()

    async def _send_answers(self) -> None:
        while self._scheduler.outbox:
            answers, self._scheduler.outbox = self._scheduler.outbox, []
            for answer in answers:
                await self._ingress.tell(answer)

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            self._scheduler.expire(self._clock.now())
            self._look_for_overdue_ranks()
            await self.after_batch()

    def _look_for_overdue_ranks(self) -> None:
        """A rank that is stopped while the others do not wait for it in a step would be missed by nobody else.

        Counted in ticks: in the time that the whole node was stopped no rank could answer.
        """
        for index, group in self._scheduler.groups.items():
            if words := self._ranks[index].overdue(group, TICK_S, self._config.peer_timeout_s):
                self._fail(words)

    def _fail(self, reason: str) -> None:
        """No more plans; `after_batch` ends every request and then the actor."""
        if self._failure is None:
            self._failure = PartFailed(reason)

    def _named(self, worker: int) -> str:
        index, rank = self._places[worker]
        return (
            f"worker {worker}" if len(self._groups[index]) == 1 else f"worker {worker} (rank {rank} of group {index})"
        )

    def _health(self, now: float) -> Health:
        scheduler = self._scheduler
        stuck_s = scheduler.stuck_s(now)
        detail = ""
        if not scheduler.max_model_len:
            detail = "loading"
        elif self._failure is not None:
            detail = str(self._failure)
        elif stuck_s > self._config.step_deadline_s:
            detail = f"no step has ended for {stuck_s:.1f} s"
        return Health(not detail, detail, scheduler.num_running, scheduler.num_waiting)
