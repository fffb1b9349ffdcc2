"""Runs one life of one actor over its mailbox: the order of its hooks, its answers, its end.

Used in one process (`tests.actors.runtime.local`) and by the process of an actor (`actors.runtime.transport`).
"""

import asyncio
from functools import partial
from typing import Any, Generic, TypeVar

from actors.runtime.actor import Actor
from actors.runtime.mailbox import Envelope, Mailbox
from actors.runtime.ref import ActorStopped

InboxT = TypeVar("InboxT")
MAX_BATCH = 64


class Runner(Generic[InboxT]):
    """One actor and its mailbox, which takes messages from the moment the runner is made."""

    def __init__(self, actor: Actor[InboxT], *, name: str, capacity: int) -> None:
        self.name = name
        self.mailbox: Mailbox[InboxT] = Mailbox(name, capacity, actor.is_control)
        self._actor = actor
        self._owed: set[asyncio.Future[Any]] = set()
        """Replies that somebody waits for: at the end they get ActorStopped."""

    async def run(self) -> None:
        """Run until cancelled: that is how to stop it. Raises what failed the actor. Afterwards nobody waits on it."""
        try:
            await self._live()
        except BaseExceptionGroup as group:
            raise _first_cause(group) from None
        finally:
            self._actor.bind(None)
            self.mailbox.close()
            self._fail_askers()
            await self._actor.stopped()

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._actor.bind(tasks)
            await self._actor.started()
            while True:
                await self._receive_batch(await self.mailbox.take())

    async def _receive_batch(self, first: Envelope[InboxT]) -> None:
        envelope: Envelope[InboxT] | None = first
        num_received = 0
        while envelope is not None:
            await self._receive(envelope)
            num_received += 1
            envelope = self.mailbox.take_nowait() if num_received < MAX_BATCH else None
        await self._actor.after_batch()
        if self.mailbox.depth:
            await asyncio.sleep(0)  # a flood of messages must not keep sockets and timers from their turn

    async def _receive(self, envelope: Envelope[InboxT]) -> None:
        if envelope.reply is None:
            await self._actor.receive(envelope.message)
            return
        self._owed.add(envelope.reply)
        envelope.reply.add_done_callback(self._owed.discard)
        answer = await self._actor.receive(envelope.message)
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(partial(_pass_on, envelope.reply))
        elif not envelope.reply.done():
            envelope.reply.set_result(answer)

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
