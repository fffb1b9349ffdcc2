"""A bounded first-in-first-out queue whose full-policy is to wait, in order: what mailboxes and sockets are made of.

It has no coroutines: who must wait gets a future, so that callbacks of a transport can use it too.
"""

import asyncio
from collections import deque
from typing import Generic, TypeVar

from actors.runtime.ref import ActorStopped

ItemT = TypeVar("ItemT")


class Lane(Generic[ItemT]):
    """At most `capacity` items; those that find it full wait outside and enter in the order they came."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a lane needs room for one item at least, not {capacity}")
        self._capacity = capacity
        self._items: deque[ItemT] = deque()
        self._waiting: deque[tuple[ItemT, asyncio.Future[None]]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, item: ItemT) -> bool:
        """Put without waiting; False when full or when others wait already."""
        if self._waiting or len(self._items) >= self._capacity:
            return False
        self._items.append(item)
        return True

    def push(self, item: ItemT) -> asyncio.Future[None] | None:
        """Put; None when it is in, else a future that is done once it is in (cancel it to take the item back).

        The future raises ActorStopped when the lane is cleared first.
        """
        if self.offer(item):
            return None
        entered = asyncio.get_running_loop().create_future()
        self._waiting.append((item, entered))
        return entered

    def pop(self) -> ItemT | None:
        """Take the oldest item, let the next waiting one in; None when empty."""
        if not self._items:
            return None
        item = self._items.popleft()
        self._let_in()
        return item

    def clear(self, reason: str) -> list[ItemT]:
        """Empty it: waiting putters get ActorStopped(reason); returns the items that were in."""
        items = list(self._items)
        self._items.clear()
        while self._waiting:
            _, entered = self._waiting.popleft()
            if not entered.done():
                entered.set_exception(ActorStopped(reason))
        return items

    def _let_in(self) -> None:
        while self._waiting and len(self._items) < self._capacity:
            item, entered = self._waiting.popleft()
            if entered.done():  # cancelled while it waited
                continue
            self._items.append(item)
            entered.set_result(None)
