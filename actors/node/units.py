"""Text of a setting to its value: counts, sizes, times, choices. ValueError says what would be right."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from protocol.bounds import MAX_INT31

SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
SIZES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
TIMES = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
MAX_SIZE = 2.0**50
MAX_TIME = 1e6
TRUE = frozenset({"1", "true", "on", "yes"})
FALSE = frozenset({"0", "false", "off", "no"})


def text(given: str) -> str:
    """Text that is not empty."""
    if not given:
        raise ValueError("is empty; give a value or leave the setting out")
    return given


def flag(given: str) -> bool:
    """On or off."""
    if given.lower() in TRUE | FALSE:
        return given.lower() in TRUE
    raise ValueError(f"{given!r} is neither true nor false; use 1 or 0")


def count(least: int, most: int = MAX_INT31) -> Callable[[str], int]:
    """Whole numbers `least <= n <= most`."""

    def read(given: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9][0-9_,]*", given):
            raise ValueError(f"{given!r} is no whole number; use one from {least:,} to {most:,}")
        number = int(given.replace(",", ""))
        if not least <= number <= most:
            raise ValueError(f"{number} is out of range; use a number from {least:,} to {most:,}")
        return number

    return read


port = count(0, 65535)


def size(given: str) -> int:
    """Bytes: `1048576`, `2GiB`, `500MB`."""
    return int(_with_unit(given, SIZES, MAX_SIZE, "a size such as 512MiB or 2GiB"))


def message_size(given: str) -> int:
    """Bytes of one client message: 1 KiB to 1 GiB."""
    num_bytes = size(given)
    if not 2**10 <= num_bytes <= 2**30:
        raise ValueError(f"{given!r} is out of range; use a size from 1KiB to 1GiB")
    return num_bytes


def seconds(given: str) -> float:
    """Seconds: `30`, `1.5s`, `500ms`, `2m`."""
    return _with_unit(given, TIMES, MAX_TIME, "a time such as 30s, 500ms or 2m")


def choice(*choices: str) -> Callable[[str], str]:
    """One of `choices`."""

    def read(given: str) -> str:
        if given not in choices:
            raise ValueError(f"{given!r} is unknown; use one of {', '.join(choices)}")
        return given

    return read


def amount(absent: str, read_present: Callable[[str], Any]) -> Callable[[str], Any]:
    """None for the word `absent`, else as `read_present` has it."""

    def read(given: str) -> Any:  # noqa: ANN401 - what `read_present` returns, or None
        return None if given == absent else read_present(given)

    return read


def _with_unit(given: str, units: Mapping[str, float], most: float, right: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)", given)
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{given!r} is not {right}")
    value = float(match[1]) * units[match[2].lower()]
    if not 0 < value <= most:
        raise ValueError(f"{given!r} is out of range; use {right}")
    return value
