"""An actor's mailbox, and its one consumer: the runner, which gives one life of the actor its messages.

A mailbox has two bounded lanes, and control messages overtake the others. Full-policy: whoever finds a lane full waits
outside, in order. It has no coroutines for that: who must wait gets a future, so that callbacks of a transport can use
it too.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from actors.runtime.actor import Actor
from actors.runtime.ref import ActorStopped

MessageT = TypeVar("MessageT")
InboxT = TypeVar("InboxT")
CONTROL_CAPACITY = 256
MAX_BATCH = 64


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


class Runner(Generic[InboxT]):
    """One life of an actor, and its mailbox, which takes messages from the moment the runner is made."""

    def __init__(self, actor: Actor[InboxT], *, name: str, capacity: int) -> None:
        self.name = name
        self.mailbox: Mailbox[InboxT] = Mailbox(name, capacity, actor.control)
        self._actor = actor
        self._owed: set[asyncio.Future[Any]] = set()
        """Replies that somebody waits for: at the end they get ActorStopped."""

    async def run(self) -> None:
        """Run until cancelled: that is how to stop it. Raises what failed the actor. Afterwards nobody waits on it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._actor.tasks = tasks
                await self._actor.started()
                while True:
                    await self._receive_batch()
        except BaseExceptionGroup as group:
            raise _first_cause(group) from None
        finally:
            self._actor.tasks = None
            self.mailbox.close()
            self._fail_askers()
            await self._actor.stopped()

    async def _receive_batch(self) -> None:
        envelope: Envelope[InboxT] | None = await self.mailbox.take()
        num_left = MAX_BATCH
        while envelope is not None:
            if envelope.reply is None:
                await self._actor.receive(envelope.message)
            else:
                await self._answer(envelope.message, envelope.reply)
            num_left -= 1
            envelope = self.mailbox.take_nowait() if num_left else None
        await self._actor.after_batch()
        if not num_left:
            await asyncio.sleep(0)  # a flood of messages must not keep sockets and timers from their turn

    async def _answer(self, message: InboxT, reply: asyncio.Future[Any]) -> None:
        self._owed.add(reply)
        reply.add_done_callback(self._owed.discard)
        answer = await self._actor.receive(message)
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(partial(_pass_on, reply))
        elif not reply.done():
            reply.set_result(answer)

    def _fail_askers(self) -> None:
        for reply in list(self._owed):
            if not reply.done():
                reply.set_exception(ActorStopped(f"{self.name} has stopped"))


def _pass_on(reply: asyncio.Future[Any], answer: asyncio.Future[Any]) -> None:
    if reply.done():
        return
    if answer.cancelled():
        reply.set_exception(ActorStopped("the answer was given up"))
    elif (error := answer.exception()) is not None:
        reply.set_exception(error)
    else:
        reply.set_result(answer.result())


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    cause: BaseException = group
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return cause
