"""An actor's mailbox: two bounded lanes, and control messages overtake the others.

Full-policy: `tell` waits, `try_tell` is refused. One consumer, the actor's runner.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from actors.runtime.lane import Lane
from actors.runtime.ref import ActorStopped

MessageT = TypeVar("MessageT")
CONTROL_CAPACITY = 256


@dataclass(slots=True)
class Envelope(Generic[MessageT]):
    """A message and, if it was asked, the future that its answer goes to."""

    message: MessageT
    reply: asyncio.Future[Any] | None = None


class Mailbox(Generic[MessageT]):
    """`capacity` messages, and beside them CONTROL_CAPACITY of those for which `is_control` holds."""

    def __init__(self, name: str, capacity: int, is_control: Callable[[MessageT], bool]) -> None:
        self._name = name
        self._is_control = is_control
        self._control: Lane[Envelope[MessageT]] = Lane(CONTROL_CAPACITY)
        self._messages: Lane[Envelope[MessageT]] = Lane(capacity)
        self._arrival: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def depth(self) -> int:
        """Messages waiting."""
        return len(self._control) + len(self._messages)

    def offer(self, envelope: Envelope[MessageT]) -> bool:
        """Put without waiting; False when full or closed."""
        if self._closed or not self._lane(envelope).offer(envelope):
            return False
        self._wake()
        return True

    def push(self, envelope: Envelope[MessageT]) -> asyncio.Future[None] | None:
        """Put; None when it is in, else a future (see Lane.push). Raises ActorStopped."""
        if self._closed:
            raise ActorStopped(f"{self._name} has stopped")
        entered = self._lane(envelope).push(envelope)
        self._wake()
        return entered

    async def put(self, envelope: Envelope[MessageT]) -> None:
        """Put, waiting for room. Raises ActorStopped."""
        entered = self.push(envelope)
        if entered is not None:
            await entered

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

    def _lane(self, envelope: Envelope[MessageT]) -> Lane[Envelope[MessageT]]:
        return self._control if self._is_control(envelope.message) else self._messages

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
