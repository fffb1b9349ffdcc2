"""Of several waiting requests that share an uncached prefix one goes first; the rest wait for its pages and hit them.

The one that goes first is a *leader*: admitted, with whole pages of known tokens still to publish. It is found by the
next page it will publish. A follower is parked until the leader has published the last page they share, or leaves.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush

from actors.scheduler.prefix_cache import Node
from actors.scheduler.request import Request, State

PageKey = tuple[Node, tuple[int, ...]]


@dataclass(slots=True)
class Leader:
    """`num_pages` it will publish in all; followers as a heap of (pages to wait for, arrival, request)."""

    request: Request
    num_pages: int
    next_page: PageKey
    followers: list[tuple[int, int, Request]] = field(default_factory=list)


class HoldBack:
    """Leaders of one group and who waits for them."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._leaders: dict[Request, Leader] = {}
        self._by_page: dict[PageKey, Leader] = {}
        self.num_parked = 0

    def lead(self, request: Request) -> None:
        """An admitted request begins to compute pages nobody has."""
        num_pages = len(request.tokens) // self._page_size
        if request.node is not None and request.num_published < num_pages:
            leader = Leader(request, num_pages, self._next_page(request, request.node))
            if leader.next_page not in self._by_page:
                self._leaders[request] = self._by_page[leader.next_page] = leader

    def park(self, request: Request, node: Node, depth: int) -> bool:
        """Hold back a waiting request whose match ended at `node` if somebody computes its next page now."""
        size = self._page_size
        limit = (len(request.tokens) - 1) // size
        if not self._by_page or depth >= limit:
            return False
        leader = self._by_page.get((node, request.page_key(depth, size)))
        if leader is None:
            return False
        limit = min(limit, leader.num_pages)
        shared = depth + 1
        while shared < limit and request.page_key(shared, size) == leader.request.page_key(shared, size):
            shared += 1
        heappush(leader.followers, (shared, request.arrival, request))
        self.num_parked += 1
        return True

    def published(self, request: Request) -> list[Request]:
        """The leader has published more; who need wait no longer."""
        leader = self._leaders.get(request)
        if leader is None:
            return []
        if request.node is None or request.num_published >= leader.num_pages:
            return self.leave(request)
        del self._by_page[leader.next_page]
        leader.next_page = self._next_page(request, request.node)
        if leader.next_page in self._by_page:  # it met another leader's way: one is enough
            del self._leaders[request]
            return self._release(leader, leader.num_pages)
        self._by_page[leader.next_page] = leader
        return self._release(leader, request.num_published)

    def leave(self, request: Request) -> list[Request]:
        """The request is no leader any more; who waited for it."""
        leader = self._leaders.pop(request, None)
        if leader is None:
            return []
        del self._by_page[leader.next_page]
        return self._release(leader, leader.num_pages)

    def discard(self, request: Request) -> None:
        """A parked request has ended; its entry goes with the leader's others."""
        request.state = State.ENDED
        self.num_parked -= 1

    def _release(self, leader: Leader, num_published: int) -> list[Request]:
        released = []
        while leader.followers and leader.followers[0][0] <= num_published:
            request = heappop(leader.followers)[2]
            if request.state is State.WAITING:
                released.append(request)
        self.num_parked -= len(released)
        return released

    def _next_page(self, request: Request, node: Node) -> PageKey:
        return node, request.page_key(request.num_published, self._page_size)
