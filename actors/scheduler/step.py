"""One step: what it computes, and what its answer changes.

`plan_step`: all decodes, then prompts already begun, then waiting ones, under a token budget. It is a function of the
group's state and `now` alone, and moves the state as if the step had been executed: steps run in the order planned, so
the next plan may build on this one before its result is known (overlap). Read `group` for who may begin.

`apply_step`: tokens join their requests, requests whose condition is met end or pause. Answers to what is no longer
wanted are told apart by comparison, never by counting: (epoch, step) for the whole result, (request, incarnation) for a
row. So a row that ended by EOS while its next token was in flight has that one dropped.
"""

from dataclasses import dataclass, field

from actors.scheduler.cost import StepLoad
from actors.scheduler.group import Admission, GroupState, InFlight
from actors.scheduler.request import Request, State
from protocol.messages import FinishReason, TokenDelta
from protocol.step import RowStart, SampledRow, StepPlan, StepResult, StepRow, TokenLogprob

MAX_LOOKS = 64
"""Waiting requests looked at in one step beyond those admitted: many may share one leader's prefix."""
NO_LOGPROBS: list[TokenLogprob] = []
"""Shared by all deltas without: a list of its own for each would be a third of the time of making them."""


def plan_step(group: GroupState, now: float) -> StepPlan | None:
    """The next step; None when there is nothing to compute."""
    step = Step(group)
    if group.queue.num_queued:
        step.admit_waiting(now)
    return step.finish(group.max_rows - len(group.free_slots))


class Step:
    """A step in the making. Neither side starves: decodes always go, a page of prefill fits beside them."""

    def __init__(self, group: GroupState) -> None:
        """Begin with those who run: all decodes, then prompts already begun, in the order they began."""
        if len(group.decoding) > group.pool.num_available:  # should all want a page
            group.make_room()
        self.group = group
        self.rows, self.num_kv_tokens = _decode_rows(group)
        self.num_decode_rows = len(self.rows)
        self.budget = max(group.config.step_tokens - self.num_decode_rows, group.page_size)
        self.num_prefill_tokens = 0
        self.starts: list[RowStart] = []
        self.computed: list[Request] = []
        """Those whose prompts this step goes on with."""
        for request in list(group.prefilling.values()):
            if not self.compute(request):
                break

    def admit_waiting(self, now: float) -> None:
        """Waiting requests in the order of the queue, while there is budget and room."""
        group = self.group
        looks = MAX_LOOKS
        has_budget = self.budget > 0
        while has_budget and group.free_slots and looks and (request := group.queue.peek(now)):
            outcome = group.admit(request, now)
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


@dataclass(slots=True)
class Applied:
    """What came of one result, in the order of its rows."""

    step: InFlight
    deltas: list[TokenDelta] = field(default_factory=list)
    ended: list[tuple[Request, FinishReason, int | None]] = field(default_factory=list)
    """With the stop token, if one ended it. They still hold their slots and pages."""
    paused: list[Request] = field(default_factory=list)
    """Used up their credit."""
    first_tokens: list[Request] = field(default_factory=list)
    gaps: dict[float, int] = field(default_factory=dict)
    """When rows got their previous token: how many rows. Mostly that is the group's previous answer."""


def apply_step(group: GroupState, requests: dict[int, Request], result: StepResult, now: float) -> Applied | None:
    """Apply the answer to the oldest step in flight; None if it is stale. The hot path: 256 rows in each step."""
    if result.epoch != group.epoch or not group.in_flight or result.step != group.in_flight[0].step:
        return None
    applied = Applied(group.in_flight.popleft())
    append = applied.deltas.append
    previous = group.progressed_at
    num_previous = 0
    for row in result.rows:
        number = row.request
        request = requests.get(number)
        if request is None or request.incarnation != row.incarnation:
            continue
        tokens = request.tokens
        token = row.token
        position = len(tokens)
        tokens.append(token)
        logprob = row.logprob
        append(TokenDelta(number, position - request.num_prompt, [token], [logprob] if logprob else NO_LOGPROBS))
        request.account.served += 1
        last = request.last_token_at
        request.last_token_at = now
        if last == previous:
            num_previous += 1
        elif last >= 0:
            applied.gaps[last] = applied.gaps.get(last, 0) + 1
        else:
            request.first_token_at = now
            applied.first_tokens.append(request)
        if token in request.stop_ids or position + 1 >= request.stop_length:
            group.publish(request, position)
            _settle(applied, request, row)
    if num_previous:
        applied.gaps[previous] = num_previous
    applied.ended += [(request, "length", None) for request in applied.step.warmed if request.state is State.RUNNING]
    return applied


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


def _settle(applied: Applied, request: Request, row: SampledRow) -> None:
    if row.token in request.stop_ids and request.num_output > request.sampling.min_tokens:
        applied.ended.append((request, "stop", row.token))
    elif len(request.tokens) == request.max_length:
        applied.ended.append((request, "length", None))
    elif len(request.tokens) == request.credit_length:
        applied.paused.append(request)
