"""The generation settings that people type: as flags (`--top-p 0.9`) and as chat settings (`/set top_p 0.9`)."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from client.errors import BadRequestError
from client.fields import build_generate

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
