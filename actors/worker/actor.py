"""The worker actor: StepPlan in, StepResult out; the device runs beside it, so health is answered during a step.

Owns the device thread and the count of plans handed to it. Never decides anything, never retries: a device error is
told to the scheduler (WorkerFailed) and ends this actor. Read `device_thread` next.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, assert_never

import structlog
from prometheus_client import CollectorRegistry, Gauge, Histogram

from actors.runtime.actor import Actor
from actors.runtime.metrics import snapshot_of
from actors.runtime.ref import ActorRef
from actors.worker.config import WorkerConfig
from actors.worker.device_thread import DeviceThread
from cuda.devices.device import Device, PoolInfo
from protocol.errors import PartFailed
from protocol.messages import (
    CollectMetrics,
    ExecuteStep,
    GetHealth,
    Health,
    MemoryExported,
    OpenPeers,
    SchedulerInbox,
    StepCompleted,
    WorkerFailed,
    WorkerInbox,
    WorkerReady,
)
from protocol.step import MAX_IN_FLIGHT, StepPlan, StepResult

MAX_PLANS = 2 * MAX_IN_FLIGHT
"""Those of one life of the scheduler, and of the next."""
CLOSE_TIMEOUT_S = 5.0
DURATION_BUCKETS = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
GAP_BUCKETS = (0.00001, 0.00003, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 1.0)

log = structlog.get_logger()


class WorkerActor(Actor[WorkerInbox]):
    """One device behind a mailbox. At most MAX_PLANS plans are held; one more is a scheduler's mistake and fails it."""

    control = (GetHealth, CollectMetrics, OpenPeers)
    """Everything but plans, whose order matters."""

    def __init__(
        self,
        config: WorkerConfig,
        device: Callable[[], Device],
        scheduler: ActorRef[SchedulerInbox],
        *,
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._on_progress = on_progress
        self.registry = CollectorRegistry()
        self._times = _StepTimes(self.registry, config)
        self._thread = DeviceThread(
            device, self, name=f"device-{config.device}", has_peers=config.device_config.world_size > 1
        )
        self._outgoing: asyncio.Queue[SchedulerInbox | Exception] = asyncio.Queue(MAX_PLANS + 2)  # cannot be full: a
        # scheduler that has not heard the answers to MAX_PLANS plans sends no more
        self._loaded: float = 0.0
        """Fraction; at 1 plans are executed."""
        self._num_plans = 0
        """Handed to the device and not completed."""

    async def started(self) -> None:
        """Begin to load; WorkerReady tells the scheduler when that is done and the group's ranks have met."""
        self.spawn(self._tell_scheduler(), name="tell-scheduler")
        self._thread.start(asyncio.get_running_loop())

    async def receive(self, message: WorkerInbox) -> Any:  # noqa: ANN401 - answers differ by message
        """Handle one message."""
        match message:
            case ExecuteStep(plan):
                self._execute(plan)
            case OpenPeers(epoch, handles):
                self._open_peers(epoch, handles)
            case GetHealth():
                return self._health()
            case CollectMetrics():
                return snapshot_of(self.registry)
            case _:
                assert_never(message)
        return None

    async def stopped(self) -> None:
        """Close the device after the step that runs; a load is not waited for."""
        await self._thread.close(CLOSE_TIMEOUT_S if self._loaded == 1 else 0.0)

    def _open_peers(self, epoch: int, handles: list[bytes]) -> None:
        if epoch == self._config.epoch:
            self._thread.open_peers(handles)
        else:
            log.info("handles of another epoch dropped", epoch=epoch)

    def _execute(self, plan: StepPlan) -> None:
        if plan.epoch != self._config.epoch:
            log.info("stale plan dropped", epoch=plan.epoch, step=plan.step)
            return
        if self._num_plans == MAX_PLANS:
            raise PartFailed(f"step {plan.step} came while {MAX_PLANS} plans were held")
        self._num_plans += 1
        self._thread.execute(plan)

    def _health(self) -> Health:
        if self._loaded < 1:
            return Health(ok=False, detail=f"loading, {self._loaded:.0%}")
        running = self._thread.running
        if running is None:
            return Health(ok=True, detail="idle")
        step, since = running
        running_s = time.perf_counter() - since
        return Health(
            ok=running_s <= self._config.step_deadline_s,
            detail=f"step {step} for {running_s:.3f} s",
            num_running=self._num_plans,
        )

    def _say(self, message: SchedulerInbox) -> None:
        """Send at once if nothing waits to be sent: another task's turn would cost each step some 20 microseconds."""
        if not self._outgoing.empty() or not self._scheduler.try_tell(message):
            self._outgoing.put_nowait(message)

    async def _tell_scheduler(self) -> None:
        while not isinstance(message := await self._outgoing.get(), Exception):
            await self._scheduler.tell(message)
        line = f"{type(message).__name__}: {message}".splitlines()[0]
        await self._scheduler.tell(WorkerFailed(self._config.index, self._config.epoch, line))
        raise PartFailed(f"the device failed: {line}") from message

    # ---- called by the device thread, on the loop -------------------------------------------------------------------

    def device_progressed(self, fraction: float) -> None:
        """Loading has come this far."""
        self._loaded = min(fraction, 0.999)
        self._on_progress(fraction)

    def device_exported(self, handle: bytes) -> None:
        """The scheduler collects the group's handles and answers with all of them."""
        self._say(MemoryExported(self._config.index, self._config.epoch, handle))

    def device_loaded(self, pool: PoolInfo, load_s: float) -> None:
        """Plans may be executed."""
        self._loaded = 1.0
        self._on_progress(1.0)
        log.info("loaded", device=self._config.device, num_pages=pool.num_pages, load_s=round(load_s, 3))
        self._say(
            WorkerReady(
                worker=self._config.index, epoch=self._config.epoch, num_pages=pool.num_pages, page_size=pool.page_size
            )
        )

    def step_completed(self, result: StepResult) -> None:
        """The device has executed a plan."""
        self._num_plans -= 1
        self._say(StepCompleted(self._config.index, result))
        self._times.observe(result)

    def device_failed(self, error: Exception) -> None:
        """The device is lost."""
        traceback = None if isinstance(error, PartFailed) else error  # its message says it all
        log.error("device failed", device=self._config.device, reason=str(error), exc_info=traceback)
        self._outgoing.put_nowait(error)


class _StepTimes:
    """What a worker counts. Ranks run in lockstep: one speaks for its group."""

    def __init__(self, registry: CollectorRegistry, config: WorkerConfig) -> None:
        shown = registry if config.device_config.rank == 0 else None
        labels = {"model_name": config.model_name, "group": config.group}
        self._duration = Histogram(
            "tokenstage_step_duration_seconds",
            "Time the device spent on one step.",
            list(labels),
            buckets=DURATION_BUCKETS,
            registry=shown,
        ).labels(**labels)
        self._gap = Histogram(
            "tokenstage_step_gap_seconds",
            "Device idle between two steps while rows were running.",
            list(labels),
            buckets=GAP_BUCKETS,
            registry=shown,
        ).labels(**labels)
        Gauge(
            "tokenstage_worker_epoch", "Which life of this worker this is.", ["model_name", "worker"], registry=registry
        ).labels(config.model_name, str(config.index)).set(config.epoch)

    def observe(self, result: StepResult) -> None:
        self._duration.observe(result.duration_s)
        self._gap.observe(result.gap_s)
