"""The one table of live requests, whatever dialect asked for them; the way in, and the way back to who listens.

`submit` takes a validated Generate and knows of no socket. Owns the table from request number to stream, for each
`Listener` its streams by its own names and which of them have something to send, and the outbox of control messages.
A cancel or stop may overtake a Submit on its way, so both wait until the scheduler has accepted the request; one
accepted but unknown here is cancelled. The outbox is bounded by the live requests: a cancel, a stop and one sum of
credit for each. Read `requests` (Generate to Submit), then `stream`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from actors.ingress.requests import RequestReader
from actors.ingress.stream import Stream
from actors.runtime.ref import ActorRef, ActorStopped
from protocol.bounds import MAX_INT31
from protocol.errors import ErrorCode, RequestError
from protocol.messages import (
    CancelRequest,
    GrantCredit,
    RequestFailed,
    RequestFinished,
    SchedulerInbox,
    StopRequest,
    TokenDelta,
)
from protocol.wire import Generate

ENGINE_GONE = "the engine has stopped"


@dataclass(slots=True)
class EngineStatus:
    """What the ingress knows of the engine behind it. Written by the actor alone; read by connections and pages.

    Before EngineReady `max_model_len` is the model's own limit.
    """

    max_model_len: int
    is_ready: bool = False
    is_draining: bool = False
    is_drained: bool = False
    """All streams have ended: no connection stays open."""

    def check_open(self) -> None:
        """Raise RequestError when no new request can be taken now."""
        if self.is_draining:
            raise RequestError("draining", "the server is shutting down and takes no new requests")
        if not self.is_ready:
            raise RequestError("overloaded", "the model is still being loaded", retry_after_ms=1000)


class Listener:
    """One client as its requests know it. `flush` is called at the end of a tick that had something for it."""

    __slots__ = ("_due", "dirty", "flush", "streams")

    def __init__(self, flush: Callable[[], None], live: "LiveRequests") -> None:
        self.flush = flush
        self.streams: dict[str, Stream] = {}
        """By the client's names, until their last event is taken."""
        self.dirty: list[Stream] = []
        """Those with events to take."""
        self._due = live.due

    def mark(self, stream: Stream) -> None:
        """`stream` has something to send."""
        self.dirty.append(stream)
        self._due[self] = None

    def flush_later(self) -> None:
        """Something is left to send: have `flush` called again at the end of the next tick."""
        self._due[self] = None


class LiveRequests:
    """Made once for each life of the ingress."""

    def __init__(self, scheduler: ActorRef[SchedulerInbox], reader: RequestReader, status: EngineStatus) -> None:
        self._scheduler = scheduler
        self._reader = reader
        self._status = status
        self._streams: dict[int, Stream] = {}
        self.due: dict[Listener, None] = {}
        """Who has something to send at the end of this tick."""
        self._outbox: deque[CancelRequest | StopRequest | Stream] = deque()
        """A stream stands for the credit that is due to it."""
        self._has_outgoing = asyncio.Event()
        self._last_number = time.time_ns()  # 63 bits until 2262, and no earlier life has used what comes next

    def __len__(self) -> int:
        return len(self._streams)

    async def submit(self, generate: Generate, tenant: str, listener: Listener, *, warm: bool = False) -> Stream:
        """Serve one request; `listener` has its stream from now on. Waits while the scheduler's mailbox is full.

        Raises RequestError for what is refused, and when the scheduler is gone.
        """
        self._status.check_open()
        self._last_number += 1
        stream = await self._reader.read(
            generate,
            request=self._last_number,
            tenant=tenant,
            max_model_len=self._status.max_model_len,
            warm=warm,
        )
        self._status.check_open()  # again: a long prompt took its time
        stream.listen(listener.mark)
        listener.streams[stream.client_id] = stream
        if not stream.has_ended:
            self._streams[stream.submit.request] = stream
            try:
                await self._scheduler.tell(stream.submit)
            except BaseException as error:
                listener.streams.pop(stream.client_id, None)  # unless it has failed with all others meanwhile
                self._streams.pop(stream.submit.request, None)
                if isinstance(error, ActorStopped):
                    raise RequestError("internal", ENGINE_GONE) from error
                raise
        return stream

    def flush(self) -> None:
        """Have everybody send what this tick has brought."""
        due = list(self.due)
        self.due.clear()
        for listener in due:
            listener.flush()

    def abandon(self, listener: Listener) -> None:
        """The client is gone: what it asked for is not wanted any more."""
        streams, listener.streams = listener.streams, {}
        listener.dirty.clear()
        for stream in streams.values():
            stream.listen(None)
            self.cancel(stream)

    def cancel(self, stream: Stream) -> None:
        """Stop generating; the scheduler answers with the terminal event."""
        if stream.is_cancelled or stream.has_ended:
            return
        stream.is_cancelled = True
        if stream.is_accepted:
            self._enqueue(CancelRequest(stream.submit.request))

    def grant(self, stream: Stream, tokens: int) -> None:
        """The client can take `tokens` more, less what was granted in its stead and has reached it since."""
        repaid = min(stream.credit_repayable, tokens)
        stream.credit_advanced -= repaid
        if repaid < tokens:
            self._grant(stream, tokens - repaid)

    def _grant(self, stream: Stream, tokens: int) -> None:
        if stream.is_accepted and not stream.credit_due:
            self._enqueue(stream)
        stream.credit_due = min(stream.credit_due + tokens, MAX_INT31)
        stream.credit_length += tokens

    def accept(self, request: int) -> None:
        """The scheduler has queued it: what was held back for it can go."""
        stream = self._streams.get(request)
        if stream is None:
            self._enqueue(CancelRequest(request))
            return
        stream.accept()
        if stream.credit_due:
            self._enqueue(stream)
        if stream.is_cancelled:
            self._enqueue(CancelRequest(request))

    def push(self, deltas: list[TokenDelta]) -> None:
        """Tokens of one step, for all streams; those of unknown requests are dropped."""
        streams = self._streams
        for delta in deltas:
            stream = streams.get(delta.request)
            if stream is None:
                continue
            if stream.push(delta):
                self._enqueue(StopRequest(delta.request))
            elif missing := stream.credit_missing:
                stream.credit_advanced += missing
                self._grant(stream, missing)

    def end(self, message: RequestFinished | RequestFailed) -> None:
        """Terminal event."""
        stream = self._streams.pop(message.request, None)
        if stream is None:
            return
        if isinstance(message, RequestFinished):
            stream.finish(message)
        else:
            stream.fail(message)

    def fail_all(self, code: ErrorCode, message: str) -> int:
        """End every live request; returns how many there were."""
        streams, self._streams = self._streams, {}
        self._outbox.clear()
        for request, stream in streams.items():
            stream.fail(RequestFailed(request, code, message))
        return len(streams)

    async def forward(self) -> None:
        """Send the outbox, for ever. Raises ActorStopped."""
        while True:
            while self._outbox:
                await self._scheduler.tell(_message_of(self._outbox.popleft()))
            self._has_outgoing.clear()
            await self._has_outgoing.wait()

    def _enqueue(self, item: CancelRequest | StopRequest | Stream) -> None:
        self._outbox.append(item)
        self._has_outgoing.set()


def _message_of(item: CancelRequest | StopRequest | Stream) -> CancelRequest | StopRequest | GrantCredit:
    if not isinstance(item, Stream):
        return item
    tokens, item.credit_due = item.credit_due, 0
    return GrantCredit(item.submit.request, tokens)
