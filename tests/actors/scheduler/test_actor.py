"""The shell: order of what it tells, control messages, failure. Schedules themselves are tested on the pure part."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from actors.runtime.actor import Actor
from actors.runtime.clock import RealClock
from actors.runtime.local import LocalRef, LocalSystem
from actors.scheduler.actor import SchedulerActor
from protocol.errors import PartFailed
from protocol.messages import (
    CancelRequest,
    CollectMetrics,
    Drain,
    Drained,
    EngineReady,
    ExecuteStep,
    GetHealth,
    Health,
    IngressInbox,
    RequestAccepted,
    RequestFailed,
    RequestFinished,
    SchedulerInbox,
    StepCompleted,
    Submit,
    TokensGenerated,
    WorkerFailed,
    WorkerInbox,
    WorkerReady,
)
from protocol.model_info import ModelInfo
from protocol.sampling import SamplingParams
from protocol.step import SampledRow, StepPlan, StepResult
from tests.actors.scheduler.rig import make_config

MODEL = ModelInfo(name="m", folder="", vocab_size=100, max_model_len=64, eos_token_ids=(3,))
READY = WorkerReady(
    worker=0, epoch=1, num_pages=16, page_size=4, weights_bytes=0, kv_bytes=0, device="fake", load_s=0.0
)


class Recorder(Actor[Any]):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()

    async def receive(self, message: Any) -> None:
        await self.inbox.put(message)


class Stage:
    def __init__(self, system: LocalSystem) -> None:
        self.system = system
        self.ingress, self.worker = Recorder(), Recorder()
        ingress: LocalRef[IngressInbox] = system.start(self.ingress, name="ingress")
        worker: LocalRef[WorkerInbox] = system.start(self.worker, name="worker:0")
        actor = SchedulerActor(make_config(), MODEL, ingress, [worker], RealClock())
        self.ref: LocalRef[SchedulerInbox] = system.start(actor, name="scheduler")

    async def told(self) -> Any:
        return await self.ingress.inbox.get()

    async def plan(self) -> StepPlan:
        message = await self.worker.inbox.get()
        assert isinstance(message, ExecuteStep)
        return message.plan

    async def answer(self, plan: StepPlan, request: int, token: int) -> None:
        rows = [SampledRow(plan.rows[0].slot, request, 0, token)]
        await self.ref.tell(StepCompleted(0, StepResult(plan.epoch, plan.step, rows, 0.01)))


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    async with LocalSystem() as system:
        yield Stage(system)


def submit(request: int, max_tokens: int = 2) -> Submit:
    return Submit(request=request, prompt_tokens=[10, 11], sampling=SamplingParams(max_tokens=max_tokens))


async def test_a_request_runs_and_its_end_comes_after_its_tokens() -> None:
    async with stage() as it:
        await it.ref.tell(READY)
        assert await it.told() == EngineReady(64)
        await it.ref.tell(submit(1))
        assert await it.told() == RequestAccepted(1)
        await it.answer(await it.plan(), 1, 20)
        await it.answer(await it.plan(), 1, 21)
        for token in (20, 21):
            tokens = await it.told()
            assert isinstance(tokens, TokensGenerated)
            assert [delta.tokens for delta in tokens.deltas] == [[token]]
        end = await it.told()
        assert isinstance(end, RequestFinished)
        assert end.reason == "length"


async def test_before_the_worker_is_ready_requests_are_refused_with_a_hint() -> None:
    async with stage() as it:
        await it.ref.tell(submit(1))
        refused = await it.told()
        assert isinstance(refused, RequestFailed)
        assert refused.code == "overloaded"
        assert refused.retry_after_ms is not None
        health = await it.ref.ask(GetHealth(), timeout_s=5)
        assert health == Health(ok=False, detail="loading")


async def test_a_cancel_never_overtakes_its_submit() -> None:
    async with stage() as it:
        for message in (READY, submit(1), CancelRequest(1)):
            await it.ref.tell(message)
        assert [type(await it.told()) for _ in range(3)] == [EngineReady, RequestAccepted, RequestFinished]


async def test_a_failed_worker_ends_everyone_once_and_then_the_actor() -> None:
    async with stage() as it:
        for message in (READY, submit(1), submit(2)):
            await it.ref.tell(message)
        await it.plan()
        await it.ref.tell(WorkerFailed(0, 1, "it broke"))
        name, failure = await it.system.wait_failed()
        assert name == "scheduler"
        assert isinstance(failure, PartFailed)
        told = [it.ingress.inbox.get_nowait() for _ in range(it.ingress.inbox.qsize())]
        ends = [message for message in told if isinstance(message, RequestFailed)]
        assert [(end.request, end.code) for end in ends] == [(1, "internal"), (2, "internal")]


async def test_a_worker_that_is_gone_ends_everyone_too() -> None:
    async with stage() as it:
        await it.ref.tell(READY)
        assert isinstance(await it.told(), EngineReady)
        await it.system.stop("worker:0")
        await it.ref.tell(submit(1))
        assert await it.told() == RequestAccepted(1)
        end = await it.told()
        assert isinstance(end, RequestFailed)
        assert end.code == "internal"
        assert isinstance((await it.system.wait_failed())[1], PartFailed)


async def test_drain_is_answered_when_nobody_is_left() -> None:
    async with stage() as it:
        for message in (READY, submit(1)):
            await it.ref.tell(message)
        await it.plan()
        assert await it.ref.ask(Drain(60_000), timeout_s=5) is None
        await it.ref.tell(CancelRequest(1))
        await it.ref.tell(submit(2))
        told = [await it.told() for _ in range(4)]
        assert await it.ref.ask(GetHealth(), timeout_s=5) == Health(ok=True)
        assert isinstance(told[-1], RequestFailed)
        assert told[-1].code == "draining"
        assert await it.ref.ask(Drain(60_000), timeout_s=5) == Drained()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokenstage_kv_pages_total", 16.0),
        ("tokenstage_num_requests_running", 1.0),
        ("tokenstage_prompt_tokens_total", 2.0),
        ("tokenstage_request_queue_time_seconds_count", 1.0),
    ],
)
async def test_metrics_are_answered(name: str, value: float) -> None:
    async with stage() as it:
        for message in (READY, submit(1)):
            await it.ref.tell(message)
        await it.plan()
        snapshot = await it.ref.ask(CollectMetrics(), timeout_s=5)
        samples = {sample.name: sample.value for family in snapshot.families for sample in family.samples}
        assert samples[name] == value
        pages = [samples[f"tokenstage_kv_pages_{state}"] for state in ("free", "cached", "held")]
        assert sum(pages) == samples["tokenstage_kv_pages_total"]
