"""Read and check a GGUF header before llama.cpp, which would abort on or misread a damaged file, opens it.

Versions 2 and 3, little endian. Every count, length and offset is compared with the file's size and
with a sane limit before it is used, so a damaged file costs neither memory nor time: it is refused
with a `ModelFileError` that carries the figure. Arrays are skipped and decoded on request, so that a
large vocabulary costs little. Tensor data is never touched.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from eaglelocal.gguf.cursor import HeaderCursor, malformed_error
from eaglelocal.gguf.ggml_types import GGML_TYPES, REMOVED_TYPES, GgmlType
from eaglelocal.gguf.header import (
    ArrayValue,
    Header,
    Scalar,
    Shard,
    TensorInfo,
    Value,
    ValueType,
    decode_scalar,
    following_paths,
    round_up,
    split_place,
    width_bytes,
)
from eaglelocal.gguf.upper_layers import (
    ALIGNMENT,
    MAX_LAYERS,
    NUM_LAYERS_KEY,
    check_upper_metadata,
    count_layers,
    merge_tensors,
)

MAX_KEYS = 1 << 16
MAX_KEY_BYTES = (1 << 16) - 1
MAX_TENSORS = 1 << 17
MAX_TENSOR_NAME_BYTES = 63
MAX_DIMENSIONS = 4
MAX_STRING_BYTES = 1 << 24
MAX_STRINGS = 1 << 21  # in all arrays together; the largest vocabularies with merges have 0.8 M
DEFAULT_ALIGNMENT = 32

_GIVE_GGUF = "give the path of a .gguf file; `eaglelocal ls` lists those on this disk"
_MIN_KEY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8
_REQUIRED_KEYS = frozenset({"general.alignment", "split.no", "split.count", NUM_LAYERS_KEY})


def read_header(path: Path, *, keys: Collection[str] | None = None) -> Header:
    """Read the header of a GGUF file, or of all shards of a split model given its first.

    A head of several layers, whose file holds two GGUFs, is read as one model.

    `keys` limits the metadata to those named. Raises ModelFileError, with the figure, if the file is not a sound GGUF.
    """
    first = _read_part(path, keys)
    parts = [first, *(_read_part(more, _REQUIRED_KEYS) for more in following_paths(path, first.metadata))]
    tensors = _merged_tensors(parts)
    if count_layers(first.metadata) > 1:
        upper = _read_upper_part(first, keys)
        tensors = merge_tensors(tensors, upper.tensors.values(), shard=1)
        below = replace(first.shards[0], file_bytes=upper.shards[0].begin)
        parts = [replace(first, shards=(below,)), upper]
    kept = [key for key in first.metadata if keys is None or key in keys]
    return replace(
        first,
        metadata=MappingProxyType({key: first.metadata[key] for key in kept}),
        value_types=MappingProxyType({key: first.value_types[key] for key in kept}),
        value_offsets=MappingProxyType({key: first.value_offsets[key] for key in kept}),
        tensors=MappingProxyType(tensors),
        shards=tuple(shard for part in parts for shard in part.shards),
    )


def _merged_tensors(parts: list[Header]) -> dict[str, TensorInfo]:
    merged: dict[str, TensorInfo] = {}
    for number, part in enumerate(parts):
        index, _ = split_place(part.path, part.metadata)
        if index != number:
            raise malformed_error(part.path.name, f"says it is part {index + 1}, expected part {number + 1}")
        for tensor in part.tensors.values():
            if tensor.name in merged:
                raise malformed_error(part.path.name, f"tensor {tensor.name} is there twice")
            merged[tensor.name] = replace(tensor, shard=number)
    return merged


def _read_upper_part(first: Header, keys: Collection[str] | None) -> Header:
    """Read the GGUF that follows the first one in its file: the upper layers of a head."""
    path, num_layers = first.path, count_layers(first.metadata)
    if num_layers > MAX_LAYERS:
        raise malformed_error(path.name, f"claims {num_layers} layers, more than the limit of {MAX_LAYERS}")
    data_bytes = max((tensor.offset + tensor.nbytes for tensor in first.tensors.values()), default=0)
    begin = round_up(first.data_offset + data_bytes, ALIGNMENT)
    if begin >= first.file_bytes:
        raise malformed_error(path.name, f"cut short: its layers 1 to {num_layers - 1} are missing")
    upper = _read_part(path, keys, begin=begin)
    if keys is None:
        check_upper_metadata(first.metadata, upper.metadata, upper.tensors.values(), file=path.name)
    return upper


def _read_part(path: Path, keys: Collection[str] | None, *, begin: int = 0) -> Header:
    try:
        file_bytes = _regular_file_bytes(path)
        with path.open("rb") as file:
            return _parse(file, path, file_bytes, keys, begin=begin)
    except OSError as error:
        why = error.strerror or str(error)
        raise malformed_error(path.name, f"cannot be read: {why}", hint="check the path and its permissions") from error


def _regular_file_bytes(path: Path) -> int:
    try:
        found = os.stat(path)
    except ValueError as error:
        raise malformed_error(repr(path.name), f"not a path: {error}", hint=_GIVE_GGUF) from error
    if not stat.S_ISREG(found.st_mode):  # a pipe would block forever
        what = "is a folder" if stat.S_ISDIR(found.st_mode) else "is not a regular file"
        raise malformed_error(path.name or str(path), what, hint=_GIVE_GGUF)
    return found.st_size


def _parse(file: BinaryIO, path: Path, file_bytes: int, keys: Collection[str] | None, *, begin: int = 0) -> Header:
    """Return the header of one file, or of one of the GGUFs in it."""
    cursor = HeaderCursor(file, file_bytes, path.name, begin=begin)
    version = _read_version(cursor)
    num_tensors = _read_count(cursor, "tensors", MAX_TENSORS, _MIN_TENSOR_BYTES)
    num_keys = _read_count(cursor, "keys", MAX_KEYS, _MIN_KEY_BYTES)
    entries = _MetadataReader(cursor, keys)
    entries.read(num_keys)
    metadata, value_types = entries.values, entries.types
    alignment = _alignment(cursor, metadata, value_types)
    tensors = _read_tensors(cursor, num_tensors)
    data_offset = round_up(cursor.position, alignment) if tensors else cursor.position
    if data_offset > file_bytes:
        raise malformed_error(path.name, f"cut short: its data starts at byte {data_offset}, but it has {file_bytes}")
    check_layout(tuple(tensors.values()), alignment=alignment, data_bytes=file_bytes - data_offset, file=path.name)
    shard = Shard(path, file_bytes - begin, data_offset, begin)
    return Header(version, metadata, value_types, entries.offsets, tensors, (shard,))


def _read_version(cursor: HeaderCursor) -> int:
    magic = cursor.take(min(4, cursor.remaining_bytes), "the magic")
    if magic != b"GGUF":
        found = f"starts with {magic.decode('latin-1')!r}" if magic else "is empty"
        hint = "fetch the file again" if cursor.name.endswith(".gguf") else _GIVE_GGUF
        raise malformed_error(cursor.name, f"not a GGUF file: it {found}", hint=hint)
    version = cursor.u32("the version")
    if version and not version & 0xFFFF:
        raise malformed_error(cursor.name, "a big-endian GGUF", hint="fetch the little-endian file")
    if version not in (2, 3):
        raise malformed_error(cursor.name, f"GGUF version {version}, versions 2 and 3 are known")
    return version


def _read_count(cursor: HeaderCursor, what: str, limit: int, min_bytes: int) -> int:
    count = cursor.u64(f"the number of {what}")
    if count > limit:
        raise malformed_error(cursor.name, f"claims {count} {what}, more than the limit of {limit}")
    cursor.require(count * min_bytes, f"the list of {count} {what}")
    return count


def _read_name(cursor: HeaderCursor, what: str, max_bytes: int) -> str:
    raw = cursor.string(what, max_bytes=max_bytes)
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise malformed_error(cursor.name, f"{what} is not UTF-8: {raw[:32]!r}") from error
    if not name or "\0" in name:
        raise malformed_error(cursor.name, f"{what} is {name!r}")
    return name


class _MetadataReader:
    """A reader of the key-value part that keeps the named keys (None: all) and skips the rest."""

    def __init__(self, cursor: HeaderCursor, keys: Collection[str] | None) -> None:
        self._cursor = cursor
        self._keys = keys
        self._strings_left = MAX_STRINGS
        self.values: dict[str, Value] = {}
        self.types: dict[str, ValueType] = {}
        self.offsets: dict[str, int] = {}

    def read(self, num_keys: int) -> None:
        seen: set[str] = set()
        for number in range(num_keys):
            key = _read_name(self._cursor, f"key {number}", MAX_KEY_BYTES)
            if key in seen:
                raise malformed_error(self._cursor.name, f"key {key} is there twice")
            seen.add(key)
            self._read_entry(key)

    def _read_entry(self, key: str) -> None:
        kind, offset = self._value_type(key), self._cursor.position
        value = self._read_array(key) if kind is ValueType.ARRAY else self._read_scalar(key, kind)
        if self._keys is None or key in self._keys or key in _REQUIRED_KEYS:
            self.values[key], self.types[key], self.offsets[key] = value, kind, offset

    def _value_type(self, key: str) -> ValueType:
        number = self._cursor.u32(f"the type of {key}")
        try:
            return ValueType(number)
        except ValueError:
            raise malformed_error(self._cursor.name, f"{key} has the unknown value type {number}") from None

    def _read_scalar(self, key: str, kind: ValueType) -> Scalar:
        if kind is ValueType.STRING:
            return self._cursor.string(key, max_bytes=MAX_STRING_BYTES).decode("utf-8", errors="replace")
        raw = self._cursor.take(width_bytes(kind) or 0, key)
        try:
            return decode_scalar(kind, raw)
        except ValueError as error:
            raise malformed_error(self._cursor.name, f"{key}: {error}") from None

    def _read_array(self, key: str) -> ArrayValue:
        kind = self._value_type(key)
        if kind is ValueType.ARRAY:  # llama.cpp has no nested arrays either
            raise malformed_error(self._cursor.name, f"{key} is an array of arrays")
        count = self._cursor.u64(f"the length of {key}")
        start, width = self._cursor.position, width_bytes(kind)
        if width is None:
            self._skip_strings(key, count)
        else:
            self._cursor.skip(width * count, key)
        return ArrayValue(count, kind, start, self._cursor.position - start)

    def _skip_strings(self, key: str, count: int) -> None:
        if count > self._strings_left:
            raise malformed_error(
                self._cursor.name, f"{key} claims {count} strings, more than the limit of {MAX_STRINGS}"
            )
        self._strings_left -= count
        self._cursor.skip_strings(count, key)


def _alignment(cursor: HeaderCursor, metadata: Mapping[str, Value], types: Mapping[str, ValueType]) -> int:
    if "general.alignment" not in metadata:
        return DEFAULT_ALIGNMENT
    value = metadata["general.alignment"]
    if types["general.alignment"] is not ValueType.UINT32 or not isinstance(value, int):
        raise malformed_error(cursor.name, "general.alignment is not a 32-bit count")
    if value < 1 or value & (value - 1):
        raise malformed_error(cursor.name, f"general.alignment is {value}, not a power of two")
    return value


def _read_tensors(cursor: HeaderCursor, num_tensors: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for number in range(num_tensors):
        tensor = _read_tensor_info(cursor, number)
        if tensor.name in tensors:
            raise malformed_error(cursor.name, f"tensor {tensor.name} is there twice")
        tensors[tensor.name] = tensor
    return tensors


def _read_tensor_info(cursor: HeaderCursor, number: int) -> TensorInfo:
    name = _read_name(cursor, f"the name of tensor {number}", MAX_TENSOR_NAME_BYTES)
    num_dimensions = cursor.u32(f"the dimensions of {name}")
    if num_dimensions > MAX_DIMENSIONS:
        raise malformed_error(
            cursor.name, f"tensor {name} has {num_dimensions} dimensions, at most {MAX_DIMENSIONS} are known"
        )
    shape = tuple(cursor.u64(f"the shape of {name}") for _ in range(num_dimensions))
    kind = tensor_type(cursor.u32(f"the type of {name}"), file=cursor.name, tensor=name)
    offset = cursor.u64(f"the offset of {name}")
    return TensorInfo(name, shape, kind, offset, tensor_bytes(shape, kind, file=cursor.name, tensor=name))


# ---- data layout: rules of llama.cpp for the data section of a GGUF: sizes, alignment and order of tensors
#
# Pure checks on numbers. Tensors follow each other in the order of their entries, each padded to the alignment.
# llama.cpp refuses anything else; so do these checks, with the figures.
MAX_ELEMENTS = 2**63 - 1


def tensor_type(type_id: int, *, file: str, tensor: str) -> GgmlType:
    kind = GGML_TYPES.get(type_id)
    if kind is None:
        why = f"removed type {REMOVED_TYPES[type_id]}" if type_id in REMOVED_TYPES else f"unknown type {type_id}"
        raise malformed_error(
            file, f"tensor {tensor} has {why}", hint="convert the model again with a current llama.cpp"
        )
    return kind


def tensor_bytes(shape: tuple[int, ...], kind: GgmlType, *, file: str, tensor: str) -> int:
    """Return the bytes of a tensor. Raises ModelFileError on empty dimensions, overflow and incomplete blocks."""
    num_elements = 1
    for size in shape:
        num_elements *= size
        if not 0 < num_elements <= MAX_ELEMENTS:
            raise malformed_error(file, f"tensor {tensor} has the impossible shape {shape}")
    columns = shape[0] if shape else 1
    if columns % kind.block_elements:
        raise malformed_error(
            file, f"tensor {tensor} has rows of {columns}, not a multiple of {kind.name}'s block {kind.block_elements}"
        )
    return kind.row_bytes(columns) * (num_elements // columns)


def check_layout(tensors: Sequence[TensorInfo], *, alignment: int, data_bytes: int, file: str) -> None:
    """Check that every tensor is aligned, inside the file, and begins where the one before it ends.

    Raises ModelFileError with the offsets.
    """
    expected, previous = 0, "the start"
    for tensor in tensors:
        end = tensor.offset + tensor.nbytes
        if tensor.offset % alignment:
            raise malformed_error(
                file, f"tensor {tensor.name} has offset {tensor.offset}, not a multiple of {alignment}"
            )
        if end > data_bytes:
            raise malformed_error(
                file, f"cut short: tensor {tensor.name} ends at byte {end} of the data, but it has {data_bytes}"
            )
        if tensor.offset < expected:
            raise malformed_error(file, f"tensor {tensor.name} at offset {tensor.offset} overlaps {previous}")
        if tensor.offset > expected:
            raise malformed_error(file, f"tensor {tensor.name} has offset {tensor.offset}, expected {expected}")
        expected, previous = round_up(end, alignment), tensor.name
