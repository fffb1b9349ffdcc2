"""Who waits, and who is next: the queue, and those held back for a prefix that somebody computes right now.

Priority first, raised by waiting; between tenants the least served; within a tenant the oldest. Tenants are charged by
virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). Of several waiting
requests that share an uncached prefix one goes first, and the rest hit its pages. Never admits: see `group`.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace

from actors.scheduler.pages import Node
from actors.scheduler.request import Account, Request, State

PageKey = tuple[Node, tuple[int, ...]]


class TokenCounters:
    """All tenants with a live request, and those still ahead of the others. The least charged goes first.

    A tenant that comes back from idleness starts at the present virtual time, so it cannot claim the time it was away.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._virtual_time = 0

    def open(self, tenant: str) -> Account:
        """The account to charge a new request to."""
        account = self._accounts.setdefault(tenant, Account(tenant))
        if account.num_live == 0:
            account.served = max(account.served, self._virtual_time)
        account.num_live += 1
        return account

    def close(self, account: Account) -> None:
        """A request of it has ended; a tenant that is owed nothing and owes nothing is forgotten."""
        account.num_live -= 1
        if account.num_live == 0 and account.served <= self._virtual_time:
            del self._accounts[account.tenant]

    def advance(self, account: Account) -> None:
        """A request of this account was chosen, so it was the least served one that wants anything."""
        self._virtual_time = max(self._virtual_time, account.served)


@dataclass(slots=True)
class Level:
    """One priority's waiting requests."""

    lines: dict[Account, list[tuple[int, Request]]] = field(default_factory=dict)
    """(arrival, request) heaps."""
    order: list[tuple[int, int, Account]] = field(default_factory=list)
    """(tokens served as far as known here, tie break, tenant) heap, one entry a line."""


class WaitingQueue:
    """Requests with `queued` set; `num_queued` is how many.

    Priority levels (at most 21) hold a heap of tenants by tokens served, each with a heap of requests by arrival, so a
    look costs the same with ten waiting as with thousands, and a request that comes back keeps its place. Tokens served
    only grow and only for tenants that run, so an outdated entry is put right when it surfaces.
    """

    def __init__(self, counters: TokenCounters, aging_s: float) -> None:
        self._counters = counters
        self._aging_s = aging_s
        self._levels: dict[int, Level] = {}
        self.num_queued = 0
        self._num_dropped = 0

    def push(self, request: Request) -> None:
        """Wait, at the place that the arrival gives."""
        request.queued = True
        self.num_queued += 1
        level = self._levels.setdefault(request.priority, Level())
        line = level.lines.get(request.account)
        if line is None:
            line = level.lines[request.account] = []
            heappush(level.order, (request.account.served, request.arrival, request.account))
        heappush(line, (request.arrival, request))

    def peek(self, now: float) -> Request | None:
        """The next one, None when nobody waits."""
        best: Request | None = None
        best_rank = (0.0, 0)
        for priority in list(self._levels):
            request = self._first(self._levels[priority])
            if request is None:
                del self._levels[priority]
                continue
            rank = (priority + (now - request.submitted_at) / self._aging_s, -request.arrival)
            if best is None or rank > best_rank:
                best, best_rank = request, rank
        return best

    def pop(self, request: Request) -> None:
        """Take out the request that `peek` gave."""
        request.queued = False
        self.num_queued -= 1
        heappop(self._levels[request.priority].lines[request.account])
        self._counters.advance(request.account)

    def discard(self, request: Request) -> None:
        """It has ended while it waited and is never pushed again.

        Its entry goes when it surfaces, or when such entries are the majority.
        """
        request.queued = False
        self.num_queued -= 1
        self._num_dropped += 1
        if self._num_dropped > self.num_queued + 64:
            self._compact()

    def _first(self, level: Level) -> Request | None:
        while level.order:
            served, tie, account = level.order[0]
            line = level.lines[account]
            while line and not line[0][1].queued:
                heappop(line)
                self._num_dropped -= 1
            if not line:
                heappop(level.order)
                del level.lines[account]
            elif served != account.served:
                heapreplace(level.order, (account.served, tie, account))
            else:
                return line[0][1]
        return None

    def _compact(self) -> None:
        for level in self._levels.values():
            for line in level.lines.values():
                line[:] = [entry for entry in line if entry[1].queued]
                heapify(line)
        self._num_dropped = 0


@dataclass(slots=True)
class Leader:
    """`num_pages` it will publish in all; followers as a heap of (pages to wait for, arrival, request)."""

    request: Request
    num_pages: int
    next_page: PageKey
    followers: list[tuple[int, int, Request]] = field(default_factory=list)


class HoldBack:
    """Leaders of one group and who waits for them.

    A *leader* is admitted, with whole pages of known tokens still to publish. It is found by the next page it will
    publish. A follower is parked until the leader has published the last page they share, or leaves.
    """

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
