"""What one step computes: all decodes, then prompts already begun, then waiting ones, under a token budget.

`plan_step` is a function of the group's state and `now` alone. It moves the state as if the step had been executed:
steps run in the order planned, so the next plan may build on this one before its result is known (overlap). Read
`admission` for who may begin, `apply` for what the answer changes.
"""

from actors.scheduler.admission import Admission, admit, make_room
from actors.scheduler.cost import StepLoad
from actors.scheduler.group import GroupState, InFlight
from actors.scheduler.request import Request
from protocol.step import RowStart, StepPlan, StepRow

MAX_LOOKS = 64
"""Waiting requests looked at in one step beyond those admitted: many may share one leader's prefix."""


def plan_step(group: GroupState, now: float) -> StepPlan | None:
    """The next step; None when there is nothing to compute."""
    step = Step(group)
    step.go_on()
    step.admit_waiting(now)
    return step.finish(group.num_running)


class Step:
    """A step in the making. Neither side starves: decodes always go, a page of prefill fits beside them."""

    def __init__(self, group: GroupState) -> None:
        """Begin with the decoding rows; who must leave for want of pages has left."""
        make_room(group)
        self.group = group
        self.rows, self.num_kv_tokens = _decode_rows(group)
        self.num_decode_rows = len(self.rows)
        self.budget = max(group.config.step_tokens - self.num_decode_rows, group.page_size)
        self.num_prefill_tokens = 0
        self.starts: list[RowStart] = []
        self.computed: list[Request] = []
        """Those whose prompts this step goes on with."""

    def go_on(self) -> None:
        """Prompts already begun, in the order they began."""
        for request in list(self.group.prefilling.values()):
            if not self.compute(request):
                return

    def admit_waiting(self, now: float) -> None:
        """Waiting requests in the order of the queue, while there is budget and room."""
        group = self.group
        looks = MAX_LOOKS
        has_budget = self.budget > 0
        while has_budget and group.free_slots and looks and (request := group.queue.peek(now)):
            outcome = admit(group, request, now)
            if outcome is Admission.NO_ROOM:
                break
            if outcome is Admission.HELD_BACK:
                looks -= 1
                continue
            group.hold_back.lead(request)
            self.starts.append(request.row_start())
            has_budget = self.compute(request)

    def compute(self, request: Request) -> bool:
        """Give the request's next chunk a row; False when the budget is used up."""
        start = request.num_computed
        missing = request.length - start
        count = self.chunk(request, missing)
        if count <= 0:
            return False
        end = start + count
        is_last = count == missing
        first_new = request.num_pages_sent
        request.num_pages_sent = max(first_new, -(-end // self.group.page_size))
        new_pages = tuple(request.pages[first_new : request.num_pages_sent])
        self.rows.append(StepRow(request.slot, start, count, is_last and not request.warm, new_pages))
        self.budget -= count
        self.num_prefill_tokens += count
        self.num_kv_tokens += end
        request.num_computed = end
        self.computed.append(request)
        if is_last:
            del self.group.prefilling[request.slot]
            self.group.decoding[request.slot] = request
            if not request.warm:
                request.length += 1
        return self.budget > 0

    def chunk(self, request: Request, missing: int) -> int:
        """What fits, ending at a page's end if it is not the last: whole pages can be shared at once."""
        if missing <= self.budget:
            return missing
        size = self.group.page_size
        aligned = (request.num_computed + self.budget) // size * size - request.num_computed
        return aligned if aligned > 0 else max(0, self.budget)

    def finish(self, num_held: int) -> StepPlan | None:
        """Put the step in flight; `num_held`: row slots that are taken, whether or not they do useful work.

        Later steps may match what this one computes; rows of one step never read each other's pages.
        """
        group = self.group
        for request in self.computed:
            group.publish(request, request.num_computed)
        group.num_new = 0
        if not self.rows:
            return None
        load = StepLoad(self.num_decode_rows, self.num_prefill_tokens, self.num_kv_tokens)
        warmed = [request for request in self.computed if request.warm and request.num_computed == request.length]
        step = group.next_step
        group.next_step += 1
        group.in_flight.append(InFlight(step, load, len(self.rows), num_held, warmed))
        return StepPlan(group.epoch, step, self.starts, self.rows)


def _decode_rows(group: GroupState) -> tuple[list[StepRow], int]:
    """One row for each decoding request that may have one more token, and the KV tokens that attention reads for them.

    The hot path: 256 rows in each step.
    """
    rows: list[StepRow] = []
    append = rows.append
    num_kv_tokens = 0
    for slot, request in group.decoding.items():
        length = request.length
        if length >= request.stop_length:
            continue  # its last token is in flight
        start = request.num_computed
        if start == request.capacity:
            append(StepRow(slot, start, 1, True, (_next_page(group, request),)))
        else:
            append(StepRow(slot, start, 1, True))
        request.num_computed = length
        request.length = length + 1
        num_kv_tokens += length
    return rows, num_kv_tokens


def _next_page(group: GroupState, request: Request) -> int:
    """Publish the full page, open another. Tokens up to here are known: at most one step is in flight."""
    group.publish(request, request.num_computed)
    page = group.cache.allocate()  # make_room has seen to it
    request.pages.append(page)
    request.capacity += group.page_size
    return page
