"""What an actor is, and how one life of it runs. It owns its state alone and reads one typed inbox.

See `actors.runtime.ref` for how to reach one, `actors.runtime.mailbox` for where its messages wait.
"""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from prometheus_client import CollectorRegistry

from actors.runtime.mailbox import Envelope, Mailbox
from actors.runtime.ref import ActorStopped

InboxT = TypeVar("InboxT")
MAX_BATCH = 64


class Actor(Generic[InboxT]):
    """Subclass, write one `receive` with one `match`. An exception that leaves any hook fails the actor.

    The runner calls, on one task: `started`, then `receive` for each message in order and `after_batch` whenever the
    messages that were waiting (at most 64) have been received, and at the end `stopped`, whatever happened.
    """

    control: ClassVar[tuple[type, ...]] = ()
    """Messages that go by the priority lane: past everything that waits, even when the mailbox is full.

    Only those whose order among the others does not matter.
    """
    registry: CollectorRegistry
    """What it counts; its process adds what the runtime counts. Needed by actors with a process of their own."""
    tasks: asyncio.TaskGroup | None = None
    """The runner's: of the life that runs."""

    async def started(self) -> None:
        """Run before the first message."""

    async def receive(self, message: InboxT) -> Any:  # noqa: ANN401 - the answer, if the message was asked
        """Handle one message; what it returns answers an `ask` (an asyncio.Future: once that is done)."""
        raise NotImplementedError

    async def after_batch(self) -> None:
        """Act on everything received so far (the scheduler plans here)."""

    async def stopped(self) -> None:
        """Release what `started` took; the mailbox is closed."""

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run `work` beside `receive` until the actor stops; an exception in it fails the actor.

        Raises RuntimeError before `started` and after the actor has stopped.
        """
        if self.tasks is None:
            work.close()
            raise RuntimeError(f"cannot spawn {name!r}: the actor is not running")
        self.tasks.create_task(work, name=name)


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
