"""An actor's mailbox: two bounded lanes, and control messages overtake the others. One consumer, the actor's runner.

Full-policy: whoever finds a lane full waits outside, in order. It has no coroutines for that: who must wait gets a
future, so that callbacks of a transport can use it too.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from actors.runtime.ref import ActorStopped

MessageT = TypeVar("MessageT")
CONTROL_CAPACITY = 256


@dataclass(slots=True)
class Envelope(Generic[MessageT]):
    """A message and, if it was asked, the future that its answer goes to."""

    message: MessageT
    reply: asyncio.Future[Any] | None = None


@dataclass(slots=True)
class _Lane(Generic[MessageT]):
    """At most `capacity` envelopes; those that find it full wait outside and enter in the order they came."""

    capacity: int
    envelopes: deque[Envelope[MessageT]] = field(default_factory=deque)
    waiting: deque[tuple[Envelope[MessageT], asyncio.Future[None]]] = field(default_factory=deque)


class Mailbox(Generic[MessageT]):
    """`capacity` messages, and beside them CONTROL_CAPACITY of the types in `control`."""

    def __init__(self, name: str, capacity: int, control: tuple[type, ...]) -> None:
        if capacity < 1:
            raise ValueError(f"a lane needs room for one item at least, not {capacity}")
        self._name = name
        self._control_types = control
        self._control: _Lane[MessageT] = _Lane(CONTROL_CAPACITY)
        self._messages: _Lane[MessageT] = _Lane(capacity)
        self._arrival: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def depth(self) -> int:
        """Messages waiting."""
        return len(self._control.envelopes) + len(self._messages.envelopes)

    def push(self, envelope: Envelope[MessageT]) -> asyncio.Future[None] | None:
        """Put; None when it is in, else a future that is done once it is in (cancel it to take the message back).

        Raises ActorStopped, and the future does when the mailbox is closed first.
        """
        if self._closed:
            raise ActorStopped(f"{self._name} has stopped")
        lane = self._control if isinstance(envelope.message, self._control_types) else self._messages
        if lane.waiting or len(lane.envelopes) >= lane.capacity:
            entered = asyncio.get_running_loop().create_future()
            lane.waiting.append((envelope, entered))
            return entered
        lane.envelopes.append(envelope)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        return None

    async def take(self) -> Envelope[MessageT]:
        """Wait for the next message: the oldest control message, else the oldest."""
        while (envelope := self.take_nowait()) is None:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        return envelope

    def take_nowait(self) -> Envelope[MessageT] | None:
        """Return the next message, None when there is none."""
        lane = self._control if self._control.envelopes else self._messages
        if not lane.envelopes:
            return None
        envelope = lane.envelopes.popleft()
        if lane.waiting:
            _let_in(lane)
        return envelope

    def close(self) -> None:
        """Drop what waits: waiting tellers and askers get ActorStopped, and so does everybody from now on."""
        self._closed = True
        awaited: list[asyncio.Future[Any]] = []
        for lane in (self._control, self._messages):
            awaited += [envelope.reply for envelope in lane.envelopes if envelope.reply is not None]
            awaited += [entered for _, entered in lane.waiting]
            lane.envelopes.clear()
            lane.waiting.clear()
        for future in awaited:
            if not future.done():
                future.set_exception(ActorStopped(f"{self._name} has stopped"))


def _let_in(lane: _Lane[MessageT]) -> None:
    while lane.waiting and len(lane.envelopes) < lane.capacity:
        envelope, entered = lane.waiting.popleft()
        if not entered.done():  # it is when it was cancelled while it waited
            lane.envelopes.append(envelope)
            entered.set_result(None)
