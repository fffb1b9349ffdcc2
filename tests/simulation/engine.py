"""Scheduler actor, workers with counting devices, and an ingress that stands for clients, on one virtual loop.

The ingress checks while it listens: tokens come at the next index, never before `accepted` or after the end. What they
must be the prompt makes certain: see `check_tokens`.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never

from msgspec.structs import replace

from actors.runtime.actor import Actor
from actors.scheduler.actor import SchedulerActor
from actors.scheduler.scheduler import Scheduler
from cuda.devices.counting import CountingDevice, expected_output
from cuda.devices.device import DeviceConfig
from protocol.messages import (
    CancelRequest,
    CollectMetrics,
    Drain,
    EngineReady,
    ExecuteStep,
    GetHealth,
    GrantCredit,
    IngressInbox,
    MemoryExported,
    OpenPeers,
    RequestAccepted,
    RequestFailed,
    RequestFinished,
    SchedulerFailed,
    SchedulerInbox,
    StepCompleted,
    StopRequest,
    Submit,
    TokensGenerated,
    WorkerFailed,
    WorkerInbox,
    WorkerReady,
)
from protocol.model_info import ModelInfo
from protocol.step import StepPlan
from tests.actors.runtime.local import LocalRef, LocalSystem
from tests.simulation.loop import VirtualClock
from tests.simulation.scenario import EOS, Behaviour, Scenario

TIME_LIMIT_S = 2000.0
"""Virtual: whoever has not ended by then is stuck."""


@dataclass
class Seen:
    """What a client has seen of its request."""

    submit: Submit
    tokens: list[int]
    """Those that it came with, then those it was sent."""
    accepted: bool = False
    granted: int = 0
    """Tokens that may have been seen by now."""
    end: RequestFinished | RequestFailed | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.granted = len(self.tokens) + self.submit.credit


class SimulatedIngress(Actor[IngressInbox]):
    """All clients; `done` is set when each has seen its end."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.seen = {submit.request: Seen(submit, list(submit.output_tokens)) for submit, _ in scenario.requests}
        self.scheduler: LocalRef[SchedulerInbox] | None = None
        self.ready = asyncio.Event()
        self.done = asyncio.Event()

    async def started(self) -> None:
        for submit, behaviour in self.scenario.requests:
            self.spawn(self._client(self.seen[submit.request], behaviour), name=f"client-{submit.request}")

    async def receive(self, message: IngressInbox) -> Any:
        match message:
            case EngineReady():
                self.ready.set()
            case RequestAccepted(request):
                seen = self.seen[request]
                assert not seen.accepted
                assert seen.end is None
                seen.accepted = True
            case TokensGenerated(deltas):
                assert deltas
                for delta in deltas:
                    self._take(self.seen[delta.request], delta.index, delta.tokens)
            case RequestFinished() | RequestFailed():
                self._end(self.seen[message.request], message)
            case SchedulerFailed() | Drain() | GetHealth() | CollectMetrics():
                raise AssertionError(f"not expected here: {message}")
            case _:
                assert_never(message)

    def _take(self, seen: Seen, index: int, tokens: list[int]) -> None:
        assert seen.accepted
        assert seen.end is None
        assert not seen.submit.warm
        assert index == len(seen.tokens)
        seen.tokens += tokens
        assert len(seen.tokens) <= seen.granted
        seen.changed.set()

    def _end(self, seen: Seen, end: RequestFinished | RequestFailed) -> None:
        assert seen.end is None, "a second end"
        assert seen.accepted or isinstance(end, RequestFailed)
        seen.end = end
        seen.changed.set()
        if all(other.end is not None for other in self.seen.values()):
            self.done.set()

    async def _client(self, seen: Seen, behaviour: Behaviour) -> None:
        assert self.scheduler is not None
        await self.ready.wait()
        await asyncio.sleep(behaviour.submit_at)
        await self.scheduler.tell(seen.submit)
        request = seen.submit.request
        if behaviour.cancel_at is not None:
            self.spawn(self._later(behaviour.cancel_at, CancelRequest(request)), name="cancel")
        if behaviour.stop_at is not None:
            self.spawn(self._later(behaviour.stop_at, StopRequest(request)), name="stop")
        while seen.end is None and behaviour.credit_step:
            if len(seen.tokens) == seen.granted:
                seen.granted += behaviour.credit_step
                await self.scheduler.tell(GrantCredit(request, behaviour.credit_step))
            await seen.changed.wait()
            seen.changed.clear()
            await asyncio.sleep(behaviour.read_delay)

    async def _later(self, seconds: float, message: SchedulerInbox) -> None:
        await asyncio.sleep(seconds)
        assert self.scheduler is not None
        await self.scheduler.tell(message)


@dataclass(frozen=True)
class Fault:
    """What the last rank of every group does wrong, from step `at` on."""

    kind: Literal["breaks", "lies", "hangs"]
    at: int


