"""Who enters the batch, and who must leave it: admission of waiting requests, preemption when pages run short.

Pages for the whole prompt are taken at once: a prompt that has begun never waits for pages, and only decoding rows can
run short. Read `queue` for who is asked first, `group` for the moves themselves.
"""

from enum import Enum

from actors.scheduler.group import GroupState
from actors.scheduler.pages import Node
from actors.scheduler.request import Request, State


class Admission(Enum):
    """What became of the attempt."""

    ADMITTED = "admitted"
    HELD_BACK = "held back"
    NO_ROOM = "no room"


def admit(group: GroupState, request: Request, now: float) -> Admission:
    """Let the request that `group.queue.peek` gave into the batch, or leave everything as it was; a slot is free.

    A transaction: match the prefix, pin it, evict, allocate all pages of the known tokens. Everything that can fail is
    asked before anything is changed, so there is nothing to roll back.
    """
    num_pages = -(-len(request.tokens) // group.page_size)
    pool = group.pool
    if request.match is not None and num_pages - request.match[1] > pool.num_available and request.match[0].alive:
        return Admission.NO_ROOM  # still: a match only grows by pages of others, which are available once those end
    node, depth = request.match = group.cache.match(request.tokens, request.cache_salt, request.match)
    if group.hold_back.park(request, node, depth):
        group.queue.pop(request)
        return Admission.HELD_BACK
    # Each row that runs may want a page soon: without that reserve an admission could cause a preemption at once.
    wanted = num_pages - depth + group.num_running
    if wanted > pool.num_available:
        return Admission.NO_ROOM
    matched = group.cache.chain(node)
    if wanted + sum(1 for page in matched if not pool.refs(page)) > pool.num_available:
        return Admission.NO_ROOM
    group.queue.pop(request)
    group.num_waiting_tokens -= len(request.tokens)
    _enter(group, request, node, matched, num_pages)
    if request.admitted_at is None:
        request.admitted_at = now
        request.num_cached = min(request.num_prompt, request.num_computed)
        request.account.served += len(request.tokens) - request.num_computed
    return Admission.ADMITTED


def _enter(group: GroupState, request: Request, node: Node, matched: list[int], num_pages: int) -> None:
    for page in matched:
        group.pool.hold(page)
    request.pages = matched + [group.cache.allocate() for _ in range(num_pages - len(matched))]
    request.capacity = num_pages * group.page_size
    request.num_pages_sent = 0
    request.node = node if group.config.prefix_cache else None
    request.num_published = len(matched)
    request.match = None
    request.num_computed = len(matched) * group.page_size
    request.length = len(request.tokens)
    request.slot = group.free_slots.pop()
    request.state = State.RUNNING
    group.prefilling[request.slot] = request


def make_room(group: GroupState) -> None:
    """Preempt as few as it takes until every decoding row has room for its next token.

    The lowest priority goes, the newest first: before the step is planned, so its budget of this step is never spent.
    Its published pages stay cached and it keeps its place in the queue. Never takes one whose going frees nothing.
    """
    if len(group.decoding) <= group.pool.num_available:
        return  # even if all wanted a page
    wanting = {request for request in group.decoding.values() if wants_page(request)}
    while len(wanting) > group.pool.num_available:
        victim = _victim(group, wanting)
        wanting.discard(victim)
        _preempt(group, victim)


def wants_page(request: Request) -> bool:
    """Its next token does not fit into its pages."""
    return request.num_computed == request.capacity and request.length < request.stop_length


def _victim(group: GroupState, wanting: set[Request]) -> Request:
    helpful = [request for request in group.running() if request in wanting or _frees_any(group, request)]
    return max(helpful, key=lambda request: request.order)


def _frees_any(group: GroupState, request: Request) -> bool:
    return any(group.pool.refs(page) == 1 for page in request.pages)


def _preempt(group: GroupState, request: Request) -> None:
    group.leave(request)
    group.num_preemptions += 1
    group.enqueue(request)
