"""What a step's answer changes: tokens join their requests, requests whose condition is met end or pause.

Answers to what is no longer wanted are told apart by comparison, never by counting: (epoch, step) for the whole result,
(request, incarnation) for a row. So a row that ended by EOS while its next token was in flight has that one dropped.
"""

from dataclasses import dataclass, field

from actors.scheduler.group import GroupState, InFlight
from actors.scheduler.request import Request, State
from protocol.messages import FinishReason, TokenDelta
from protocol.step import SampledRow, StepResult, TokenLogprob

NO_LOGPROBS: list[TokenLogprob] = []
"""Shared by all deltas without: a list of its own for each would be a third of the time of making them."""


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


def _settle(applied: Applied, request: Request, row: SampledRow) -> None:
    if row.token in request.stop_ids and request.num_output > request.sampling.min_tokens:
        applied.ended.append((request, "stop", row.token))
    elif len(request.tokens) == request.max_length:
        applied.ended.append((request, "length", None))
    elif len(request.tokens) == request.credit_length:
        applied.paused.append(request)
