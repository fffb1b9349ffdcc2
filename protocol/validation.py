"""Turns a failed validation into words for the client: which field, which value, which limit.

msgspec says what is wrong and where (`Expected `float` <= 2.0 - at `$.temperature``); this module looks the value up in
the frame and the limit up in the struct: "temperature is 3.5; it must be between 0 and 2". Never raises for any frame.
"""

import math
import re
from typing import Any

import msgspec
from msgspec import inspect

from protocol.bounds import MAX_INT31
from protocol.errors import RequestError
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

MAX_SHOWN = 64
"""Characters of a client's value that are repeated in a message."""

_WHERE = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`$")
_FIELD = re.compile(r"Object (?P<how>contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d{1,9}|\.\.\.)\]")


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


def refusal(error: msgspec.ValidationError, frame: dict[str, object], kind: type[msgspec.Struct]) -> RequestError:
    """The RequestError for `frame`, which could not be converted to `kind`."""
    unknown = _unknown_field(frame, kind)
    if unknown is not None:
        # Looked up, not parsed: a name at the end of msgspec's message could pass for a path.
        return _wrong_field("", unknown, unknown=True)
    what = str(error)
    where = _WHERE.search(what)
    param, value, expected = _look_up(where["path"] if where else "", frame, inspect.type_info(kind))
    if where and where["key"]:
        return _wrong_key(param, value, expected)
    if where and where["path"].endswith("[...]") and isinstance(expected, inspect.DictType):
        return _wrong_entry(param, value, expected)
    named = _FIELD.fullmatch(what[: where.start()] if where else what)
    if named:
        return _wrong_field(param, named["name"], unknown=named["how"] == "contains unknown")
    return misfit(param or "frame", value, expected)


def misfit(param: str, value: object, expected: inspect.Type, *, entry: str = "") -> RequestError:
    """`param` holds `value` (at `entry`, if it is a map), which `expected` does not allow."""
    expected = _alternative(expected, value)
    match value, expected:
        case str(), inspect.StrType():
            return _wrong_size(param, expected, len(value), "character")
        case list() | tuple(), inspect.ListType():
            return _wrong_size(param, expected, len(value), "item")
        case dict(), inspect.DictType():
            return _wrong_size(param, expected, len(value), "entry")
    limit = _range(expected) if _is_number(value, expected) else _described(expected)
    return _invalid(param, f"{param}{entry} is {shown(value)}; it must be {limit}")


def shown(value: object) -> str:
    """A value of a client's frame, short and on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}" if value.bit_length() < 200 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return repr(value[:MAX_SHOWN]) + ("…" if len(value) > MAX_SHOWN else "")
    names: dict[type, str] = {list: "a list", tuple: "a list", dict: "an object", bytes: "binary"}
    return names.get(type(value), "of an unsupported type")


def _described(expected: inspect.Type) -> str:  # noqa: PLR0911 - one line for each type
    """What a field of another type must be."""
    match expected:
        case inspect.UnionType(types=types):
            return " or ".join(_described(one) for one in types if not isinstance(one, inspect.NoneType))
        case inspect.IntType():
            return f"an integer {_range(expected)}".rstrip()
        case inspect.FloatType():
            return f"a number {_range(expected)}".rstrip()
        case inspect.StrType(min_length=least, max_length=most):
            return "text" + _of_size(least, most, "character")
        case inspect.ListType(min_length=least, max_length=most):
            return "a list" + _of_size(least, most, "item")
        case inspect.BoolType():
            return "true or false"
    return "an object"


def _wrong_size(
    param: str, expected: inspect.StrType | inspect.ListType | inspect.DictType, size: int, noun: str
) -> RequestError:
    limit = _size_limit(expected.min_length, expected.max_length, noun)
    return _invalid(param, f"{param} has {_counted(size, noun)}; it must have {limit}")


def _wrong_key(param: str, value: object, expected: inspect.Type) -> RequestError:
    if not isinstance(expected, inspect.DictType) or not isinstance(value, dict):
        return _invalid(param or None, f"{param or 'frame'} has a key that is not text")
    bad = next((key for key in value if not _fits(_spelled(key), expected.key_type)), None)
    return _invalid(param, f"{param} has the key {shown(bad)}; it must be {_described(expected.key_type)}")


def _wrong_entry(param: str, value: object, expected: inspect.DictType) -> RequestError:
    entries = value.items() if isinstance(value, dict) else ()
    key, bad = next(((key, one) for key, one in entries if not _fits(one, expected.value_type)), ("", None))
    return misfit(param, bad, expected.value_type, entry=f"[{shown(_spelled(key))}]")


def _unknown_field(frame: dict[str, object], kind: type[msgspec.Struct]) -> str | None:
    if not kind.__struct_config__.forbid_unknown_fields:
        return None
    known = {"type", *kind.__struct_fields__}
    return next((name for name in frame if isinstance(name, str) and name not in known), None)


def _wrong_field(param: str, name: str, *, unknown: bool) -> RequestError:
    short = name if len(name) <= MAX_SHOWN else name[:MAX_SHOWN] + "…"
    full = f"{param}.{short}" if param else short
    return _invalid(full, f"{full} is not a known field" if unknown else f"{full} is missing; it is required")


def _look_up(path: str, value: Any, info: inspect.Type) -> tuple[str, Any, inspect.Type]:  # noqa: ANN401 - decoded JSON
    """Follow `.name[3]` from the frame's top: the field's name, its value, its declared type."""
    param = ""
    for step in _STEP.finditer(path):
        info = _alternative(info, value)
        if step["name"] is not None and isinstance(info, inspect.StructType):
            param = f"{param}.{step['name']}" if param else step["name"]
            value = value.get(step["name"]) if isinstance(value, dict) else None
            info = next((field.type for field in info.fields if field.encode_name == step["name"]), inspect.AnyType())
        elif isinstance(info, inspect.ListType) and isinstance(value, list) and (step["index"] or "").isdigit():
            index = int(step["index"])
            param, info = f"{param}[{index}]", info.item_type
            value = value[index] if index < len(value) else None
    return param, value, _alternative(info, value)


def _alternative(info: inspect.Type, value: object) -> inspect.Type:
    """Of `X | None` the X; of `int | str` the one that `value` is nearest to."""
    if not isinstance(info, inspect.UnionType):
        return info
    choices = [one for one in info.types if not isinstance(one, inspect.NoneType)]
    if len(choices) == 1:
        return choices[0]
    fitting = inspect.StrType if isinstance(value, str) else inspect.IntType
    if isinstance(value, str | int) and not isinstance(value, bool):
        return next((one for one in choices if isinstance(one, fitting)), info)
    return info


def _range(expected: inspect.Type) -> str:
    """The bounds of a number: "between 0 and 2"."""
    if not isinstance(expected, inspect.IntType | inspect.FloatType) or expected.le is None:
        return ""
    if expected.gt is not None:
        return f"more than {_plain(expected.gt)} and at most {_plain(expected.le)}"
    return f"between {_plain(expected.ge or 0)} and {_plain(expected.le)}"


def _plain(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else str(number)


def _of_size(least: int | None, most: int | None, noun: str) -> str:
    return "" if least is None and most is None else f" of {_size_limit(least, most, noun)}"


def _size_limit(least: int | None, most: int | None, noun: str) -> str:
    if most is None:
        return f"at least {_counted(least or 0, noun)}"
    return f"between {least:,} and {_counted(most, noun)}" if least else f"at most {_counted(most, noun)}"


def _counted(count: int, noun: str) -> str:
    plural = "entries" if noun == "entry" else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def _spelled(key: object) -> object:
    """A JSON key as the integer it spells."""
    return int(key) if isinstance(key, str) and len(key) < 32 and re.fullmatch(r"-?[0-9]+", key) else key


def _is_number(value: object, expected: inspect.Type) -> bool:
    """Whether `value` has the numeric type that is expected, so that its size must be wrong."""
    if isinstance(value, bool):
        return False
    return isinstance(expected, inspect.IntType | inspect.FloatType) and isinstance(
        value, int if isinstance(expected, inspect.IntType) else int | float
    )


def _fits(value: object, expected: inspect.Type) -> bool:
    """Whether an entry of a map, key or value, is what its declared type allows."""
    if isinstance(expected, inspect.StrType):
        most = MAX_INT31 if expected.max_length is None else expected.max_length
        return isinstance(value, str) and (expected.min_length or 0) <= len(value) <= most
    if not isinstance(expected, inspect.IntType | inspect.FloatType) or not isinstance(value, int | float):
        return False
    least = -math.inf if expected.ge is None else expected.ge
    most_number = math.inf if expected.le is None else expected.le
    return _is_number(value, expected) and least <= value <= most_number


def _invalid(param: str | None, message: str) -> RequestError:
    return RequestError("invalid_request", message, param=param)
