"""The fields of a `generate` command: as keyword arguments, flags (`--top-p 0.9`), chat settings (`/set top_p 0.9`).

Whatever way they come, they are checked by the server's own rules before anything is sent.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from client.errors import BadRequestError
from protocol.errors import RequestError
from protocol.validation import check_generate, read_fields
from protocol.wire import ChatMessage, Generate, SloTargets

SETTINGS: dict[str, tuple[Callable[[str], Any], str]] = {
    "model": (str, "name of a served model"),
    "max_tokens": (int, "most tokens to generate"),
    "temperature": (float, "0 is greedy, up to 2"),
    "top_p": (float, "keep the most likely tokens up to this total probability"),
    "top_k": (int, "keep the k most likely tokens; 0 is off"),
    "min_p": (float, "keep tokens at least this likely, as a part of the likeliest"),
    "presence_penalty": (float, "-2 to 2, against tokens that were generated"),
    "frequency_penalty": (float, "-2 to 2, against tokens by how often they were generated"),
    "repetition_penalty": (float, "above 1: against tokens of the prompt and the answer"),
    "seed": (int, "the same seed draws the same tokens"),
    "stop": (str, "end before this text; may be given more than once"),
    "priority": (int, "-10 to 10, higher goes first"),
}
_REPEATABLE = "stop"


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


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for each setting; what is not given is the served model's default."""
    group = parser.add_argument_group("generation")
    for name, (kind, words) in SETTINGS.items():
        action = "append" if name == _REPEATABLE else "store"
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, action=action, help=words, metavar=name.upper())


def flag_settings(flags: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given as flags. Raises BadRequestError for one out of range."""
    given = {name: value for name in SETTINGS if (value := getattr(flags, name)) is not None}
    check_settings(given)
    return given


def read_setting(name: str, text: str) -> Any:  # noqa: ANN401 - each setting has its own type
    """The value that `text` stands for. Raises BadRequestError for an unknown name or a bad value."""
    if name not in SETTINGS:
        raise BadRequestError(f"no setting {name!r}; there are {', '.join(SETTINGS)}", param=name)
    kind, words = SETTINGS[name]
    try:
        value = [text] if name == _REPEATABLE else kind(text)
    except ValueError as error:
        raise BadRequestError(f"{name} cannot be {text!r}: {words}", param=name) from error
    check_settings({name: value})
    return value


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raises BadRequestError if a request with these would be refused."""
    build_generate({"id": "check", "prompt": "check", **settings})
