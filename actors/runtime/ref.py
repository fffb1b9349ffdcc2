"""How one actor speaks to another: the same behaviour in one process and across processes.

Implementations: `tests.actors.runtime.local.LocalRef`, `actors.runtime.transport.RemoteRef`.
"""

from typing import Any, Protocol, TypeVar

InboxT_contra = TypeVar("InboxT_contra", contravariant=True)


class ActorStopped(Exception):  # noqa: N818 - it names what happened, like asyncio.CancelledError
    """The actor behind a ref is gone; a message was not, and will not be, received."""


class ActorRef(Protocol[InboxT_contra]):
    """An address. Messages of one sender arrive in the order they were sent (control messages may overtake)."""

    @property
    def name(self) -> str:
        """The actor's name, unique in its system: `scheduler`, `worker:0`."""

    async def tell(self, message: InboxT_contra) -> None:
        """Send; waits while the mailbox (or the socket to it) is full. Raises ActorStopped."""

    def try_tell(self, message: InboxT_contra) -> bool:
        """Send without waiting; False when full or stopped, and then nothing was sent."""

    async def ask(self, message: InboxT_contra, *, timeout_s: float) -> Any:  # noqa: ANN401 - what `receive` returned
        """Send and wait for what the actor's `receive` returns. Raises ActorStopped or TimeoutError."""
