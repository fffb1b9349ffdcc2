"""From a conversation to the text a model was trained on: the model folder's Jinja template, as `transformers` runs it.

The template comes with the model and is not trusted: it runs in Jinja's immutable sandbox, its output and its time are
bounded, and whatever it raises is a RequestError about `messages`.
"""

import json
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from protocol.errors import RequestError
from protocol.wire import ChatMessage

MAX_GROWTH = 8
"""The rendered chat may be this many times as long as the messages (JSON escapes are six), besides…"""
MAX_FRAME_CHARACTERS = 256
"""…this much around each message and…"""
MAX_FIXED_CHARACTERS = 1 << 18
"""…this much for the whole."""
MAX_RENDER_S = 5.0

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_WHAT_TEMPLATES_RAISE = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)


class ChatTemplate:
    """One compiled template and the special tokens it may name. Rendering shares nothing: any thread may."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        """Raises ValueError for a syntax error."""
        try:
            self._template: Template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise ValueError(f"the chat template has a syntax error in line {error.lineno}: {error.message}") from error
        self._special_tokens = special_tokens

    @classmethod
    def load(cls, folder: Path) -> "ChatTemplate | None":
        """From `chat_template.jinja`, else `tokenizer_config.json`; None if the model has none."""
        config = _read_json(folder / "tokenizer_config.json")
        source = _template_source(folder, config)
        return None if source is None else cls(source, _special_tokens(folder, config))

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The conversation as text, up to where the assistant's answer begins. Raises RequestError."""
        if not messages:
            raise RequestError(
                "invalid_request", "messages is empty; a conversation has at least one", param="messages"
            )
        turns = [{"role": message.role, "content": message.content} for message in messages]
        size = sum(len(turn["role"]) + len(turn["content"]) for turn in turns)
        try:
            return self._render_within(
                turns, MAX_GROWTH * size + MAX_FRAME_CHARACTERS * len(turns) + MAX_FIXED_CHARACTERS
            )
        except _WHAT_TEMPLATES_RAISE as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise RequestError("invalid_request", message, param="messages") from error

    def _render_within(self, turns: list[dict[str, str]], max_characters: int) -> str:
        values = {"messages": turns, "tools": None, "documents": None, "add_generation_prompt": True}
        deadline = time.monotonic() + MAX_RENDER_S
        parts, size = [], 0
        for part in self._template.generate(**self._special_tokens, **values):
            parts.append(part)
            size += len(part)
            if size > max_characters or time.monotonic() > deadline:
                raise ValueError(f"it wrote more than {max_characters} characters or took longer than {MAX_RENDER_S} s")
        return "".join(parts)


def _template_source(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name; "default" is the one for plain chats
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _special_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Each is a string, or a map with its `content`; tokenizer_config.json outranks special_tokens_map.json."""
    declared = _read_json(folder / "special_tokens_map.json") | {k: v for k, v in config.items() if v is not None}
    values = {name: declared[name] for name in _SPECIAL_TOKENS if declared.get(name) is not None}
    return {name: value["content"] if isinstance(value, dict) else value for name, value in values.items()}


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is not a JSON object: {error}") from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _dict
    environment.globals["namespace"] = _Namespace
    return environment


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:  # noqa: ANN401 - as `dict`, without the type's attributes
    return dict(*args, **kwargs)


class _Namespace(Namespace):
    """Jinja's own would let a template set attributes that Python itself reads."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - so that `namespace(self=…)` works
        self, args = args[0], args[1:]
        for name in dict(*args, **kwargs):
            _check_attribute(name)
        Namespace.__init__(self, *args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - whatever the template has
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}: names with an underscore first are Python's")


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,  # noqa: ANN401 - whatever the template has
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - transformers' filter arguments, in its order
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - likewise
) -> str:
    """Unlike Jinja's own filter this escapes no HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)  # noqa: DTZ005 - local time, as transformers gives it
