"""A strict reader of a TOML table: an unknown key and a value of the wrong type are errors.

Every error names the file and the full key, because users write such files themselves. Does not know the meaning of the
figures.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from eaglelocal.core.toml_text import read_toml_file
from eaglelocal.errors import UsageError

MONTH = re.compile(r"20\d\d-(0[1-9]|1[0-2])")
MAX_NUMBER = 2**53  # upper limit on any number
Value = str | int | float | bool
T = TypeVar("T")
REQUIRED = dataclasses.MISSING  # as a missing value: that is an error


class TomlTable:
    """A table whose keys are read one by one; `close` raises on those that were not.

    `read` fills a dataclass. The other readers return None if the key is missing.
    """

    def __init__(self, content: Mapping[str, object], *, path: Path, name: str = "") -> None:
        self.content = content
        self.path = path
        self._name = name
        self._read_keys: set[str] = set()

    @classmethod
    def of_file(cls, path: Path) -> TomlTable:
        """Read a file. Raises UsageError if it cannot be read or is not TOML."""
        try:
            return cls(read_toml_file(path), path=path)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(str(error)) from error

    def read(self, record: Callable[..., T], **known: object) -> T:
        """Return a dataclass of the values under its fields' names, each read by its annotation; close the table.

        A flag, a list or a table may be missing, and so may a field that has a default or allows None.

        known  the fields that the caller has read
        """
        for name, key, read, bounds, missing in _list_columns(record):
            if name not in known:
                value = read(self, key, **bounds)
                known[name] = (
                    value if value is not None else self.require(key, None) if missing is REQUIRED else missing
                )
        self.close()
        return record(**known)

    def text(self, key: str) -> str | None:
        return self._read_typed(key, "text", str)

    def month(self, key: str) -> str | None:
        """Return a month, `YYYY-MM`."""
        value = self.text(key)
        if value is None or MONTH.fullmatch(value):
            return value
        raise self._value_error(key, "a month such as 2026-04", value)

    def flag(self, key: str) -> bool | None:
        return self._read_typed(key, "true or false", bool)

    def count(self, key: str, *, minimum: int = 0, maximum: int = MAX_NUMBER) -> int | None:
        value = self._read_typed(key, "a whole number", int)
        return None if value is None else int(self._check_bounds(key, value, minimum, maximum))

    def number(self, key: str, *, minimum: float = 0.0, maximum: float = MAX_NUMBER) -> float | None:
        value = self._read_typed(key, "a number", int, float)
        return None if value is None else float(self._check_bounds(key, value, minimum, maximum))

    def texts(self, key: str) -> tuple[str, ...] | None:
        what = "a list of texts"
        value = self._read_typed(key, what, list)
        if value is not None and not all(isinstance(part, str) for part in value):
            raise self._value_error(key, what, value)
        return None if value is None else tuple(value)

    def pairs(self, key: str) -> tuple[tuple[int, float], ...] | None:
        """Return a list of `[whole number, number]`."""
        what = "a list of [whole number, number]"
        value = self._read_typed(key, what, list)
        if value is not None and not all(map(_is_pair, value)):
            raise self._value_error(key, what, value)
        return None if value is None else tuple((first, float(second)) for first, second in value)

    def values(self, key: str) -> Mapping[str, Value] | None:
        """Return a table of plain values under any keys."""
        what = "a table of texts and numbers"
        value = self._read_typed(key, what, dict)
        if value is not None and not all(isinstance(part, Value) for part in value.values()):
            raise self._value_error(key, what, value)
        return None if value is None else MappingProxyType(value)

    def table(self, key: str) -> TomlTable | None:
        value = self._read_typed(key, "a table", dict)
        return None if value is None else TomlTable(value, path=self.path, name=self._full_key(key))

    def tables(self) -> Iterator[tuple[str, TomlTable]]:
        """Yield every key, each of which must be a table."""
        for key in self.content:
            yield key, self.require(key, self.table(key))

    def require(self, key: str, value: T | None) -> T:
        """Return the value of a key that must not be missing."""
        if value is None:
            near = difflib.get_close_matches(key, self.content.keys() - self._read_keys, n=1)
            hint = f"the table has {self._full_key(near[0])} instead" if near else ""
            raise self.error(f"lacks the key {self._full_key(key)}", hint=hint)
        return value

    def close(self) -> None:
        """Raise UsageError if a key was not read."""
        for key in self.content:
            if key not in self._read_keys:
                near = difflib.get_close_matches(key, sorted(self._read_keys), n=1)
                known = ", ".join(sorted(self._read_keys))
                hint = f"did you mean {near[0]}?" if near else f"known keys are {known}"
                raise self.error(f"unknown key {self._full_key(key)}", hint=hint)

    def error(self, message: str, *, hint: str = "") -> UsageError:
        return UsageError(f"{self.path}: {message}", hint=hint)

    def _check_bounds(self, key: str, value: float, minimum: float, maximum: float) -> float:
        if minimum <= value <= maximum:  # false for NaN
            return value
        bounds = (
            f"a number from {minimum:.15g} to {maximum:.15g}" if maximum < MAX_NUMBER else f"at least {minimum:.15g}"
        )
        raise self._value_error(key, bounds, value)

    def _read_typed(self, key: str, what: str, *kinds: type[T]) -> T | None:
        """Return a value of one of these types. A flag is no number."""
        self._read_keys.add(key)
        value = self.content.get(key)
        if value is None or (isinstance(value, kinds) and (kinds == (bool,) or not isinstance(value, bool))):
            return value
        raise self._value_error(key, what, value)

    def _value_error(self, key: str, what: str, value: object) -> UsageError:
        return self.error(f"{self._full_key(key)} must be {what}, not {value!r:.60}")

    def _full_key(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key


def _is_pair(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2 or any(isinstance(part, bool) for part in value):
        return False
    return (
        isinstance(value[0], int) and value[0] > 0 and isinstance(value[1], int | float) and abs(value[1]) < MAX_NUMBER
    )


# ---- records
# readers of a field by its annotation, and what a missing value is
_READERS: Mapping[str, tuple[Callable[..., object], object]] = {
    "str": (TomlTable.text, REQUIRED),
    "bool": (TomlTable.flag, False),
    "int": (TomlTable.count, REQUIRED),
    "float": (TomlTable.number, REQUIRED),
    "tuple[str, ...]": (TomlTable.texts, ()),
    "tuple[tuple[int, float], ...]": (TomlTable.pairs, ()),
    "Mapping[str, Value]": (TomlTable.values, MappingProxyType({})),
}


def limits(minimum: float = 0, maximum: float = MAX_NUMBER, *, key: str = "") -> Mapping[str, Any]:
    """Return the metadata of a field: the bounds of its number, and its key if that is not its name."""
    return {"key": key, "limits": {"minimum": minimum, "maximum": maximum}}


@lru_cache(maxsize=16)
def _list_columns(record: Any) -> list[tuple[str, str, Callable[..., object], Mapping[str, float], object]]:
    """Return name, key, reader, bounds and missing value of each field that has a reader."""
    columns = []
    for field in dataclasses.fields(record):
        kind, _, optional = str(field.type).partition(" | ")
        if kind in _READERS:  # the caller reads the others
            read, missing = _READERS[kind]
            missing = field.default if field.default is not REQUIRED else None if optional else missing
            key = field.metadata.get("key") or field.name
            columns.append((field.name, key, read, field.metadata.get("limits", {}), missing))
    return columns
