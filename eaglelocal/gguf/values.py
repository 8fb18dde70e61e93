"""The values of a GGUF key: thirteen types, and arrays that are decoded only on request.

A vocabulary is an array of many strings that most readers of a header never look at, so an
`ArrayValue` keeps the position of its bytes, and `Header.array` decodes them. Opens no file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType

from eaglelocal.core.records import dataclass

Scalar = str | int | float | bool


class ValueType(IntEnum):
    """The types of values, by their numbers in a GGUF."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# spelling of the fixed-width types for struct; a bool is one byte that is 0 or 1
_FORMATS: Mapping[ValueType, str] = MappingProxyType(
    {
        ValueType.UINT8: "B",
        ValueType.INT8: "b",
        ValueType.UINT16: "H",
        ValueType.INT16: "h",
        ValueType.UINT32: "I",
        ValueType.INT32: "i",
        ValueType.FLOAT32: "f",
        ValueType.BOOL: "B",
        ValueType.UINT64: "Q",
        ValueType.INT64: "q",
        ValueType.FLOAT64: "d",
    }
)
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class ArrayValue:
    """An array left in the file: `nbytes` bytes at `offset` hold `count` elements of `type`."""

    count: int
    type: ValueType
    offset: int
    nbytes: int


Value = Scalar | ArrayValue


def width_bytes(kind: ValueType) -> int | None:
    """Return the bytes of one element, or None for strings and arrays, whose length is in the file."""
    spelled = _FORMATS.get(kind)
    return None if spelled is None else struct.calcsize(f"<{spelled}")


def decode_scalar(kind: ValueType, raw: bytes) -> int | float | bool:
    """Decode a fixed-width value. Raises ValueError on a bool that is neither 0 nor 1."""
    value: int | float = struct.unpack(f"<{_FORMATS[kind]}", raw)[0]
    if kind is not ValueType.BOOL:
        return value
    if value not in (0, 1):
        raise ValueError(f"a bool holds {value}")
    return bool(value)


def encode_scalars(kind: ValueType, values: Sequence[int | float | bool]) -> bytes:
    """Encode fixed-width values as a file holds them. Raises ValueError where one does not fit the type."""
    import numpy as np

    spelled = np.dtype(f"<{_FORMATS[kind]}")
    if spelled.kind in "iu" and any(not np.iinfo(spelled).min <= value <= np.iinfo(spelled).max for value in values):
        raise ValueError(f"{list(values)} do not fit {kind.name}")
    return np.asarray(values, spelled).tobytes()


def decode_array(array: ArrayValue, raw: bytes) -> tuple[Scalar, ...]:
    """Decode the elements of an array whose `nbytes` bytes are `raw`. Raises ValueError where they do not fit."""
    if len(raw) != array.nbytes:
        raise ValueError(f"{len(raw)} bytes where {array.nbytes} were")
    if array.type is ValueType.STRING:
        return tuple(text.decode("utf-8", errors="replace") for text in split_strings(raw, array.count))
    spelled = _FORMATS[array.type]
    count, rest = divmod(len(raw), struct.calcsize(f"<{spelled}"))
    if rest:
        raise ValueError(f"{rest} bytes after {count} elements")
    numbers = struct.unpack(f"<{count}{spelled}", raw)
    return tuple(map(bool, numbers)) if array.type is ValueType.BOOL else numbers


def split_strings(raw: bytes, count: int) -> list[bytes]:
    """Split an array's bytes into its `count` strings. Raises ValueError where they do not fit."""
    texts: list[bytes] = []
    at = 0
    for _ in range(count):
        if at + _LENGTH.size > len(raw):
            raise ValueError(f"{len(texts)} strings where {count} were")
        end = at + _LENGTH.size + _LENGTH.unpack_from(raw, at)[0]
        texts.append(raw[at + _LENGTH.size : end])
        at = end
    return texts
