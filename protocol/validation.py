"""Fields of a client become a struct; what is wrong with them becomes words: which field, which value, which limit.

msgspec says where (`Expected `float` <= 2.0 - at `$.temperature``); the value is looked up there in the frame and the
limit in the struct: "temperature is 3.5; it must be between 0 and 2". What needs the tokenizer or the pool is checked
later, elsewhere. Raises nothing but RequestError.
"""

import math
import re
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from protocol.errors import RequestError, invalid
from protocol.wire import Generate

StructT = TypeVar("StructT", bound=msgspec.Struct)

MAX_SHOWN = 64
"""Characters of a client's value that are repeated in a message."""

_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,30})")
"""A key of JSON that spells an integer."""
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_KINDS: dict[type[inspect.Type], tuple[Any, ...]] = {
    inspect.IntType: ("an integer", int),
    inspect.FloatType: ("a number", int, float),
    inspect.StrType: ("text", str),
    inspect.ListType: ("a list", list, tuple),
    inspect.BoolType: ("true or false", bool),
    inspect.DictType: ("an object", dict),
    inspect.StructType: ("an object", dict),
}
"""What a field of a type must be, and the classes of decoded values that are it."""
_SIZED: dict[type[inspect.Type], tuple[str, str]] = {
    inspect.StrType: ("character", "characters"),
    inspect.ListType: ("item", "items"),
    inspect.DictType: ("entry", "entries"),
}
_INPUTS = ("messages", "prompt", "prompt_tokens")


def read_fields(fields: dict[str, object], kind: type[StructT], *, str_keys: bool = False) -> StructT:
    """The struct that `fields` spell; with `str_keys`, as in JSON, integers that are keys come as text."""
    try:
        return msgspec.convert(fields, kind, str_keys=str_keys)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), fields, inspect.type_info(kind), str_keys=str_keys) from error


def check_generate(command: Generate, models: list[str] | tuple[str, ...]) -> None:
    """What the bounds of single fields do not say: fields that depend on each other, real numbers, the model's name."""
    check_model(command.model, models)
    _check_input(command)
    _check_numbers(command)
    if command.max_tokens is not None and command.min_tokens > command.max_tokens:
        message = f"min_tokens is {command.min_tokens}; it must be at most max_tokens, {command.max_tokens}"
        raise invalid("min_tokens", message)


def check_model(model: str | None, models: list[str] | tuple[str, ...]) -> None:
    """None is whichever is served."""
    if model is not None and model not in models:
        message = f"model is {shown(model)}; this server serves {', '.join(models)}"
        raise RequestError("model_not_found", message, param="model")


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


def _check_input(command: Generate) -> None:
    given = [name for name in _INPUTS if getattr(command, name) is not None]
    rule = "exactly one of messages, prompt and prompt_tokens must be given"
    if not given:
        raise invalid("messages", f"messages is missing; {rule}")
    if len(given) > 1:
        raise invalid(given[1], f"{given[1]} is given beside {given[0]}; {rule}")
    if not getattr(command, given[0]):
        raise invalid(given[0], f"{given[0]} is empty; it must not be")


def _check_numbers(command: Generate) -> None:
    """NaN passes every comparison of a bound; msgpack can carry it."""
    for name, expected in _FLOATS.items():
        value = getattr(command, name)
        if value is not None and math.isnan(value):
            raise _misfit(name, value, expected)
    for token, bias in (command.logit_bias or {}).items():
        if math.isnan(bias):
            raise _misfit("logit_bias", bias, _BIAS, entry=f"[{token}]")


def _refusal(error: str, value: Any, expected: Any, *, str_keys: bool) -> RequestError:  # noqa: ANN401 - decoded JSON
    named = _wrong_field("", value, expected)
    if named is not None:  # first: a field's name at the end of msgspec's message could pass for a place
        return named
    param = ""
    for name, index in _STEP.findall(error.rpartition(" - at ")[2]):
        expected = _alternative(expected, value)
        if name:
            param = f"{param}.{name}" if param else name
            value, expected = value[name], {field.encode_name: field.type for field in expected.fields}[name]
        elif isinstance(value, list | tuple):
            param, value, expected = f"{param}[{index}]", value[int(index)], expected.item_type
    expected = _alternative(expected, value)
    inner = _wrong_field(param, value, expected) or _wrong_entry(param, value, expected, str_keys=str_keys)
    return inner or _misfit(param, value, expected)


