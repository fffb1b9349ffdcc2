"""What a Generate must satisfy beyond the bounds in its struct: fields that depend on each other, and real numbers.

Both dialects call `check_generate` on what they read; what needs the tokenizer or the pool is checked later, elsewhere.
"""

import math

from msgspec import inspect

from protocol.errors import RequestError
from protocol.validation import misfit, shown
from protocol.wire import Generate

_FIELDS = {field.name: field.type for field in inspect.type_info(Generate).fields}  # type: ignore[attr-defined] # a StructType
_BIAS = inspect.FloatType(ge=-100, le=100)
_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_INPUTS = ("messages", "prompt", "prompt_tokens")


def check_generate(command: Generate, models: list[str] | tuple[str, ...]) -> None:
    """Raise RequestError for what cannot be served whatever the model's state."""
    if command.model is not None and command.model not in models:
        served = ", ".join(models)
        message = f"model is {shown(command.model)}; this server serves {served}"
        raise RequestError("model_not_found", message, param="model")
    _check_input(command)
    _check_numbers(command)
    if command.max_tokens is not None and command.min_tokens > command.max_tokens:
        message = f"min_tokens is {command.min_tokens}; it must be at most max_tokens, {command.max_tokens}"
        raise RequestError("invalid_request", message, param="min_tokens")


def _check_input(command: Generate) -> None:
    given = [name for name in _INPUTS if getattr(command, name) is not None]
    if not given:
        message = "messages is missing; exactly one of messages, prompt and prompt_tokens must be given"
        raise RequestError("invalid_request", message, param="messages")
    if len(given) > 1:
        message = (
            f"{given[1]} is given beside {given[0]}; exactly one of messages, prompt and prompt_tokens must be given"
        )
        raise RequestError("invalid_request", message, param=given[1])
    if not getattr(command, given[0]):
        raise RequestError("invalid_request", f"{given[0]} is empty; it must not be", param=given[0])


def _check_numbers(command: Generate) -> None:
    """NaN passes every comparison of a bound; msgpack can carry it."""
    for name in _FLOATS:
        value = getattr(command, name)
        if value is not None and math.isnan(value):
            raise misfit(name, value, _FIELDS[name])
    for token, bias in (command.logit_bias or {}).items():
        if math.isnan(bias):
            raise misfit("logit_bias", bias, _BIAS, entry=f"[{token}]")
