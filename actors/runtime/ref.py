"""How one actor speaks to another, whether they share a process or not: the address, and what may go wrong.

Between processes it is `actors.runtime.channel.RemoteRef`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

InboxT_contra = TypeVar("InboxT_contra", contravariant=True)


class ActorStopped(Exception):  # noqa: N818 - it names what happened, like asyncio.CancelledError
    """The actor behind a ref is gone; a message was not, and will not be, received."""


class MessageRefused(Exception):  # noqa: N818 - pairs with ActorStopped
    """The actor's inbox has no such message, or it is too large."""


class ActorRef(Protocol[InboxT_contra]):
    """An address. Messages of one sender arrive in the order they were sent (control messages may overtake)."""

    @property
    def name(self) -> str:
        """The actor's name, unique in its system: `scheduler`, `worker:0`."""

    async def tell(self, message: InboxT_contra) -> None:
        """Send; waits while the mailbox (or the socket to it) is full. Raises ActorStopped."""

    def try_tell(self, message: InboxT_contra) -> bool:
        """Send without waiting; False when full, stopped or not connected yet, and then nothing was sent."""

    async def ask(self, message: InboxT_contra, *, timeout_s: float) -> Any:  # noqa: ANN401 - what `receive` returned
        """Send and wait for what the actor's `receive` returns. Raises ActorStopped or TimeoutError."""


@dataclass(frozen=True)
class Inbox:
    """What a sender in another process must know about messages beside their types."""

    replies: Mapping[type, Any]
    """Each message type that may be asked, and the type of its answer."""
    control: tuple[type, ...]
    """Messages that go by a socket of their own, past everything that waits."""
    on_refused: Callable[[str], None]
    """Hears that a told message was none of the inbox: the sender's mistake. (An ask raises MessageRefused.)"""
