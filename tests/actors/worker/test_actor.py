import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from msgspec import structs

from actors.runtime.actor import Actor
from actors.worker.actor import MAX_PLANS, WorkerActor
from actors.worker.config import WorkerConfig
from protocol.errors import PartFailed
from protocol.messages import (
    CollectMetrics,
    ExecuteStep,
    GetHealth,
    MemoryExported,
    OpenPeers,
    SchedulerInbox,
    StepCompleted,
    WorkerFailed,
    WorkerInbox,
    WorkerReady,
)
from tests.actors.runtime.local import LocalRef, LocalSystem
from tests.actors.worker.devices import POOL, SHARD, HandDevice, plan_of

CONFIG = WorkerConfig(index=3, group="g", device="hand", model_name="m", device_config=SHARD)


def of_rank(rank: int, world_size: int = 1) -> WorkerConfig:
    return structs.replace(CONFIG, device_config=replace(SHARD, rank=rank, world_size=world_size))


class Ear(Actor[SchedulerInbox]):
    """Keeps what a worker says."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[SchedulerInbox] = asyncio.Queue()

    async def receive(self, message: SchedulerInbox) -> None:
        await self.heard.put(message)

    async def next(self) -> SchedulerInbox:
        async with asyncio.timeout(10):
            return await self.heard.get()


class Stage:
    """A worker with a device in the test's hand and an ear in the scheduler's place."""

    def __init__(self, system: LocalSystem, device: HandDevice, config: WorkerConfig) -> None:
        self.system = system
        self.device = device
        self.ear = Ear()
        self.progress: list[float] = []
        ear = system.start(self.ear, name="ear")
        worker = WorkerActor(config, lambda: device, ear, on_progress=self.progress.append)
        self.worker: LocalRef[WorkerInbox] = system.start(worker, name="worker", capacity=8)

    async def completed(self) -> StepCompleted:
        message = await self.ear.next()
        assert isinstance(message, StepCompleted)
        return message


@asynccontextmanager
async def stage(device: HandDevice, *, loaded: bool = True, config: WorkerConfig = CONFIG) -> AsyncIterator[Stage]:
    async with LocalSystem() as system:
        scene = Stage(system, device, config)
        if loaded:
            assert isinstance(await scene.ear.next(), WorkerReady)
        try:
            yield scene
        finally:
            device.load_gate.set()
            device.gate.set()


async def test_a_loaded_worker_says_what_its_pool_holds() -> None:
    async with stage(HandDevice(), loaded=False) as scene:
        ready = await scene.ear.next()
        assert isinstance(ready, WorkerReady)
        assert (ready.worker, ready.epoch, ready.num_pages, ready.page_size) == (3, 1, POOL.num_pages, POOL.page_size)
        assert scene.progress == [0.5, 1.0]


async def test_a_rank_is_ready_once_it_has_met_its_peers() -> None:
    device = HandDevice()
    async with stage(device, loaded=False, config=of_rank(1, world_size=2)) as scene:
        assert await scene.ear.next() == MemoryExported(3, 1, b"mine")
        health = await scene.worker.ask(GetHealth(), timeout_s=1)
        assert not health.ok
        await scene.worker.tell(OpenPeers(0, [b"of", b"the dead"]))
        await scene.worker.tell(OpenPeers(1, [b"theirs", b"mine"]))
        assert isinstance(await scene.ear.next(), WorkerReady)
        assert device.peers == [b"theirs", b"mine"]
    assert len(device.threads) == 1


async def test_a_rank_that_is_stopped_before_its_peers_come_closes_its_device() -> None:
    device = HandDevice()
    async with stage(device, loaded=False, config=of_rank(0, world_size=2)) as scene:
        assert isinstance(await scene.ear.next(), MemoryExported)
        await scene.system.stop("worker")
        assert await asyncio.to_thread(device.closed.wait, 10)
    assert device.peers == []


async def test_one_rank_speaks_for_the_step_times_of_its_group() -> None:
    names = []
    for rank in range(2):
        async with stage(HandDevice(), config=of_rank(rank)) as scene:
            snapshot = await scene.worker.ask(CollectMetrics(), timeout_s=1)
            names.append({family.name for family in snapshot.families})
    assert names[0] - names[1] == {"tokenstage_step_duration_seconds", "tokenstage_step_gap_seconds"}
    assert "tokenstage_worker_epoch" in names[1]


async def test_plans_are_executed_in_order_and_each_is_answered() -> None:
    device = HandDevice()
    async with stage(device) as scene:
        for step in range(10):
            await scene.worker.tell(ExecuteStep(plan_of(step)))
            completed = await scene.completed()
            assert (completed.worker, completed.result.step, completed.result.rows[0].token) == (3, step, 7)
            assert completed.result.duration_s > 0
    assert device.executed == list(range(10))


async def test_the_device_is_made_loaded_run_and_closed_on_one_thread_of_its_own() -> None:
    device = HandDevice()
    async with stage(device) as scene:
        await scene.worker.tell(ExecuteStep(plan_of(0)))
        await scene.completed()
    assert device.closed.is_set()
    assert len(device.threads) == 1
    assert threading.get_ident() not in device.threads


async def test_health_is_answered_while_a_step_runs() -> None:
    device = HandDevice()
    async with stage(device) as scene:
        device.gate.clear()
        await scene.worker.tell(ExecuteStep(plan_of(41)))
        await scene.worker.tell(ExecuteStep(plan_of(42)))
        async with asyncio.timeout(10):
            while "step 41" not in (health := await scene.worker.ask(GetHealth(), timeout_s=1)).detail:
                pass
        assert health.ok
        assert health.num_running == 2
        device.gate.set()
        await scene.completed()
        await scene.completed()
        health = await scene.worker.ask(GetHealth(), timeout_s=1)
        assert (health.ok, health.detail) == (True, "idle")


async def test_health_is_answered_while_the_device_loads_and_says_so() -> None:
    device = HandDevice()
    device.load_gate.clear()
    async with stage(device, loaded=False) as scene:
        async with asyncio.timeout(10):
            while "50%" not in (health := await scene.worker.ask(GetHealth(), timeout_s=1)).detail:
                pass
        assert not health.ok


async def test_the_next_plan_waits_at_the_device_so_there_is_no_gap() -> None:
    device = HandDevice()
    async with stage(device) as scene:
        device.gate.clear()
        for step in range(3):
            await scene.worker.tell(ExecuteStep(plan_of(step)))
        await scene.worker.ask(GetHealth(), timeout_s=1)
        device.gate.set()
        gaps = [(await scene.completed()).result.gap_s for _ in range(3)]
        assert max(gaps) < 0.005
        await asyncio.sleep(0.02)  # the device's time, not the loop's
        await scene.worker.tell(ExecuteStep(plan_of(3)))
        assert (await scene.completed()).result.gap_s >= 0.02


async def test_a_plan_of_another_epoch_is_dropped() -> None:
    device = HandDevice()
    async with stage(device) as scene:
        await scene.worker.tell(ExecuteStep(plan_of(1, epoch=0)))
        await scene.worker.tell(ExecuteStep(plan_of(2)))
        assert (await scene.completed()).result.step == 2
    assert device.executed == [2]


async def test_a_device_error_is_told_in_one_line_and_fails_the_worker() -> None:
    device = HandDevice()
    device.error = RuntimeError("out of memory\nwith a long story")
    async with stage(device) as scene:
        await scene.worker.tell(ExecuteStep(plan_of(0)))
        failed = await scene.ear.next()
        assert failed == WorkerFailed(3, 1, "RuntimeError: out of memory")
        name, error = await scene.system.wait_failed()
        assert (name, type(error)) == ("worker", PartFailed)
    assert device.closed.is_set()


async def test_more_plans_than_a_worker_holds_are_a_mistake_that_fails_it() -> None:
    device = HandDevice()
    async with stage(device) as scene:
        device.gate.clear()
        for step in range(MAX_PLANS + 1):
            await scene.worker.tell(ExecuteStep(plan_of(step)))
        health = asyncio.create_task(scene.system.wait_failed())
        await asyncio.sleep(0)
        device.gate.set()
        _, error = await health
        assert isinstance(error, PartFailed)


async def test_steps_are_counted() -> None:
    async with stage(HandDevice()) as scene:
        for step in range(5):
            await scene.worker.tell(ExecuteStep(plan_of(step)))
            await scene.completed()
        snapshot = await scene.worker.ask(CollectMetrics(), timeout_s=1)
    samples = {sample.name: sample for family in snapshot.families for sample in family.samples}
    assert samples["tokenstage_step_duration_seconds_count"].value == 5
    assert samples["tokenstage_step_gap_seconds_count"].labels == {"model_name": "m", "group": "g"}
    assert samples["tokenstage_worker_epoch"].value == 1
