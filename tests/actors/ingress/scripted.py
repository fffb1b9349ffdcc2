"""A scheduler that does what a test says, and an ingress served against it on a free port of 127.0.0.1."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect

from actors.ingress.actor import IngressActor
from actors.ingress.config import IngressConfig
from actors.runtime.clock import Clock
from actors.runtime.ref import ActorStopped
from protocol.messages import (
    CollectMetrics,
    EngineReady,
    FinishReason,
    GetHealth,
    Health,
    IngressInbox,
    MetricFamily,
    MetricsSnapshot,
    RequestAccepted,
    RequestFinished,
    Sample,
    SchedulerInbox,
    Submit,
    Timing,
    TokenDelta,
    TokensGenerated,
    Usage,
)
from protocol.model_info import ModelInfo
from protocol.step import TokenLogprob
from tests.actors.ingress.byte_model import MAX_MODEL_LEN, tokens_of
from tests.actors.runtime.local import LocalRef, LocalSystem

MessageT = TypeVar("MessageT")
TIMING = Timing(queue_ms=1.0, ttft_ms=2.0, tpot_ms=3.0, total_ms=4.0)


class ScriptedScheduler:
    """An ActorRef that keeps what it is told; the test answers in its place."""

    name = "scheduler"

    def __init__(self) -> None:
        self.ingress: LocalRef[IngressInbox]
        self.told: asyncio.Queue[SchedulerInbox] = asyncio.Queue()
        self.is_gone = False
        self.waits_until: asyncio.Event | None = None
        """Its mailbox is full until then."""
        self.is_waited_for = asyncio.Event()
        self.answers_health: Health | None = Health(ok=True)
        self.metrics = [
            MetricFamily(
                "tokenstage_num_requests_running",
                "gauge",
                "Running.",
                [Sample("tokenstage_num_requests_running", {"group": "0"}, 3.0)],
            )
        ]
        self._counts: dict[int, int] = {}

    async def tell(self, message: SchedulerInbox) -> None:
        if self.waits_until is not None:
            self.is_waited_for.set()
            await self.waits_until.wait()
        if self.is_gone:
            raise ActorStopped("scheduler has stopped")
        self.told.put_nowait(message)

    def try_tell(self, message: SchedulerInbox) -> bool:
        self.told.put_nowait(message)
        return True

    async def ask(self, message: SchedulerInbox, *, timeout_s: float) -> Any:
        del timeout_s
        if self.is_gone:
            raise ActorStopped("scheduler has stopped")
        if isinstance(message, CollectMetrics):
            return MetricsSnapshot(self.metrics)
        assert isinstance(message, GetHealth)
        if self.answers_health is None:
            raise TimeoutError
        return self.answers_health

    async def next(self, kind: type[MessageT]) -> MessageT:
        """The next message; it must be of `kind`."""
        message = await asyncio.wait_for(self.told.get(), 5)
        assert isinstance(message, kind), message
        return message

    async def accept(self) -> Submit:
        """Take the next Submit and accept it."""
        submit = await self.next(Submit)
        self._counts[submit.request] = len(submit.output_tokens)
        await self.ingress.tell(RequestAccepted(submit.request))
        return submit

    async def emit(self, submit: Submit, output: str | list[int], logprobs: list[TokenLogprob] | None = None) -> None:
        await self.ingress.tell(TokensGenerated([self.delta(submit, output, logprobs)]))

    def delta(self, submit: Submit, output: str | list[int], logprobs: list[TokenLogprob] | None = None) -> TokenDelta:
        tokens = tokens_of(output) if isinstance(output, str) else output
        index = self._counts[submit.request]
        self._counts[submit.request] = index + len(tokens)
        return TokenDelta(submit.request, index, tokens, logprobs or [])

    async def finish(self, submit: Submit, reason: FinishReason = "length", stop_token: int | None = None) -> None:
        usage = Usage(len(submit.prompt_tokens), 0, self._counts[submit.request])
        await self.ingress.tell(RequestFinished(submit.request, reason, usage, TIMING, stop_token))


class Served:
    """A running ingress, its scheduler, and how to reach it."""

    def __init__(self, scheduler: ScriptedScheduler, actor: IngressActor, port: int, system: LocalSystem) -> None:
        self.scheduler = scheduler
        self.ingress = scheduler.ingress
        self.actor = actor
        self.port = port
        self.system = system

    def connect(self, path: str = "/v1/stream", **options: Any) -> connect:
        """A websockets client; `async with` it."""
        return connect(f"ws://127.0.0.1:{self.port}{path}", proxy=None, **options)

    async def get(self, path: str, *, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Plain HTTP: status, headers (lower case), body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        fields = {
            "Host": f"127.0.0.1:{self.port}",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value)]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        status, *rest = head.decode().split("\r\n")
        return (
            int(status.split()[1]),
            {name.lower(): value for name, value in (line.split(": ", 1) for line in rest)},
            body,
        )


@asynccontextmanager
async def served(
    model: ModelInfo, config: IngressConfig, clock: Clock, listener: socket.socket | None = None
) -> AsyncIterator[Served]:
    """An ingress whose engine is ready."""
    if listener is None:
        listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    scheduler = ScriptedScheduler()
    actor = IngressActor(config, model, scheduler, listener, clock)
    async with LocalSystem() as system:
        scheduler.ingress = system.start(actor, name="ingress")
        await scheduler.ingress.tell(EngineReady(MAX_MODEL_LEN))
        await scheduler.ingress.ask(GetHealth(), timeout_s=10)
        yield Served(scheduler, actor, port, system)


async def say(client: ClientConnection, kind: str, **fields: Any) -> None:
    await client.send(json.dumps({"type": kind, **fields}))


async def hear(client: ClientConnection) -> dict[str, Any]:
    """The next event."""
    event: dict[str, Any] = json.loads(await asyncio.wait_for(client.recv(), 5))
    return event


async def hear_end(client: ClientConnection, name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All tokens frames of `name` and its terminal event."""
    frames: list[dict[str, Any]] = []
    while True:
        event = await hear(client)
        if event.get("id") != name:
            continue
        if event["type"] in ("finished", "failed"):
            return frames, event
        if event["type"] == "tokens":
            frames.append(event)
