"""The values of a GGUF key: thirteen types, and arrays that are decoded only on request.

A vocabulary is an array of many strings that most readers of a header never look at, so an
`ArrayValue` keeps the position of its bytes, and `Header.array` decodes them. Opens no file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

import numpy as np

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


# numpy spelling of the fixed-width types, little endian; a bool is one byte that is 0 or 1
_FORMATS: Mapping[ValueType, str] = MappingProxyType(
    {
        ValueType.UINT8: "<u1",
        ValueType.INT8: "<i1",
        ValueType.UINT16: "<u2",
        ValueType.INT16: "<i2",
        ValueType.UINT32: "<u4",
        ValueType.INT32: "<i4",
        ValueType.FLOAT32: "<f4",
        ValueType.BOOL: "<u1",
        ValueType.UINT64: "<u8",
        ValueType.INT64: "<i8",
        ValueType.FLOAT64: "<f8",
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
    return None if spelled is None else np.dtype(spelled).itemsize


def decode_scalar(kind: ValueType, raw: bytes) -> int | float | bool:
    """Decode a fixed-width value. Raises ValueError on a bool that is neither 0 nor 1."""
    value: int | float = np.frombuffer(raw, _FORMATS[kind])[0].item()
    if kind is not ValueType.BOOL:
        return value
    if value not in (0, 1):
        raise ValueError(f"a bool holds {value}")
    return bool(value)


def encode_scalars(kind: ValueType, values: Sequence[int | float | bool]) -> bytes:
    """Encode fixed-width values as a file holds them. Raises ValueError where one does not fit the type."""
    spelled = np.dtype(_FORMATS[kind])
    if spelled.kind in "iu" and any(not np.iinfo(spelled).min <= value <= np.iinfo(spelled).max for value in values):
        raise ValueError(f"{list(values)} do not fit {kind.name}")
    return np.asarray(values, spelled).tobytes()


def decode_array(array: ArrayValue, raw: bytes) -> tuple[Scalar, ...]:
    """Decode the elements of an array whose `nbytes` bytes are `raw`. Raises ValueError where they do not fit."""
    if len(raw) != array.nbytes:
        raise ValueError(f"{len(raw)} bytes where {array.nbytes} were")
    if array.type is ValueType.STRING:
        return tuple(text.decode("utf-8", errors="replace") for text in split_strings(raw, array.count))
    numbers = np.frombuffer(raw, _FORMATS[array.type])
    return tuple((numbers != 0).tolist() if array.type is ValueType.BOOL else numbers.tolist())


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