class SimulatedWorker(Actor[WorkerInbox]):
    """One rank: a counting device whose steps take as long as the seed says."""

    def __init__(self, index: int, scenario: Scenario, fault: Fault | None) -> None:
        self.scheduler: LocalRef[SchedulerInbox] | None = None
        self._index = index
        self._scenario = scenario
        rank = index % scenario.num_ranks
        self._fault = fault if rank == scenario.num_ranks - 1 else None
        self._random = random.Random(scenario.seed + index)
        self._handles: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self._plans: asyncio.Queue[StepPlan] = asyncio.Queue()
        self._device = CountingDevice(_device_config(scenario, rank), vocab_size=scenario.vocab_size)

    async def started(self) -> None:
        self.spawn(self._run(), name=f"device-{self._index}")

    async def receive(self, message: WorkerInbox) -> Any:
        match message:
            case ExecuteStep(plan):
                assert self._plans.qsize() < 2, "more plans in flight than two"
                self._plans.put_nowait(plan)
            case OpenPeers(epoch, handles):
                assert epoch == 1
                self._handles.put_nowait(handles)
            case GetHealth() | CollectMetrics():
                raise AssertionError(f"not expected here: {message}")
            case _:
                assert_never(message)

    async def _run(self) -> None:
        assert self.scheduler is not None
        await asyncio.sleep(self._random.random())
        pool = self._device.load(lambda _: None)
        if self._scenario.num_ranks > 1:
            await self.scheduler.tell(MemoryExported(self._index, 1, self._device.export()))
            self._device.open_peers(await self._handles.get())
            await asyncio.sleep(self._random.random())
        await self.scheduler.tell(
            WorkerReady(worker=self._index, epoch=1, num_pages=pool.num_pages, page_size=pool.page_size)
        )
        while True:
            plan = await self._plans.get()
            faulty = self._fault.kind if self._fault and plan.step >= self._fault.at else None
            if faulty == "breaks":
                await self.scheduler.tell(WorkerFailed(self._index, plan.epoch, "it broke"))
            if faulty in {"breaks", "hangs"}:
                return
            begin = asyncio.get_running_loop().time()
            await asyncio.sleep(self._random.random() * self._scenario.step_delay)
            result = self._device.execute(plan)
            if faulty == "lies":
                result = replace(result, rows=[replace(row, token=row.token + 1) for row in result.rows])
            duration_s = asyncio.get_running_loop().time() - begin
            await asyncio.sleep(self._random.choice([0.0, self._scenario.step_delay]))
            await self.scheduler.tell(StepCompleted(self._index, replace(result, duration_s=duration_s)))


@dataclass
class FinalState:
    """After the end of a run."""

    seen: dict[int, Seen]
    scheduler: Scheduler
    failure: BaseException | None


async def run_scenario(scenario: Scenario, *, fault: Fault | None = None) -> FinalState:
    """Run until every request has ended (or the scheduler has failed)."""
    model = ModelInfo(name="m", folder="", vocab_size=scenario.vocab_size, max_model_len=10_000, eos_token_ids=(EOS,))
    ingress = SimulatedIngress(scenario)
    num_ranks = scenario.num_ranks
    workers = [SimulatedWorker(i, scenario, fault) for i in range(scenario.num_groups * num_ranks)]
    failure: BaseException | None = None
    async with LocalSystem() as system, asyncio.timeout(TIME_LIMIT_S):
        # The scheduler needs refs and is needed by all: the others get its ref before their first turn.
        ingress_ref = system.start(ingress, name="ingress", capacity=scenario.mailbox_capacity)
        worker_refs = [system.start(worker, name=f"worker:{i}", capacity=4) for i, worker in enumerate(workers)]
        groups = [worker_refs[first : first + num_ranks] for first in range(0, len(workers), num_ranks)]
        scheduler = SchedulerActor(scenario.config, model, ingress_ref, groups, VirtualClock())
        ref = system.start(scheduler, name="scheduler", capacity=scenario.mailbox_capacity)
        ingress.scheduler = ref
        for worker in workers:
            worker.scheduler = ref
        if fault is None:
            names = ["ingress", "scheduler", *(worker.name for worker in worker_refs)]
            await _until_done(system, names, ingress, scheduler._scheduler)
        else:
            name, failure = await system.wait_failed()
            assert name == "scheduler"
    return FinalState(ingress.seen, scheduler._scheduler, failure)


async def _until_done(
    system: LocalSystem, names: Sequence[str], ingress: SimulatedIngress, scheduler: Scheduler
) -> None:
    while not ingress.done.is_set() or any(group.in_flight for group in scheduler.groups.values()):
        if not all(system.is_running(name) for name in names):
            raise (await system.wait_failed())[1]
        await asyncio.sleep(0.1)


def check_tokens(seen: Seen, vocab_size: int) -> None:
    """No lost, repeated or foreign token; the end is what the tokens call for."""
    submit = seen.submit
    sampling = submit.sampling
    expected = expected_output(submit.prompt_tokens, sampling.max_tokens, vocab_size)
    stop_ids = {*sampling.stop_token_ids, *([] if sampling.ignore_eos else [EOS])}
    stop_at = next((i + 1 for i, token in enumerate(expected) if token in stop_ids), None)
    full = expected[:stop_at]
    assert seen.tokens == full[: len(seen.tokens)]
    if not isinstance(seen.end, RequestFinished):
        return
    assert seen.end.usage.completion_tokens == len(seen.tokens)
    assert seen.end.usage.prompt_tokens == len(submit.prompt_tokens)
    if seen.end.reason == "length" and not submit.warm:
        assert seen.tokens == full
        assert stop_at is None
    if seen.end.stop_token is not None:
        assert seen.tokens == full
        assert seen.end.stop_token == full[-1]
    elif seen.end.reason == "stop":
        assert len(seen.tokens) < len(full)


def _device_config(scenario: Scenario, rank: int) -> DeviceConfig:
    config = scenario.config
    limit = scenario.num_pages * scenario.page_size
    return DeviceConfig(
        folder="",
        dtype="auto",
        page_size=scenario.page_size,
        num_pages=scenario.num_pages + rank,
        kv_memory=None,
        max_running=config.max_running,
        max_model_len=limit,
        max_step_tokens=config.step_tokens,
        quantization="none",
        batch_invariant=False,
        num_threads=1,
        peer_timeout_s=10.0,
        rank=rank,
        world_size=scenario.num_ranks,
    )
