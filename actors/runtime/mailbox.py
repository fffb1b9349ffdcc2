"""An actor's mailbox: two bounded lanes, and control messages overtake the others. One consumer, the actor's runner.

Full-policy: whoever finds a lane full waits outside, in order. It has no coroutines for that: who must wait gets a
future, so that callbacks of a transport can use it too.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from actors.runtime.ref import ActorStopped

MessageT = TypeVar("MessageT")
CONTROL_CAPACITY = 256


@dataclass(slots=True)
class Envelope(Generic[MessageT]):
    """A message and, if it was asked, the future that its answer goes to."""

    message: MessageT
    reply: asyncio.Future[Any] | None = None


class Mailbox(Generic[MessageT]):
    """`capacity` messages, and beside them CONTROL_CAPACITY of the types in `control`."""

    def __init__(self, name: str, capacity: int, control: tuple[type, ...]) -> None:
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
        entered = lane.push(envelope)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        return entered

    async def take(self) -> Envelope[MessageT]:
        """Wait for the next message: the oldest control message, else the oldest."""
        while (envelope := self.take_nowait()) is None:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        return envelope

    def take_nowait(self) -> Envelope[MessageT] | None:
        """Return the next message, None when there is none."""
        return self._control.pop() or self._messages.pop()

    def close(self) -> None:
        """Drop what waits: waiting tellers and askers get ActorStopped, and so does everybody from now on."""
        self._closed = True
        reason = f"{self._name} has stopped"
        for envelope in self._control.clear(reason) + self._messages.clear(reason):
            if envelope.reply is not None and not envelope.reply.done():
                envelope.reply.set_exception(ActorStopped(reason))


class _Lane(Generic[MessageT]):
    """At most `capacity` envelopes; those that find it full wait outside and enter in the order they came."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a lane needs room for one item at least, not {capacity}")
        self.envelopes: deque[Envelope[MessageT]] = deque()
        self._capacity = capacity
        self._waiting: deque[tuple[Envelope[MessageT], asyncio.Future[None]]] = deque()

    def push(self, envelope: Envelope[MessageT]) -> asyncio.Future[None] | None:
        if not self._waiting and len(self.envelopes) < self._capacity:
            self.envelopes.append(envelope)
            return None
        entered = asyncio.get_running_loop().create_future()
        self._waiting.append((envelope, entered))
        return entered

    def pop(self) -> Envelope[MessageT] | None:
        if not self.envelopes:
            return None
        envelope = self.envelopes.popleft()
        while self._waiting and len(self.envelopes) < self._capacity:
            next_one, entered = self._waiting.popleft()
            if not entered.done():  # it is when it was cancelled while it waited
                self.envelopes.append(next_one)
                entered.set_result(None)
        return envelope

    def clear(self, reason: str) -> list[Envelope[MessageT]]:
        """Waiting putters get ActorStopped(reason); returns what was in."""
        envelopes = list(self.envelopes)
        self.envelopes.clear()
        while self._waiting:
            _, entered = self._waiting.popleft()
            if not entered.done():
                entered.set_exception(ActorStopped(reason))
        return envelopes
