"""The scheduler's side of one group of devices: its pages, its row slots, who runs in them, and the steps in flight.

Values and the moves between them; the decisions are in `admission` and `plan`.
"""

from collections import deque
from dataclasses import dataclass, field

from actors.scheduler.config import SchedulerConfig
from actors.scheduler.cost import CostModel, StepLoad
from actors.scheduler.pages import PagePool, PrefixCache
from actors.scheduler.queue import HoldBack, TokenCounters, WaitingQueue
from actors.scheduler.request import Request, State


@dataclass(slots=True)
class InFlight:
    """A step that the device has been asked for and has not answered."""

    step: int
    load: StepLoad
    num_rows: int
    num_held: int
    """Row slots held while it was planned."""
    warmed: list[Request] = field(default_factory=list)
    """Warm requests whose prompt this step completes."""


class GroupState:
    """One KV pool and what runs in it. A worker that comes back in a new epoch gets a new one."""

    def __init__(  # noqa: PLR0913, PLR0917 - one caller, which names them alike
        self, index: int, epoch: int, num_pages: int, page_size: int, config: SchedulerConfig, counters: TokenCounters
    ) -> None:
        self.index = index
        self.epoch = epoch
        self.page_size = page_size
        self.config = config
        self.pool = PagePool(num_pages)
        self.cache = PrefixCache(self.pool, page_size, enabled=config.prefix_cache)
        self.queue = WaitingQueue(counters, config.aging_s)
        self.hold_back = HoldBack(page_size)
        self.max_rows = max(1, min(config.max_running, config.step_tokens - page_size))
        self.free_slots = list(range(self.max_rows - 1, -1, -1))
        self.decoding: dict[int, Request] = {}
        """By slot: at most one token to compute. With `prefilling` everyone who runs."""
        self.prefilling: dict[int, Request] = {}
        self.in_flight: deque[InFlight] = deque()
        self.max_in_flight = 2 if config.overlap else 1
        self.cost = CostModel()
        self.next_step = 0
        self.progressed_at = 0.0
        """When it was last asked for a step while idle, or answered one."""
        self.num_waiting_tokens = 0
        """Known tokens of the requests that wait, held back ones included."""
        self.num_new = 0
        """Requests that began to wait since the latest plan."""
        self.num_preemptions = 0

    @property
    def num_running(self) -> int:
        """Row slots taken by live requests."""
        return len(self.decoding) + len(self.prefilling)

    @property
    def num_waiting(self) -> int:
        """Queued and held back."""
        return self.queue.num_queued + self.hold_back.num_parked

    @property
    def num_delayed(self) -> int:
        """Waiting requests that the next plan has no free slot for, or that an earlier plan left waiting."""
        return max(0, self.num_waiting - min(self.num_new, len(self.free_slots)))

    def running(self) -> list[Request]:
        """Everyone who holds a slot."""
        return [*self.decoding.values(), *self.prefilling.values()]

    def enqueue(self, request: Request) -> None:
        """Let it wait for admission, at its place."""
        request.state = State.WAITING
        self.num_waiting_tokens += len(request.tokens)
        self.num_new += 1
        self.queue.push(request)

    def discard(self, request: Request) -> None:
        """A waiting request has ended."""
        self.num_waiting_tokens -= len(request.tokens)
        if request.queued:
            self.queue.discard(request)
        else:
            self.hold_back.discard(request)

    def publish(self, request: Request, num_tokens: int) -> None:
        """Let whole pages of the first `num_tokens` tokens be matched: known, and computed by steps already planned."""
        size = self.page_size
        while request.node is not None and request.num_published < num_tokens // size:
            index = request.num_published
            request.node = self.cache.insert(request.node, request.page_key(index, size), request.pages[index])
            request.num_published += 1
        for follower in self.hold_back.published(request):
            self.queue.push(follower)

    def leave(self, request: Request) -> None:
        """Take a running request out of the batch: its slot and pages are free, published pages stay cached.

        A step in flight may still write to these pages. Steps run in order, so whoever gets them writes later; and into
        what is published it writes what the published tokens say.
        """
        self.decoding.pop(request.slot, None)
        self.prefilling.pop(request.slot, None)
        self.free_slots.append(request.slot)
        request.slot = -1
        request.incarnation += 1  # what is in flight for it is stale from here on
        for page in reversed(request.pages):
            self.pool.release(page)
        request.pages = []
        request.capacity = request.num_pages_sent = request.num_published = 0
        request.node = None
        for follower in self.hold_back.leave(request):
            self.queue.push(follower)

    def check_idle(self) -> None:
        """Stop the part if no request lives and something is still taken. O(1), so it is always on."""
        taken = (self.pool.num_held, self.max_rows - len(self.free_slots), self.num_waiting, self.num_waiting_tokens)
        if any(taken):
            raise AssertionError(f"idle, yet held pages, slots, waiting requests, waiting tokens are {taken}")

    def check(self) -> None:
        """Stop the part unless page counts, tables and slots agree. O(pages): for tests, debugging and idle moments."""
        held: dict[int, int] = {}
        for request in self.running():
            for page in request.pages:
                held[page] = held.get(page, 0) + 1
        self.pool.check(held)
        self.cache.check()
        slots = sorted([*self.free_slots, *self.decoding, *self.prefilling])
        if slots != list(range(self.max_rows)):
            raise AssertionError(f"row slots lost or doubled: {slots}")
        if any(request.state is not State.RUNNING for request in self.running()):
            raise AssertionError("a request that does not run holds a slot")
