"""A device that takes the next plan while it computes one: it is given it at once, and answers come as steps end."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from actors.worker.device_thread import DeviceThread
from cuda.devices.device import PipelinedDevice, PoolInfo
from protocol.step import StepPlan, StepResult, StepRow
from tests.actors.worker.devices import POOL, plan_of


class QueueDevice:
    """Steps end when the test says so."""

    def __init__(self) -> None:
        self.submitted: list[int] = []
        self.closed = threading.Event()
        self.error: Exception | None = None
        self.idle_s = 0.0
        self._queued: deque[StepPlan] = deque()
        self._ended = threading.Semaphore(0)

    def end_step(self) -> None:
        self._ended.release()

    def load(self, progress: Callable[[float], None]) -> PoolInfo:
        progress(0.5)
        return POOL

    def export(self) -> bytes:
        return b""

    def open_peers(self, handles: Sequence[bytes]) -> None: ...

    def execute(self, plan: StepPlan) -> StepResult:
        raise AssertionError(f"step {plan.step} is executed, not queued")

    def submit(self, plan: StepPlan) -> float:
        self._queued.append(plan)
        self.submitted.append(plan.step)
        return self.idle_s

    def poll(self) -> StepResult | None:
        return self._result() if self._ended.acquire(blocking=False) else None

    def wait(self) -> StepResult:
        assert self._ended.acquire(timeout=10)
        return self._result()

    def close(self) -> None:
        self.closed.set()

    def _result(self) -> StepResult:
        if self.error is not None:
            raise self.error
        return StepResult(1, self._queued.popleft().step, [], duration_s=0.5)


class Ear:
    """What the thread says."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[StepResult | Exception | PoolInfo] = asyncio.Queue()

    def device_progressed(self, fraction: float) -> None: ...

    def device_exported(self, handle: bytes) -> None: ...

    def device_loaded(self, pool: PoolInfo, load_s: float) -> None:
        assert load_s >= 0
        self.heard.put_nowait(pool)

    def step_completed(self, result: StepResult) -> None:
        self.heard.put_nowait(result)

    def device_failed(self, error: Exception) -> None:
        self.heard.put_nowait(error)

    async def next(self) -> StepResult | Exception | PoolInfo:
        async with asyncio.timeout(10):
            return await self.heard.get()

    async def result(self) -> StepResult:
        heard = await self.next()
        assert isinstance(heard, StepResult)
        return heard


@asynccontextmanager
async def thread(device: QueueDevice) -> AsyncIterator[tuple[DeviceThread, Ear]]:
    ear = Ear()
    running = DeviceThread(lambda: device, ear, name="device")
    running.start(asyncio.get_running_loop())
    assert await ear.next() == POOL
    yield running, ear
    await running.close(10)
    assert device.closed.is_set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - another thread makes it true
            await asyncio.sleep(0)


def test_the_device_of_this_test_is_one_that_takes_plans_ahead() -> None:
    assert isinstance(QueueDevice(), PipelinedDevice)


async def test_two_plans_are_on_the_device_at_once_and_more_wait_for_room() -> None:
    device = QueueDevice()
    async with thread(device) as (running, ear):
        for step in range(4):
            running.execute(plan_of(step))
        await until(lambda: device.submitted == [0, 1])
        device.end_step()
        assert (await ear.result()).step == 0
        await until(lambda: device.submitted == [0, 1, 2])
        for _ in range(3):
            device.end_step()
        assert [(await ear.result()).step for _ in range(3)] == [1, 2, 3]


async def test_a_step_is_answered_when_it_ends_though_no_other_plan_comes() -> None:
    device = QueueDevice()
    async with thread(device) as (running, ear):
        running.execute(plan_of(7))
        await until(lambda: running.running is not None)
        assert running.running is not None
        assert running.running[0] == 7
        device.end_step()
        result = await ear.result()
        assert (result.step, result.duration_s) == (7, 0.5)
        await until(lambda: running.running is None)


async def test_idle_time_counts_only_where_rows_were_kept_waiting() -> None:
    device = QueueDevice()
    device.idle_s = 0.25
    nobody_waited = StepPlan(1, 1, [], [])
    async with thread(device) as (running, ear):
        for plan in (plan_of(0), nobody_waited):
            running.execute(plan)
            device.end_step()
        assert [(await ear.result()).gap_s for _ in range(2)] == [0.25, 0.0]


async def test_what_was_handed_in_is_completed_before_it_closes() -> None:
    device = QueueDevice()
    async with thread(device) as (running, ear):
        for step in range(3):
            running.execute(plan_of(step))
            device.end_step()
    assert [(await ear.result()).step for _ in range(3)] == [0, 1, 2]


async def test_a_failure_is_told_once_and_closes_the_device() -> None:
    device = QueueDevice()
    device.error = RuntimeError("lost")
    async with thread(device) as (running, ear):
        running.execute(StepPlan(1, 0, [], [StepRow(0, 0, 1, samples=True)]))
        device.end_step()
        assert await ear.next() is device.error
    assert ear.heard.empty()


async def test_what_failed_first_is_told_although_a_lost_device_cannot_be_closed_either() -> None:
    class LostDevice(QueueDevice):
        def close(self) -> None:
            super().close()
            raise RuntimeError("cudaErrorLaunchFailure: unspecified launch failure")

    device = LostDevice()
    device.error = RuntimeError("rank 0 waited 10 s for rank 1")
    async with thread(device) as (running, ear):
        running.execute(StepPlan(1, 0, [], [StepRow(0, 0, 1, samples=True)]))
        device.end_step()
        assert await ear.next() is device.error
        assert device.error.__notes__ == [
            "closing the device failed too: cudaErrorLaunchFailure: unspecified launch failure"
        ]
    assert ear.heard.empty()
