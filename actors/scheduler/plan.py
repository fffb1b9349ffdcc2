"""What one step computes: all decodes, then prompts already begun, then waiting ones, under a token budget.

`plan_step` is a function of the group's state and `now` alone. It moves the state as if the step had been executed:
steps run in the order planned, so the next plan may build on this one before its result is known (overlap).
"""

from actors.scheduler.admission import Admission, admit
from actors.scheduler.cost import StepLoad
from actors.scheduler.group import GroupState, InFlight
from actors.scheduler.preempt import make_room
from actors.scheduler.request import Request
from protocol.step import RowStart, StepPlan, StepRow

MAX_LOOKS = 64
"""Waiting requests looked at in one step beyond those admitted: many may share one leader's prefix."""


def plan_step(group: GroupState, now: float) -> StepPlan | None:
    """The next step; None when there is nothing to compute or enough is in flight."""
    if len(group.in_flight) >= group.max_in_flight:
        return None
    make_room(group)
    rows, num_kv_tokens = _decode_rows(group)
    num_decode_rows = len(rows)
    prefill = _Prefill(group, rows, group.config.step_tokens - num_decode_rows)
    prefill.go_on()
    prefill.admit_waiting(now)
    prefill.publish()
    group.num_new = 0
    if not rows:
        return None
    load = StepLoad(num_decode_rows, prefill.num_tokens, num_kv_tokens + prefill.num_kv_tokens)
    num_held = group.gate.num_held(group.num_running)
    group.in_flight.append(InFlight(group.next_step, load, len(rows), num_held, prefill.warmed))
    group.next_step += 1
    return StepPlan(group.epoch, group.next_step - 1, prefill.starts, rows)


def _decode_rows(group: GroupState) -> tuple[list[StepRow], int]:
    """One row for each decoding request that may have one more token. The hot path: 256 rows in each step."""
    rows: list[StepRow] = []
    append = rows.append
    num_kv_tokens = 0
    for slot, request in group.decoding.items():
        length = request.length
        if length >= request.stop_length:
            continue  # its last token is in flight
        start = request.num_computed
        if start == request.capacity:
            group.publish(request, start)
            append(StepRow(slot, start, 1, True, (_grow(group, request),)))
        else:
            append(StepRow(slot, start, 1, True))
        request.num_computed = length
        request.length = length + 1
        num_kv_tokens += length
    return rows, num_kv_tokens


def _grow(group: GroupState, request: Request) -> int:
    page = group.cache.allocate()  # make_room has seen to it
    request.pages.append(page)
    request.capacity += group.page_size
    return page


class _Prefill:
    """Chunks of prompts in one step. Neither side starves: decodes always go, a page of prefill fits beside them."""

    def __init__(self, group: GroupState, rows: list[StepRow], budget: int) -> None:
        self.group = group
        self.rows = rows
        self.budget = max(budget, group.page_size)
        self.starts: list[RowStart] = []
        self.computed: list[Request] = []
        self.warmed: list[Request] = []
        self.num_tokens = 0
        self.num_kv_tokens = 0

    def go_on(self) -> None:
        """Prompts already begun, in the order they began."""
        for request in list(self.group.prefilling.values()):
            if not self._compute(request):
                return

    def admit_waiting(self, now: float) -> None:
        """Waiting requests in the order of the queue, while there is budget and room."""
        group = self.group
        if not group.gate.is_open(group.num_running):
            return
        looks = MAX_LOOKS
        while group.free_slots and looks and (self.budget > 0 or group.gate.is_static):
            request = group.queue.peek(now)
            if request is None or not self._may_begin(request):
                break
            outcome = admit(group, request, now)
            if outcome is Admission.NO_ROOM:
                break
            if outcome is Admission.HELD_BACK:
                looks -= 1
                continue
            self.starts.append(request.row_start())
            self._compute(request)
        group.gate.close(group.num_running)

    def publish(self) -> None:
        """Let later steps match what this one computes; rows of one step never read each other's pages."""
        for request in self.computed:
            self.group.publish(request, request.num_computed)

    def _may_begin(self, request: Request) -> bool:
        """Unchunked prompts begin only where they fit whole, or alone."""
        whole = not self.group.config.chunked_prefill and not self.group.gate.is_static
        return not whole or self.num_tokens == 0 or len(request.tokens) <= self.budget

    def _compute(self, request: Request) -> bool:
        """Give the request's next chunk a row; False when the budget is used up."""
        group = self.group
        missing = request.length - request.num_computed
        if group.config.chunked_prefill:
            count = self._chunk(request, missing)
        else:
            count = missing if missing <= self.budget or self.num_tokens == 0 else 0
        if count <= 0:
            return False
        done = count == missing
        end = request.num_computed + count
        self.rows.append(
            StepRow(request.slot, request.num_computed, count, done and not request.warm, self._pages(request, end))
        )
        self.budget -= count
        self.num_tokens += count
        self.num_kv_tokens += end
        request.num_computed = end
        self.computed.append(request)
        if done:
            del group.prefilling[request.slot]
            group.decoding[request.slot] = request
            if request.warm:
                self.warmed.append(request)
            else:
                request.length += 1
        return self.budget > 0

    def _chunk(self, request: Request, missing: int) -> int:
        """What fits, ending at a page's end if it is not the last: whole pages can be shared at once."""
        if missing <= self.budget:
            return missing
        size = self.group.page_size
        aligned = (request.num_computed + self.budget) // size * size - request.num_computed
        return aligned if aligned > 0 else max(0, self.budget)

    def _pages(self, request: Request, end: int) -> tuple[int, ...]:
        first = request.num_pages_sent
        request.num_pages_sent = max(first, -(-end // self.group.page_size))
        return tuple(request.pages[first : request.num_pages_sent])
