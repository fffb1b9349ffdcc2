"""What an actor is. It owns its state alone and reads one typed inbox; see `actors.runtime.ref` for how to reach one.

`actors.runtime.runner` calls the hooks.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

InboxT = TypeVar("InboxT")


class Actor(Generic[InboxT]):
    """Subclass, write one `receive` with one `match`. An exception that leaves any hook fails the actor.

    The runtime calls, on one task: `started`, then `receive` for each message in order and `after_batch` whenever the
    messages that were waiting (at most 64) have been received, and at the end `stopped`, whatever happened.
    """

    _tasks: asyncio.TaskGroup | None = None

    def is_control(self, message: InboxT) -> bool:  # noqa: ARG002 - the default has no control messages
        """Whether `message` goes by the priority lane: past everything that waits, even when the mailbox is full.

        Only for messages whose order among the others does not matter.
        """
        return False

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
        if self._tasks is None:
            work.close()
            raise RuntimeError(f"cannot spawn {name!r}: the actor is not running")
        self._tasks.create_task(work, name=name)

    def bind(self, tasks: asyncio.TaskGroup | None) -> None:
        """Give the actor the task group of its life (None: it is over). Called by the runner only."""
        self._tasks = tasks
