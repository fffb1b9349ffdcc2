"""Planning late in a long step: a device takes 0.1 virtual seconds a step, a request arrives in the middle of one."""

import asyncio
from typing import Any

from actors.runtime.actor import Actor
from actors.scheduler.actor import SchedulerActor
from actors.scheduler.config import SchedulerConfig
from protocol.messages import ExecuteStep, SchedulerInbox, StepCompleted, Submit, WorkerReady
from protocol.model_info import ModelInfo
from protocol.sampling import SamplingParams
from protocol.step import SampledRow, StepPlan, StepResult
from tests.actors.runtime.local import LocalRef, LocalSystem
from tests.simulation.loop import VirtualClock, run_virtual

MODEL = ModelInfo(name="m", folder="", vocab_size=100, max_model_len=64, eos_token_ids=())


def test_who_arrives_during_a_long_step_is_in_the_next_one() -> None:
    async def main() -> tuple[float, list[int]]:
        plans: list[tuple[float, list[int]]] = []
        async with LocalSystem() as system:
            worker = SlowWorker(plans)
            worker_ref = system.start(worker, name="worker:0")
            clients = Sink()
            ingress = system.start(clients, name="ingress")
            actor = SchedulerActor(SchedulerConfig(), MODEL, ingress, [[worker_ref]], VirtualClock())
            worker.scheduler = scheduler = system.start(actor, name="scheduler")
            await asyncio.sleep(1.0)
            await scheduler.tell(Submit(request=1, prompt_tokens=[5], sampling=SamplingParams(max_tokens=40)))
            await asyncio.sleep(SlowWorker.step_s * 20.5)  # steps are predictable by now
            plans.clear()
            submitted_at = asyncio.get_running_loop().time()
            await scheduler.tell(Submit(request=2, prompt_tokens=[5], sampling=SamplingParams(max_tokens=1)))
            await asyncio.sleep(SlowWorker.step_s)
        planned_at, counts = plans[0]
        return planned_at - submitted_at, counts

    waited_s, counts = run_virtual(main(), 0)
    assert counts == [1, 1]
    assert waited_s < 0.4 * SlowWorker.step_s  # the running step has half of its time left


class Sink(Actor[Any]):
    async def receive(self, message: Any) -> None:
        pass


class SlowWorker(Actor[Any]):
    """Every step takes the same long time; answers token 9 for every row."""

    step_s = 0.1

    def __init__(self, plans: list[tuple[float, list[int]]]) -> None:
        self.scheduler: LocalRef[SchedulerInbox] | None = None
        self._plans = plans
        self._waiting: asyncio.Queue[StepPlan] = asyncio.Queue()
        self._slots: dict[int, tuple[int, int]] = {}

    async def started(self) -> None:
        self.spawn(self._run(), name="run")

    async def receive(self, message: Any) -> None:
        assert isinstance(message, ExecuteStep)
        self._plans.append((asyncio.get_running_loop().time(), [row.count for row in message.plan.rows]))
        self._waiting.put_nowait(message.plan)

    async def _run(self) -> None:
        await asyncio.sleep(0.5)
        assert self.scheduler is not None
        ready = WorkerReady(worker=0, epoch=1, num_pages=64, page_size=4)
        await self.scheduler.tell(ready)
        while True:
            plan = await self._waiting.get()
            self._slots |= {start.slot: (start.request, start.incarnation) for start in plan.starts}
            await asyncio.sleep(self.step_s)
            rows = [SampledRow(row.slot, *self._slots[row.slot], 9) for row in plan.rows if row.samples]
            await self.scheduler.tell(StepCompleted(0, StepResult(plan.epoch, plan.step, rows, self.step_s)))
