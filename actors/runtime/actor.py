"""What an actor is. It owns its state alone and reads one typed inbox.

See `actors.runtime.ref` for how to reach one, `actors.runtime.mailbox` for how it gets its messages.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar, Generic, TypeVar

from prometheus_client import CollectorRegistry

InboxT = TypeVar("InboxT")


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
