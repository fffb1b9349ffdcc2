"""The fields of a `generate` command as keyword arguments, checked before anything is sent."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from client.errors import BadRequestError
from protocol.errors import RequestError
from protocol.validation import check_generate, read_fields
from protocol.wire import ChatMessage, Generate, SloTargets


class GenerateFields(TypedDict, total=False):
    """One of `messages`, `prompt`, `prompt_tokens`; what is left out is the served model's default."""

    id: str
    model: str
    messages: Sequence[ChatMessage | Mapping[str, str]]
    prompt: str
    prompt_tokens: Sequence[int]
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    stop: Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool
    min_tokens: int
    logprobs: int | None
    return_tokens: bool
    slo: SloTargets | Mapping[str, int] | None
    priority: int
    cache_salt: str
    resumable: bool
    credit: int
    resume_tokens: Sequence[int] | None


def build_generate(fields: Mapping[str, Any]) -> Generate:
    """Make the command of `fields`, by the server's own rules. Raises BadRequestError; its `param` names the field."""
    try:
        generate = read_fields(dict(fields), Generate)
        check_generate(generate, [generate.model or ""])
    except RequestError as error:
        raise BadRequestError(error.message, code=error.code, param=error.param) from error
    if generate.credit < 1:
        raise BadRequestError("credit is 0; a stream needs at least 1", code="invalid_request", param="credit")
    return generate
