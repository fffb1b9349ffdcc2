"""The ingress actor, read first: clients on one side, the scheduler on the other.

`receive` takes what the scheduler says into the streams; `after_batch` flushes every connection that got something: a
tick costs one write a connection. Owns the server, the live requests, the drain. Read `connection`, then `stream`.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import assert_never

import structlog
from websockets.asyncio.server import Server

from actors.ingress.access import Keys
from actors.ingress.config import IngressConfig
from actors.ingress.connection import GOING_AWAY, Shared
from actors.ingress.http import Pages
from actors.ingress.live_requests import ENGINE_GONE, EngineStatus, LiveRequests
from actors.ingress.metrics import EngineProbe, IngressMetrics
from actors.ingress.requests import RequestReader
from actors.ingress.server import Connections, open_server
from actors.ingress.text import TextModel
from actors.runtime.actor import Actor
from actors.runtime.clock import Clock
from actors.runtime.ref import ActorRef, ActorStopped
from protocol.errors import ErrorCode
from protocol.messages import (
    CollectMetrics,
    Drain,
    Drained,
    EngineReady,
    GetHealth,
    Health,
    IngressInbox,
    MetricsSnapshot,
    RequestAccepted,
    RequestFailed,
    RequestFinished,
    SchedulerFailed,
    SchedulerInbox,
    TokensGenerated,
    WorkerInbox,
)
from protocol.model_info import ModelInfo

log = structlog.get_logger()

Answer = Health | MetricsSnapshot | asyncio.Future[Drained] | None
WATCH_INTERVAL_S = 1.0


class IngressActor(Actor[IngressInbox]):
    """Serves `model` on `listener`, a listening TCP socket that it closes at its end."""

    control = (GetHealth, CollectMetrics, Drain)
    """Questions, and what ends everything, need not wait behind tokens."""

    def __init__(  # noqa: PLR0913 - what it is wired to
        self,
        config: IngressConfig,
        model: ModelInfo,
        scheduler: ActorRef[SchedulerInbox],
        listener: socket.socket,
        clock: Clock,
        *,
        peers: Sequence[ActorRef[WorkerInbox]] = (),
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`peers`: other actors whose metrics belong on the page. `on_ready` hears that the engine is."""
        self._config = config
        self._model = model
        self._scheduler = scheduler
        self._listener = listener
        self._clock = clock
        self._status = EngineStatus(model.max_model_len)
        self._on_ready = on_ready
        self._metrics = IngressMetrics(model.name)
        self.registry = self._metrics.registry
        self._probe = EngineProbe(scheduler, peers)
        self._drain_by = 0.0
        self._drained: asyncio.Future[Drained] | None = None
        self._reader: RequestReader
        self._live: LiveRequests
        self._connections: Connections
        self._server: Server | None = None

    async def started(self) -> None:
        """Read the tokenizer, open the server."""
        config, model = self._config, self._model
        text = await asyncio.to_thread(TextModel.load, model.folder)
        self._reader = RequestReader(model, text, config)
        self._live = LiveRequests(self._scheduler, self._reader, self._status)
        shared = Shared(
            config=config,
            model=model,
            keys=Keys(config.api_keys),
            status=self._status,
            live=self._live,
            metrics=self._metrics,
            clock=self._clock,
        )
        self._connections = Connections(shared)
        pages = Pages(config, model, self._status, self._probe, self._metrics)
        self._server = await open_server(shared, pages, self._connections, self._listener)
        self.spawn(self._forward(), name="outbox")
        self.spawn(self._sweep(), name="deadlines")
        self.spawn(self._watch(), name="watch")

    async def receive(self, message: IngressInbox) -> Answer:
        """Take one message of the scheduler or the node."""
        match message:
            case TokensGenerated(deltas=deltas):
                self._live.push(deltas)
            case RequestAccepted(request=request):
                self._live.accept(request)
            case RequestFinished() | RequestFailed():
                self._live.end(message)
            case EngineReady(max_model_len=max_model_len):
                self._status.max_model_len = max_model_len
                self._status.is_ready = True
                self._on_ready()
            case SchedulerFailed(message=reason):
                self._fail_all("internal", reason)
            case Drain(deadline_ms=deadline_ms):
                return self._start_drain(deadline_ms)
            case GetHealth():
                return Health(ok=True, num_running=len(self._live))
            case CollectMetrics():
                return self._metrics.snapshot()
            case _:
                assert_never(message)
        return None

    async def after_batch(self) -> None:
        """Send what this tick has brought."""
        self._live.flush()
        self._go_on_draining()

    async def stopped(self) -> None:
        """Close every socket (1001); by force those that do not answer."""
        if self._server is None:
            self._listener.close()
            return
        self._status.is_draining = self._status.is_drained = True
        self._connections.close(GOING_AWAY, "the server is going away")
        self._server.close()
        await self._wait_closed(self._server)
        self._connections.abort()
        await self._wait_closed(self._server)
        self._reader.close()

    def _start_drain(self, deadline_ms: int) -> "asyncio.Future[Drained]":
        """Answered once every request has ended and every socket is closed. A second Drain can only hasten it."""
        drain_by = self._clock.now() + deadline_ms / 1000
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
            self._drain_by = drain_by
            self._status.is_draining = True
            self._connections.announce_drain(deadline_ms)
        self._drain_by = min(self._drain_by, drain_by)
        return self._drained

    def _go_on_draining(self) -> None:
        if self._drained is None:
            return
        if not self._status.is_drained:
            is_over = self._clock.now() >= self._drain_by
            if is_over:
                self._fail_all("draining", "the server has shut down before this request ended")
                self._live.flush()
            if is_over or (not self._live and self._connections.are_idle):
                self._status.is_drained = True
                self._connections.close(GOING_AWAY, "the server is going away")
        if self._status.is_drained and not self._connections and not self._drained.done():
            self._drained.set_result(Drained())

    def _fail_all(self, code: ErrorCode, reason: str) -> None:
        number = self._live.fail_all(code, reason)
        if number:
            log.error("live requests failed", number=number, code=code, reason=reason)
            self._metrics.count_failure(code, number)

    async def _forward(self) -> None:
        """Cancels, stops and credit to the scheduler; without one there is nobody to tell."""
        while True:
            try:
                await self._live.forward()
            except ActorStopped:
                self._lose_engine()

    async def _sweep(self) -> None:
        """Look at deadlines now and then."""
        while True:
            await self._clock.sleep(self._config.sweep_interval_s)
            self._connections.enforce_deadlines()
            self._go_on_draining()

    async def _watch(self) -> None:
        """Notice a scheduler that is gone, even when nothing is to be told to it."""
        while True:
            try:
                await self._scheduler.ask(GetHealth(), timeout_s=WATCH_INTERVAL_S)
            except TimeoutError:
                pass  # slow is the business of /health
            except ActorStopped:
                self._lose_engine()
            await self._clock.sleep(WATCH_INTERVAL_S)

    def _lose_engine(self) -> None:
        self._fail_all("internal", ENGINE_GONE)
        self._live.flush()

    async def _wait_closed(self, server: Server) -> None:
        try:
            async with asyncio.timeout(self._config.close_timeout_s):
                await server.wait_closed()
        except TimeoutError:
            log.warning("connections did not close in time", number=len(self._connections))
