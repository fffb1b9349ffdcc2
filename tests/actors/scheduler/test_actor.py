"""The shell: order of what it tells, control messages, failure. Schedules themselves are tested on the pure part."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from actors.runtime.actor import Actor
from actors.runtime.clock import RealClock
from actors.scheduler.actor import SchedulerActor
from protocol.errors import PartFailed
from protocol.messages import (
    CancelRequest,
    CollectMetrics,
    EngineReady,
    ExecuteStep,
    GetHealth,
    Health,
    IngressInbox,
    MemoryExported,
    OpenPeers,
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
from tests.actors.runtime.local import LocalRef, LocalSystem
from tests.actors.scheduler.rig import make_config

MODEL = ModelInfo(name="m", folder="", vocab_size=100, max_model_len=64, eos_token_ids=(3,))
READY = WorkerReady(worker=0, epoch=1, num_pages=16, page_size=4)


class Recorder(Actor[Any]):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()

    async def receive(self, message: Any) -> None:
        await self.inbox.put(message)


class Stage:
    """One group of workers, whose part the test plays."""

    def __init__(self, system: LocalSystem, num_ranks: int) -> None:
        self.system = system
        self.ingress, self.workers = Recorder(), [Recorder() for _ in range(num_ranks)]
        ingress: LocalRef[IngressInbox] = system.start(self.ingress, name="ingress")
        ranks: list[LocalRef[WorkerInbox]] = [
            system.start(worker, name=f"worker:{index}") for index, worker in enumerate(self.workers)
        ]
        actor = SchedulerActor(make_config(peer_timeout_s=0.5), MODEL, ingress, [ranks], RealClock())
        self.ref: LocalRef[SchedulerInbox] = system.start(actor, name="scheduler")

    async def told(self) -> Any:
        return await self.ingress.inbox.get()

    async def plan(self, rank: int = 0) -> StepPlan:
        message = await self.workers[rank].inbox.get()
        assert isinstance(message, ExecuteStep)
        return message.plan

    async def answer(self, plan: StepPlan, request: int, token: int, rank: int = 0) -> None:
        rows = [SampledRow(plan.rows[0].slot, request, 0, token)]
        await self.ref.tell(StepCompleted(rank, StepResult(plan.epoch, plan.step, rows, 0.01)))

    async def ends(self) -> tuple[BaseException, list[tuple[int, str]]]:
        """Wait for the scheduler's failure; what it was, and (request, code) of those it ended."""
        name, failure = await self.system.wait_failed()
        assert name == "scheduler"
        told = [self.ingress.inbox.get_nowait() for _ in range(self.ingress.inbox.qsize())]
        return failure, [(end.request, end.code) for end in told if isinstance(end, RequestFailed)]


@asynccontextmanager
async def stage(num_ranks: int = 1) -> AsyncIterator[Stage]:
    async with LocalSystem() as system, asyncio.timeout(20):
        yield Stage(system, num_ranks)


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
        failure, ends = await it.ends()
        assert isinstance(failure, PartFailed)
        assert str(failure) == "worker 0: it broke"
        assert ends == [(1, "internal"), (2, "internal")]


async def test_ranks_meet_and_then_each_gets_every_plan() -> None:
    async with stage(num_ranks=2) as it:
        await it.ref.tell(MemoryExported(1, 1, b"b"))
        await it.ref.tell(MemoryExported(0, 1, b"a"))
        for worker in it.workers:
            assert await worker.inbox.get() == OpenPeers(1, [b"a", b"b"])
        await it.ref.tell(replace(READY, worker=1, num_pages=5))
        await it.ref.tell(replace(READY, worker=0, num_pages=9))
        assert await it.told() == EngineReady(20)
        await it.ref.tell(submit(1))
        assert await it.told() == RequestAccepted(1)
        plan = await it.plan(0)
        assert await it.plan(1) == plan
        await it.answer(plan, 1, 20, rank=1)
        await it.answer(plan, 1, 20, rank=0)
        assert isinstance(await it.told(), TokensGenerated)


async def running_on_two_ranks(it: Stage) -> StepPlan:
    """The first plan of request 1, which both ranks have got."""
    for message in (READY, replace(READY, worker=1), submit(1)):
        await it.ref.tell(message)
    return await it.plan()


async def test_ranks_that_disagree_end_everyone_and_both_tokens_are_in_the_reason() -> None:
    async with stage(num_ranks=2) as it:
        plan = await running_on_two_ranks(it)
        await it.answer(plan, 1, 20, rank=0)
        await it.answer(plan, 1, 21, rank=1)
        failure, ends = await it.ends()
        assert isinstance(failure, PartFailed)
        assert str(failure) == "group 0, step 0, slot 0: rank 0 has token 20, rank 1 has token 21"
        assert ends == [(1, "internal")]


async def test_a_rank_that_answers_no_more_ends_everyone_by_the_deadline() -> None:
    async with stage(num_ranks=2) as it:
        await it.answer(await running_on_two_ranks(it), 1, 20, rank=1)
        failure, ends = await it.ends()
        assert "no answer of rank 0 0." in str(failure)
        assert ends == [(1, "internal")]


async def test_a_failed_rank_fails_its_group() -> None:
    async with stage(num_ranks=2) as it:
        await running_on_two_ranks(it)
        await it.ref.tell(WorkerFailed(1, 1, "it waited for rank 0"))
        failure, ends = await it.ends()
        assert str(failure) == "worker 1 (rank 1 of group 0): it waited for rank 0"
        assert ends == [(1, "internal")]


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
