"""All live requests: routes what the scheduler says to streams, and what streams need to the scheduler.

Owns the table from request number to stream, and the outbox of control messages. A cancel or stop may overtake a Submit
on its way, so both wait until the scheduler has accepted the request; one accepted but unknown here is cancelled.
The outbox is bounded by the live requests: a cancel, a stop and one sum of credit for each. Never touches a socket.
"""

import asyncio
import time
from collections import deque

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

ENGINE_GONE = "the engine has stopped"


class LiveRequests:
    """Made once for each life of the ingress."""

    def __init__(self, scheduler: ActorRef[SchedulerInbox]) -> None:
        self._scheduler = scheduler
        self._streams: dict[int, Stream] = {}
        self._outbox: deque[CancelRequest | StopRequest | Stream] = deque()
        """A stream stands for the credit that is due to it."""
        self._has_mail = asyncio.Event()
        self._last_number = time.time_ns()  # 63 bits until 2262, and no earlier life has used what comes next

    def __len__(self) -> int:
        return len(self._streams)

    def next_number(self) -> int:
        """A number for a new request, never used before."""
        self._last_number += 1
        return self._last_number

    async def submit(self, stream: Stream) -> None:
        """Hand a request to the scheduler; waits while its mailbox is full. Raises RequestError if it is gone."""
        request = stream.submit.request
        self._streams[request] = stream
        try:
            await self._scheduler.tell(stream.submit)
        except BaseException as error:
            self._streams.pop(request, None)
            if isinstance(error, ActorStopped):
                raise RequestError("internal", ENGINE_GONE) from error
            raise

    def cancel(self, stream: Stream) -> None:
        """Stop generating; the scheduler answers with the terminal event."""
        if stream.is_cancelled or stream.has_ended:
            return
        stream.is_cancelled = True
        if stream.is_accepted:
            self._post(CancelRequest(stream.submit.request))

    def grant(self, stream: Stream, tokens: int) -> None:
        """The client can take `tokens` more, less what was granted in its stead and has reached it since."""
        repaid = min(stream.credit_repayable, tokens)
        stream.credit_advanced -= repaid
        if repaid < tokens:
            self._grant(stream, tokens - repaid)

    def _grant(self, stream: Stream, tokens: int) -> None:
        if stream.is_accepted and not stream.credit_due:
            self._post(stream)
        stream.credit_due = min(stream.credit_due + tokens, MAX_INT31)
        stream.credit_length += tokens

    def accept(self, request: int) -> None:
        """The scheduler has queued it: what was held back for it can go."""
        stream = self._streams.get(request)
        if stream is None:
            self._post(CancelRequest(request))
            return
        stream.accept()
        if stream.credit_due:
            self._post(stream)
        if stream.is_cancelled:
            self._post(CancelRequest(request))

    def push(self, deltas: list[TokenDelta]) -> None:
        """Tokens of one step, for all streams; those of unknown requests are dropped."""
        streams = self._streams
        for delta in deltas:
            stream = streams.get(delta.request)
            if stream is None:
                continue
            if stream.push(delta):
                self._post(StopRequest(delta.request))
            elif missing := stream.credit_missing:
                stream.credit_advanced += missing
                self._grant(stream, missing)

    def finish(self, message: RequestFinished) -> None:
        """Terminal event."""
        stream = self._streams.pop(message.request, None)
        if stream is not None:
            stream.finish(message)

    def fail(self, message: RequestFailed) -> None:
        """Terminal event."""
        stream = self._streams.pop(message.request, None)
        if stream is not None:
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
                await self._scheduler.tell(_letter(self._outbox.popleft()))
            self._has_mail.clear()
            await self._has_mail.wait()

    def _post(self, item: CancelRequest | StopRequest | Stream) -> None:
        self._outbox.append(item)
        self._has_mail.set()


def _letter(item: CancelRequest | StopRequest | Stream) -> CancelRequest | StopRequest | GrantCredit:
    if not isinstance(item, Stream):
        return item
    tokens, item.credit_due = item.credit_due, 0
    return GrantCredit(item.submit.request, tokens)
