"""What a submission must satisfy, the group that will serve it, and the request that it becomes.

Raises RequestError that names field, value and limit. Nothing is changed by a refusal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from actors.scheduler.config import SchedulerConfig
from actors.scheduler.group import GroupState
from actors.scheduler.pages import Node
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


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits already: requests the next plan has no slot for, all tokens, and milliseconds until there is room."""

    num_requests: int
    num_tokens: int
    retry_after_ms: int


def check_submit(
    message: Submit, config: SchedulerConfig, model: ModelInfo, max_model_len: int, waiting: Waiting
) -> None:
    """Refuse what cannot be served, then what cannot be served now."""
    _check_tokens(message, model.vocab_size)
    _check_length(message, max_model_len)
    num_tokens = len(message.prompt_tokens) + len(message.output_tokens)
    if waiting.num_requests >= config.max_waiting:
        raise RequestError(
            "overloaded",
            f"{waiting.num_requests} requests are waiting; limit is {config.max_waiting}",
            retry_after_ms=waiting.retry_after_ms,
        )
    if waiting.num_tokens and waiting.num_tokens + num_tokens > config.max_waiting_tokens:
        raise RequestError(
            "overloaded",
            f"{waiting.num_tokens} tokens are waiting, this request has {num_tokens}; "
            f"limit is {config.max_waiting_tokens}",
            retry_after_ms=waiting.retry_after_ms,
        )


def make_request(  # noqa: PLR0913 - each is named at the one call
    message: Submit,
    model: ModelInfo,
    *,
    arrival: int,
    now: float,
    account: Account,
    group: int,
    new_seed: Callable[[], int],
) -> Request:
    """The request of a submission that passed `check_submit`; without a seed it gets one for its whole life."""
    sampling = message.sampling
    if sampling.seed is None:
        sampling = replace(sampling, seed=new_seed())
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
        group=group,
        priority=message.priority,
        cache_salt=message.cache_salt,
        slo=message.slo,
        warm=message.warm,
    )


def _check_tokens(message: Submit, vocab_size: int) -> None:
    if not message.prompt_tokens:
        raise RequestError("invalid_request", "prompt has 0 tokens; at least 1 is needed", param="prompt_tokens")
    for param, tokens in (("prompt_tokens", message.prompt_tokens), ("resume_tokens", message.output_tokens)):
        largest = max(tokens, default=0)
        if largest >= vocab_size:
            raise RequestError("invalid_request", f"token id {largest}; the vocabulary has {vocab_size}", param=param)


def _check_length(message: Submit, max_model_len: int) -> None:
    num_prompt = len(message.prompt_tokens)
    if num_prompt >= max_model_len:
        raise RequestError(
            "context_length_exceeded",
            f"prompt has {num_prompt} tokens; limit is {max_model_len}, which includes at least 1 output token",
            param="prompt_tokens",
        )
    max_tokens = message.sampling.max_tokens
    if not message.warm and num_prompt + max_tokens > max_model_len:
        raise RequestError(
            "context_length_exceeded",
            f"prompt has {num_prompt} tokens and max_tokens is {max_tokens}, together {num_prompt + max_tokens}; "
            f"limit is {max_model_len}",
            param="max_tokens",
        )


def choose_group(
    groups: Sequence[GroupState], tokens: list[int], cache_salt: str
) -> tuple[GroupState, tuple[Node, int]]:
    """The group that has least to compute before it (ties: the first), and how far its prefix cache goes.

    A request stays in its group. Cost in tokens: the part of the prompt not cached there, the prompts waiting there,
    and for every request running or waiting a share of the steps, since it slows the others by about its row.
    """
    matches = {group.index: group.cache.match(tokens, cache_salt) for group in groups}

    def cost(group: GroupState) -> int:
        missing = len(tokens) - matches[group.index][1] * group.page_size
        begun = sum(request.length - request.num_computed for request in group.prefilling.values())
        return missing + begun + group.num_waiting_tokens + ROW_COST * (group.num_running + group.num_waiting)

    group = min(groups, key=cost)
    return group, matches[group.index]


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
