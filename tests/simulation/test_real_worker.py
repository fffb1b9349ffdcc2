"""The scheduler with the real worker actor, on the real clock: the two agree on what a plan and its answer are."""

import asyncio
from typing import Any

import pytest

from actors.runtime.actor import Actor
from actors.runtime.clock import RealClock
from actors.scheduler.actor import SchedulerActor
from actors.scheduler.config import SchedulerConfig
from actors.worker.actor import WorkerActor
from actors.worker.config import WorkerConfig
from cuda.devices.counting import CountingDevice, expected_output
from cuda.devices.device import DeviceConfig
from protocol.messages import EngineReady, RequestFinished, SchedulerInbox, Submit, TokensGenerated
from protocol.model_info import ModelInfo
from protocol.sampling import SamplingParams
from tests.actors.runtime.local import LocalRef, LocalSystem

VOCAB_SIZE = 500
PROMPTS = {number: [number + index for index in range(3 * number)] for number in range(1, 20)}
MAX_TOKENS = 20
MODEL = ModelInfo(name="m", folder="", vocab_size=VOCAB_SIZE, max_model_len=320, eos_token_ids=())


class Collector(Actor[Any]):
    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {number: [] for number in PROMPTS}
        self.ready, self.done = asyncio.Event(), asyncio.Event()
        self._num_ended = 0

    async def receive(self, message: Any) -> None:
        match message:
            case EngineReady():
                self.ready.set()
            case TokensGenerated(deltas):
                for delta in deltas:
                    self.tokens[delta.request] += delta.tokens
            case RequestFinished():
                self._num_ended += 1
                if self._num_ended == len(PROMPTS):
                    self.done.set()


class LateRef:
    """A ref that is known before its actor: worker and scheduler each need the other's."""

    name = "scheduler"
    target: LocalRef[SchedulerInbox]

    async def tell(self, message: SchedulerInbox) -> None:
        await self.target.tell(message)

    def try_tell(self, message: SchedulerInbox) -> bool:
        return self.target.try_tell(message)

    async def ask(self, message: SchedulerInbox, *, timeout_s: float) -> Any:
        return await self.target.ask(message, timeout_s=timeout_s)


@pytest.mark.parametrize(("overlap", "num_ranks"), [(True, 1), (False, 1), (True, 2)])
async def test_every_request_gets_its_tokens(*, overlap: bool, num_ranks: int) -> None:
    config = SchedulerConfig(max_running=8, step_tokens=32, overlap=overlap, check_invariants=True)
    collector, scheduler_ref = Collector(), LateRef()
    async with LocalSystem() as system, asyncio.timeout(60):
        ingress = system.start(collector, name="ingress")
        ranks = []
        for rank in range(num_ranks):
            worker = make_worker(rank, num_ranks, scheduler_ref)
            ranks.append(system.start(worker, name=f"worker:{rank}"))
        actor = SchedulerActor(config, MODEL, ingress, [ranks], RealClock())
        scheduler_ref.target = system.start(actor, name="scheduler")
        await collector.ready.wait()
        for number, prompt in PROMPTS.items():
            sampling = SamplingParams(max_tokens=MAX_TOKENS)
            await scheduler_ref.tell(Submit(request=number, prompt_tokens=prompt, sampling=sampling))
        await collector.done.wait()
    assert collector.tokens == {
        number: expected_output(prompt, MAX_TOKENS, VOCAB_SIZE) for number, prompt in PROMPTS.items()
    }


def make_worker(rank: int, num_ranks: int, scheduler: LateRef) -> WorkerActor:
    config = WorkerConfig(
        index=rank,
        group="0",
        device="counting",
        model_name="m",
        device_config=DeviceConfig(
            folder="",
            num_pages=40,
            page_size=8,
            max_running=8,
            max_model_len=320,
            max_step_tokens=512,
            num_threads=1,
            rank=rank,
            world_size=num_ranks,
            peer_timeout_s=10.0,
        ),
    )
    return WorkerActor(config, lambda: CountingDevice(config.device_config, vocab_size=VOCAB_SIZE), scheduler)
