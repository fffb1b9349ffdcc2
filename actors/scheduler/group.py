"""The scheduler's side of one group of devices: its pages, its row slots, who runs in them, and the steps in flight.

A request's moves are here: it waits, is let in, publishes its pages, is preempted, leaves. Read `queue` for who is
next, `pages` for what is shared, `step` for what those who run compute.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from actors.scheduler.config import SchedulerConfig
from actors.scheduler.cost import CostModel, StepLoad
from actors.scheduler.pages import Node, PagePool, PrefixCache
from actors.scheduler.queue import HoldBack, TokenCounters, WaitingQueue
from actors.scheduler.request import Request, State
from protocol.step import MAX_IN_FLIGHT


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


class Admission(Enum):
    """What became of the attempt."""

    ADMITTED = "admitted"
    HELD_BACK = "held back"
    NO_ROOM = "no room"


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
        self.max_in_flight = MAX_IN_FLIGHT if config.overlap else 1
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

    def admit(self, request: Request, now: float) -> Admission:
        """Let the request that `queue.peek` gave into the batch, or leave everything as it was; a slot is free.

        A transaction: match the prefix, pin it, evict, allocate all pages of the known tokens. Everything that can fail
        is asked before anything is changed, so there is nothing to roll back. Pages for the whole prompt are taken at
        once: a prompt that has begun never waits for pages, and only decoding rows can run short (see `make_room`).
        """
        num_pages = -(-len(request.tokens) // self.page_size)
        pool = self.pool
        if request.match is not None and num_pages - request.match[1] > pool.num_available and request.match[0].alive:
            return Admission.NO_ROOM  # still: a match only grows by pages of others, which are available once those end
        node, depth = request.match = self.cache.match(request.tokens, request.cache_salt, request.match)
        if self.hold_back.park(request, node, depth):
            self.queue.pop(request)
            return Admission.HELD_BACK
        # Each row that runs may want a page soon: without that reserve an admission could cause a preemption at once.
        wanted = num_pages - depth + self.num_running
        if wanted > pool.num_available:
            return Admission.NO_ROOM
        matched = self.cache.chain(node)
        if wanted + sum(1 for page in matched if not pool.refs(page)) > pool.num_available:
            return Admission.NO_ROOM
        self.queue.pop(request)
        self.num_waiting_tokens -= len(request.tokens)
        self._enter(request, node, matched, num_pages)
        if request.admitted_at is None:
            request.admitted_at = now
            request.num_cached = min(request.num_prompt, request.num_computed)
            request.account.served += len(request.tokens) - request.num_computed
        return Admission.ADMITTED

    def make_room(self) -> None:
        """Preempt as few as it takes until every decoding row has room for its next token.

        The lowest priority goes, the newest first: before the step is planned, so its budget of this step is not spent.
        Its published pages stay cached and it keeps its place in the queue. Never takes one whose going frees nothing.
        """
        wanting = {request for request in self.decoding.values() if request.wants_page()}
        while len(wanting) > self.pool.num_available:
            helpful = [request for request in self.running() if request in wanting or self._frees_any(request)]
            victim = max(helpful, key=lambda request: request.order)
            wanting.discard(victim)
            self.leave(victim)
            self.num_preemptions += 1
            self.enqueue(victim)

    def publish(self, request: Request, num_tokens: int) -> None:
        """Let whole pages of the first `num_tokens` tokens be matched: known, and computed by steps already planned."""
        size = self.page_size
        node, index = request.node, request.num_published
        while node is not None and index < num_tokens // size:
            node = self.cache.insert(node, request.page_key(index, size), request.pages[index])
            index += 1
        request.node, request.num_published = node, index
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
        lost = self.pool.num_pages - self.pool.num_free - self.pool.num_cached
        taken = (lost, self.pool.num_held, self.max_rows - len(self.free_slots), self.num_waiting)
        if any(taken) or self.num_waiting_tokens:
            raise AssertionError(f"idle, yet lost pages, held pages, slots, waiting requests are {taken}")

    def check(self) -> None:
        """Stop the part unless page counts, tables and slots agree. O(pages): for tests and debugging."""
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

    def _enter(self, request: Request, node: Node, matched: list[int], num_pages: int) -> None:
        for page in matched:
            self.pool.hold(page)
        request.pages = matched + [self.cache.allocate() for _ in range(num_pages - len(matched))]
        request.capacity = num_pages * self.page_size
        request.num_pages_sent = 0
        request.node = node if self.config.prefix_cache else None
        request.num_published = len(matched)
        request.match = None
        request.num_computed = len(matched) * self.page_size
        request.length = len(request.tokens)
        request.slot = self.free_slots.pop()
        request.state = State.RUNNING
        self.prefilling[request.slot] = request

    def _frees_any(self, request: Request) -> bool:
        return any(self.pool.refs(page) == 1 for page in request.pages)
