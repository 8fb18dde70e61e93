"""Overwrite values in the header of a GGUF in place: flags, numbers, and arrays of numbers of unchanged length.

It records what was measured about a file without writing the weights again. Strings and lengths cannot change,
because everything after them would move.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from eaglelocal.errors import ResourceError
from eaglelocal.gguf.cursor import malformed_error
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.values import ArrayValue, ValueType, encode_scalars, width_bytes

Number = int | float | bool


def patch_header(header: Header, changes: Mapping[str, Number | tuple[Number, ...]]) -> None:
    """Write the new values into the first file and flush it; read the header again afterwards.

    Raises ModelFileError where a key is missing or the new value has another kind or length, ResourceError where the
    file cannot be written. Nothing is written before all changes are known to fit.
    """
    pieces = [_piece(header, key, value) for key, value in changes.items()]
    try:
        with header.path.open("r+b") as file:
            for offset, raw in pieces:
                file.seek(offset)
                file.write(raw)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ResourceError(f"cannot write {header.path.name}: {error.strerror}") from error


def _piece(header: Header, key: str, value: Number | tuple[Number, ...]) -> tuple[int, bytes]:
    old = header.metadata.get(key)
    if isinstance(old, ArrayValue):
        if not isinstance(value, tuple) or len(value) != old.count or width_bytes(old.type) is None:
            raise malformed_error(header.path.name, f"{key} is an array of {old.count}, which {value} cannot replace")
        return old.offset, _encoded(header, key, old.type, value)
    if old is None or isinstance(old, str) or isinstance(value, tuple):
        raise malformed_error(header.path.name, f"{key} is not a number, so {value} cannot replace it")
    return header.value_offsets[key], _encoded(header, key, header.value_types[key], (value,))


def _encoded(header: Header, key: str, kind: ValueType, values: tuple[Number, ...]) -> bytes:
    try:
        return encode_scalars(kind, values)
    except ValueError as error:
        raise malformed_error(header.path.name, f"{key}: {error}") from error
