"""Typed reading of a JSON object that somebody else wrote: every wrong value ends in one line that names it."""

import math
from collections.abc import Iterator, Mapping
from typing import Final, cast

from cuda.models.spec import UnsupportedModel

MAX_COUNT: Final = 2**31 - 1
_SHOWN: Final = 120


class Fields:
    """A mapping with checked getters; `where` (a file, a group in it) opens every message."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._values = values
        self._where = where

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def get(self, name: str) -> object:
        """Return the raw value; None when absent."""
        return self._values.get(name)

    def count(self, name: str, default: int | None = None) -> int:
        """Return a whole number from 1 to 2^31 - 1; absent or null is `default`."""
        return self._whole(name, default, 1)

    def index(self, name: str, default: int | None = None) -> int:
        """Return a whole number from 0 to 2^31 - 1; absent or null is `default`."""
        return self._whole(name, default, 0)

    def number(self, name: str, default: float | None = None, *, above: float) -> float:
        """Return a finite number greater than `above`; absent or null is `default`."""
        value = self._or_default(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refused(name, "a number is needed")
        if not (math.isfinite(value) and value > above):
            raise self.refused(name, f"a finite number above {above} is needed")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false; absent or null is `default`."""
        value = self._or_default(name, default)
        if not isinstance(value, bool):
            raise self.refused(name, "true or false is needed")
        return value

    def text(self, name: str) -> str | None:
        """Return a string, or None when absent or null."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.refused(name, "text is needed")
        return value

    def group(self, name: str) -> "Fields":
        """Return the object under `name`; absent or null is an empty one."""
        value = self.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.refused(name, "an object is needed")
        return Fields(cast("Mapping[str, object]", value), f"{self._where}: {name}")

    def only(self, name: str, allowed: tuple[object, ...]) -> None:
        """Refuse a value of `name` that is not one of `allowed`; absent is fine."""
        if name in self._values and self.get(name) not in allowed:
            values = " or ".join("null" if value is None else repr(value) for value in allowed)
            raise self.refused(name, f"supported is only {values}")

    def refused(self, name: str, supported: str, value: object = None) -> UnsupportedModel:
        """Return the error for `name`; its value is looked up unless given."""
        shown = self.get(name) if value is None else value
        what = f"is {repr(shown)[:_SHOWN]}" if shown is not None else "is missing"
        return UnsupportedModel(f"{self._where}: {name} {what}; {supported}")

    def _whole(self, name: str, default: int | None, least: int) -> int:
        value = self._or_default(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_COUNT:
            raise self.refused(name, f"a whole number from {least} to {MAX_COUNT} is needed")
        return value

    def _or_default(self, name: str, default: object) -> object:
        value = self.get(name)
        return default if value is None else value
