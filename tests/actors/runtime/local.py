"""Actors that share one process and one event loop, for tests; behaves as `actors.runtime.transport` does."""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from actors.runtime.actor import Actor
from actors.runtime.mailbox import Envelope, Mailbox, Runner
from actors.runtime.ref import ActorStopped

InboxT = TypeVar("InboxT")


class LocalRef(Generic[InboxT]):
    """An ActorRef to a mailbox of this process."""

    def __init__(self, name: str, mailbox: Mailbox[InboxT]) -> None:
        self._name = name
        self._mailbox = mailbox

    @property
    def name(self) -> str:
        """The actor's name."""
        return self._name

    async def tell(self, message: InboxT) -> None:
        """Send; waits while the mailbox is full. Raises ActorStopped."""
        await put(self._mailbox, Envelope(message))

    def try_tell(self, message: InboxT) -> bool:
        """Send without waiting; False when full or stopped."""
        return offer(self._mailbox, Envelope(message))

    async def ask(self, message: InboxT, *, timeout_s: float) -> Any:
        """Send and wait for the answer. Raises ActorStopped or TimeoutError."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await put(self._mailbox, Envelope(message, reply))
                return await reply
        finally:
            reply.cancel()


async def put(mailbox: Mailbox[InboxT], envelope: Envelope[InboxT]) -> None:
    """Put, waiting for room. Raises ActorStopped."""
    entered = mailbox.push(envelope)
    if entered is not None:
        await entered


def offer(mailbox: Mailbox[InboxT], envelope: Envelope[InboxT]) -> bool:
    """Put without waiting; False when full or closed."""
    try:
        entered = mailbox.push(envelope)
    except ActorStopped:
        return False
    return entered is None or not entered.cancel()


@dataclass
class _Life:
    runner: Runner[Any]
    task: asyncio.Task[None]


class LocalSystem:
    """Async context manager that owns the actors started in it; leaving it stops them, the latest first.

    An actor's failure touches no other actor: `wait_failed` tells it. What nobody waited for is raised on leaving.
    """

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._failed: asyncio.Queue[tuple[str, BaseException]] = asyncio.Queue()  # one entry for each actor at most
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name in reversed(list(self._lives)):
            await self.stop(name)
        await self._tasks.__aexit__(kind, error, traceback)
        if error is None and not self._failed.empty():
            _, failure = self._failed.get_nowait()
            raise failure

    def start(self, actor: Actor[InboxT], *, name: str, capacity: int = 1024) -> LocalRef[InboxT]:
        """Run `actor` from now on. Raises ValueError if an actor of that name runs."""
        if name in self._lives:
            raise ValueError(f"an actor named {name!r} is running")
        runner = Runner(actor, name=name, capacity=capacity)
        self._lives[name] = _Life(runner, self._tasks.create_task(self._run(runner), name=name))
        return LocalRef(name, runner.mailbox)

    def is_running(self, name: str) -> bool:
        """Whether an actor of that name runs."""
        return name in self._lives

    async def stop(self, name: str) -> None:
        """Cancel the actor and wait until its `stopped` has run. Raises KeyError if none of that name runs."""
        life = self._lives[name]
        life.task.cancel()
        await asyncio.wait([life.task])
        self._lives.pop(name, None)

    async def wait_failed(self) -> tuple[str, BaseException]:
        """Wait for the next actor that fails: its name and what failed it."""
        return await self._failed.get()

    async def _run(self, runner: Runner[Any]) -> None:
        try:
            await runner.run()
        except Exception as error:  # noqa: BLE001 - handed to whoever supervises
            self._lives.pop(runner.name, None)
            self._failed.put_nowait((runner.name, error))
