"""Pages are exhausted: take requests out of the batch until every decoding row has room for its next token.

The lowest priority goes, the newest first. It goes before the step is planned, so its budget of this step is never
spent; its published pages stay cached and it keeps its place in the queue. Never takes one whose going frees nothing.
"""

from actors.scheduler.group import GroupState
from actors.scheduler.request import Request


def make_room(group: GroupState) -> None:
    """Preempt as few as it takes."""
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
