"""What a submission must satisfy, the group that will serve it, and the request that it becomes.

Raises RequestError that names field, value and limit. Nothing is changed by a refusal.
"""

from collections.abc import Iterable

from actors.scheduler.group import GroupState
from actors.scheduler.request import Account, Request
from protocol.errors import RequestError
from protocol.messages import Submit
from protocol.model_info import ModelInfo

ROW_COST = 64
"""Prompt tokens that one more row of decoding weighs: a new request meets about that many of its steps."""
SMOOTHING = 0.1
MAX_INTERVAL_S = 10.0
"""An interval between admissions longer than this was idleness."""
DEFAULT_MS = 1000
LEAST_MS, MOST_MS = 50, 60_000


def check_submit(message: Submit, model: ModelInfo, max_model_len: int) -> None:
    """Refuse what can never be served."""
    num_prompt = len(message.prompt_tokens)
    if not num_prompt:
        raise RequestError("invalid_request", "prompt has 0 tokens; at least 1 is needed", param="prompt_tokens")
    for param, tokens in (("prompt_tokens", message.prompt_tokens), ("resume_tokens", message.output_tokens)):
        largest = max(tokens, default=0)
        if largest >= model.vocab_size:
            reason = f"token id {largest}; the vocabulary has {model.vocab_size}"
            raise RequestError("invalid_request", reason, param=param)
    if num_prompt >= max_model_len:
        reason = f"prompt has {num_prompt} tokens; limit is {max_model_len}, which includes at least 1 output token"
        raise RequestError("context_length_exceeded", reason, param="prompt_tokens")
    max_tokens = message.sampling.max_tokens
    if not message.warm and num_prompt + max_tokens > max_model_len:
        reason = (
            f"prompt has {num_prompt} tokens and max_tokens is {max_tokens}, together {num_prompt + max_tokens}; "
            f"limit is {max_model_len}"
        )
        raise RequestError("context_length_exceeded", reason, param="max_tokens")


def make_request(message: Submit, model: ModelInfo, account: Account, arrival: int, now: float) -> Request:
    """The request of a submission that passed `check_submit`; it has no group yet."""
    sampling = message.sampling
    num_prompt = len(message.prompt_tokens)
    num_known = num_prompt + len(message.output_tokens)
    stop_ids = frozenset(sampling.stop_token_ids)
    max_length = num_known if message.warm else num_prompt + sampling.max_tokens
    return Request(
        id=message.request,
        arrival=arrival,
        submitted_at=now,
        tokens=message.prompt_tokens + message.output_tokens,
        num_prompt=num_prompt,
        num_resumed=len(message.output_tokens),
        sampling=sampling,
        stop_ids=stop_ids if sampling.ignore_eos else stop_ids.union(model.eos_token_ids),
        max_length=max_length,
        credit_length=max_length if message.warm else num_known + message.credit,
        account=account,
        priority=message.priority,
        cache_salt=message.cache_salt,
        slo=message.slo,
        warm=message.warm,
    )


def choose_group(groups: Iterable[GroupState], request: Request) -> None:
    """Give the request to the group that has least to compute before it (ties: the first); it stays there.

    Cost in tokens: the part of the prompt not cached there, the prompts waiting there, and for every request running or
    waiting a share of the steps, since it slows the others by about its row.
    """
    least: int | None = None
    for group in groups:
        match = group.cache.match(request.tokens, request.cache_salt)
        missing = len(request.tokens) - match[1] * group.page_size
        begun = sum(other.length - other.num_computed for other in group.prefilling.values())
        cost = missing + begun + group.num_waiting_tokens + ROW_COST * (group.num_running + group.num_waiting)
        if least is None or cost < least:
            least, request.group, request.match = cost, group.index, match


class AdmissionPace:
    """How fast waiting requests are let in, for the hint of a refusal: smoothed seconds between admissions."""

    def __init__(self) -> None:
        self._interval_s: float | None = None
        self._last: float | None = None

    def admitted(self, num_requests: int, now: float) -> None:
        """A step let in so many."""
        if num_requests and self._last is not None:
            interval_s = min(now - self._last, MAX_INTERVAL_S) / num_requests
            previous = interval_s if self._interval_s is None else self._interval_s
            self._interval_s = previous + SMOOTHING * (interval_s - previous)
        if num_requests:
            self._last = now

    def retry_after_ms(self, num_requests: int) -> int:
        """When so many requests will have been let in."""
        if self._interval_s is None:
            return DEFAULT_MS
        return max(LEAST_MS, min(MOST_MS, round(self._interval_s * num_requests * 1000)))
