"""What a submission must satisfy before it becomes a request, and the request that it becomes.

Raises RequestError that names field, value and limit. Nothing is changed by a refusal.
"""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from actors.scheduler.config import SchedulerConfig
from actors.scheduler.fairness import Account
from actors.scheduler.request import Request
from protocol.errors import RequestError
from protocol.messages import Submit
from protocol.model_info import ModelInfo


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits already: requests the next plan has no slot for, all tokens, and milliseconds until there is room."""

    num_requests: int
    num_tokens: int
    retry_after_ms: int


def check(message: Submit, config: SchedulerConfig, model: ModelInfo, max_model_len: int, waiting: Waiting) -> None:
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
    """The request of a submission that passed `check`; without a seed it gets one for its whole life."""
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