def _wrong_field(param: str, value: object, expected: inspect.Type) -> RequestError | None:
    """What an object has too much or too little."""
    if not isinstance(expected, inspect.StructType) or not isinstance(value, dict):
        return None
    prefix = f"{param}." if param else ""
    known = {expected.tag_field, *(field.encode_name for field in expected.fields)}
    unknown = [name for name in value if name not in known] if expected.forbid_unknown_fields else []
    if unknown and not isinstance(unknown[0], str):
        return invalid(param or None, f"{param or 'frame'} has a key that is not text")
    if unknown:
        name = prefix + unknown[0][:MAX_SHOWN] + ("…" if len(unknown[0]) > MAX_SHOWN else "")
        return invalid(name, f"{name} is not a known field")
    missing = [field.encode_name for field in expected.fields if field.required and field.encode_name not in value]
    return invalid(prefix + missing[0], f"{prefix}{missing[0]} is missing; it is required") if missing else None


def _wrong_entry(param: str, value: object, expected: inspect.Type, *, str_keys: bool) -> RequestError | None:
    """The first key or value of a map, each a text or a number, that its declared type does not allow."""
    if not isinstance(expected, inspect.DictType) or not isinstance(value, dict):
        return None
    for key, one in value.items():
        is_text = not str_keys or isinstance(expected.key_type, inspect.StrType)
        name = key if is_text or not _NUMBER.fullmatch(key) else int(key)
        if not _fits(name, expected.key_type):
            return invalid(param, f"{param} has the key {shown(key)}; it must be {_described(expected.key_type)}")
        if not _fits(one, expected.value_type):
            return _misfit(param, one, expected.value_type, entry=f"[{shown(name)}]")
    return None


def _misfit(param: str, value: object, expected: inspect.Type, *, entry: str = "") -> RequestError:
    """`param` holds `value` (at `entry`, if it is a map), which `expected` does not allow."""
    if not _is_kind(value, expected) or not _limit(expected):
        return invalid(param, f"{param}{entry} is {shown(value)}; it must be {_described(expected)}")
    if isinstance(value, str | list | tuple | dict):
        return invalid(param, f"{param}{entry} has {_counted(len(value), expected)}; it must have {_limit(expected)}")
    return invalid(param, f"{param}{entry} is {shown(value)}; it must be {_limit(expected)}")


def _alternative(expected: inspect.Type, value: object) -> inspect.Type:
    """Of `X | None` the X; of `int | str` the one that `value` is, if any."""
    if not isinstance(expected, inspect.UnionType):
        return expected
    choices = [one for one in expected.types if not isinstance(one, inspect.NoneType)]
    return next((one for one in choices if len(choices) == 1 or _is_kind(value, one)), expected)


def _is_kind(value: object, expected: inspect.Type) -> bool:
    """Whether `value` has the type that is expected, so that its size must be wrong."""
    _, *classes = _KINDS.get(type(expected), ("",))
    return isinstance(value, tuple(classes)) and isinstance(value, bool) == isinstance(expected, inspect.BoolType)


def _fits(value: Any, expected: inspect.Type) -> bool:  # noqa: ANN401 - likewise
    least, most = _bounds(expected)
    return _is_kind(value, expected) and least <= (len(value) if isinstance(value, str) else value) <= most


def _bounds(expected: inspect.Type) -> tuple[float, float]:
    """Of a number or a size; infinite where there is none."""
    least, most = None, None
    if isinstance(expected, inspect.IntType | inspect.FloatType):
        least, most = expected.ge, expected.le
    elif isinstance(expected, inspect.StrType | inspect.ListType | inspect.DictType):
        least, most = expected.min_length or 0, expected.max_length
    return -math.inf if least is None else least, math.inf if most is None else most


def _described(expected: inspect.Type) -> str:
    """What a field must be: "a number between 0 and 2"."""
    if isinstance(expected, inspect.UnionType):
        return " or ".join(_described(one) for one in expected.types if not isinstance(one, inspect.NoneType))
    name: str = _KINDS[type(expected)][0]
    limit = _limit(expected)
    return name + (" of " if type(expected) in _SIZED else " ") + limit if limit else name


def _limit(expected: inspect.Type) -> str:
    """The bounds of a number or a size, if any: "between 0 and 2", "at most 16 items"."""
    least, most = _bounds(expected)
    if most == math.inf:
        return ""
    if isinstance(expected, inspect.FloatType) and expected.gt is not None:
        return f"more than {_plain(expected.gt)} and at most {_plain(most)}"
    if type(expected) in _SIZED and not least:
        return f"at most {_counted(int(most), expected)}"
    return f"between {_plain(least)} and {_counted(int(most), expected) if type(expected) in _SIZED else _plain(most)}"


def _plain(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else str(number)


def _counted(count: int, expected: inspect.Type) -> str:
    one, many = _SIZED[type(expected)]
    return f"{count:,} {one if count == 1 else many}"


_FIELDS: dict[str, Any] = {
    field.name: _alternative(inspect.type_info(field.type), 0.0) for field in msgspec.structs.fields(Generate)
}
_FLOATS = {name: expected for name, expected in _FIELDS.items() if isinstance(expected, inspect.FloatType)}
_BIAS: inspect.Type = _FIELDS["logit_bias"].value_type
