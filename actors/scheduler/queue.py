"""Who is next: priority first, raised by waiting; between tenants the least served; within a tenant the oldest.

Priority levels (at most 21) hold a heap of tenants by tokens served, each with a heap of requests by arrival, so a look
costs the same with ten waiting as with thousands, and a request that comes back keeps its place. Tokens served only
grow and only for tenants that run, so an outdated entry is put right when it surfaces. Never admits: see `admission`.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace

from actors.scheduler.fairness import Account, TokenCounters
from actors.scheduler.request import Request


@dataclass(slots=True)
class Level:
    """One priority's waiting requests."""

    lines: dict[Account, list[tuple[int, Request]]] = field(default_factory=dict)
    """(arrival, request) heaps."""
    order: list[tuple[int, int, Account]] = field(default_factory=list)
    """(tokens served as far as known here, tie break, tenant) heap, one entry a line."""


class WaitingQueue:
    """Requests with `queued` set. `len` is how many."""

    def __init__(self, counters: TokenCounters, aging_s: float) -> None:
        self._counters = counters
        self._aging_s = aging_s
        self._levels: dict[int, Level] = {}
        self._num_queued = 0
        self._num_dropped = 0

    def __len__(self) -> int:
        return self._num_queued

    def push(self, request: Request) -> None:
        """Wait, at the place that the arrival gives."""
        request.queued = True
        self._num_queued += 1
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
        self._num_queued -= 1
        heappop(self._levels[request.priority].lines[request.account])
        self._counters.advance(request.account)

    def discard(self, request: Request) -> None:
        """It has ended while it waited and is never pushed again.

        Its entry goes when it surfaces, or when such entries are the majority.
        """
        request.queued = False
        self._num_queued -= 1
        self._num_dropped += 1
        if self._num_dropped > self._num_queued + 64:
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
