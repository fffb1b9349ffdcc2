"""Small actors and the two ways to reach one, for the tests of this folder."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from actors.runtime.actor import Actor
from actors.runtime.channel import RemoteRef
from actors.runtime.mailbox import Runner
from actors.runtime.ref import ActorRef, Inbox
from actors.runtime.transport import serve_mailbox
from tests.actors.runtime.clock import settle
from tests.actors.runtime.local import LocalSystem


class Note(Struct, frozen=True, tag=True):
    text: str


class Urgent(Struct, frozen=True, tag=True):
    text: str


class Break(Struct, frozen=True, tag=True):
    reason: str


class Alien(Struct, frozen=True, tag=True):
    pass


NoteInbox = Note | Urgent | Break
INBOX = Inbox({Note: str, Urgent: str, Break: str, Alien: str}, (Urgent,), on_refused=print)
Reach = Callable[..., AbstractAsyncContextManager[ActorRef[Any]]]


class BrokenError(Exception):
    pass


class Notebook(Actor[NoteInbox]):
    """Writes down what it receives; `gate` holds it back inside `receive`."""

    control = (Urgent,)

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.hooks: list[str] = []
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def started(self) -> None:
        self.hooks.append("started")

    async def receive(self, message: NoteInbox) -> str:
        self.entered.set()
        await self.gate.wait()
        if isinstance(message, Break):
            raise BrokenError(message.reason)
        self.texts.append(message.text)
        return f"noted {message.text}"

    async def after_batch(self) -> None:
        self.hooks.append(f"after {len(self.texts)}")

    async def stopped(self) -> None:
        self.hooks.append("stopped")


@asynccontextmanager
async def reach_locally(actor: Actor[Any], capacity: int = 64) -> AsyncIterator[ActorRef[Any]]:
    async with LocalSystem() as system:
        yield system.start(actor, name="notebook", capacity=capacity)
        if system.is_running("notebook"):
            await system.stop("notebook")
        else:
            await system.wait_failed()


def over_sockets(folder: Path) -> Reach:
    @asynccontextmanager
    async def reach(actor: Actor[Any], capacity: int = 64) -> AsyncIterator[ActorRef[Any]]:
        async with alive(actor, folder / "notebook.sock", capacity):
            ref: RemoteRef[Any] = RemoteRef(folder / "notebook.sock", "notebook", INBOX, connect_timeout_s=0.2)
            yield ref
            await ref.close()

    return reach


@asynccontextmanager
async def alive(actor: Actor[Any], path: Path, capacity: int = 64) -> AsyncIterator[asyncio.Task[None]]:
    """One life of an actor, served at `path`; it also ends when the actor fails."""
    runner = Runner(actor, name="notebook", capacity=capacity)

    async def live() -> None:
        async with serve_mailbox(runner.mailbox, path, NoteInbox):
            await runner.run()

    life = asyncio.create_task(live())
    yield life
    life.cancel()
    await asyncio.wait([life])
    await settle()  # so that everybody has noticed
