"""The data of a GGUF header: metadata, tensor entries and the files that hold them.

Plain data, checked by `reader.py` before it exists. Tensor shapes are in ggml's order: the first
dimension is the contiguous one, the reverse of numpy's.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, TypeVar

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.cursor import malformed_error
from eaglelocal.gguf.ggml_types import GgmlType

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's entry: its `nbytes` bytes begin at `data_offset + offset` of shard number `shard`."""

    name: str
    shape: tuple[int, ...]  # ggml order: (columns, rows, ...)
    type: GgmlType
    offset: int
    nbytes: int
    shard: int = 0

    @property
    def num_elements(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of a model: most models are one file, large ones are `-00001-of-00003.gguf` and so on.

    begin  where in the file it begins, if it follows another GGUF (upper_layers.py)
    """

    path: Path
    file_bytes: int
    data_offset: int
    begin: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """A checked GGUF header. `metadata` holds scalars as they are and arrays as `ArrayValue`."""

    version: int
    metadata: Mapping[str, Value]
    value_types: Mapping[str, ValueType]
    value_offsets: Mapping[str, int]  # where in the first file each value lies
    tensors: Mapping[str, TensorInfo]
    shards: tuple[Shard, ...]

    @property
    def path(self) -> Path:
        return self.shards[0].path

    @property
    def architecture(self) -> str:
        """The model's architecture, as llama.cpp names it. Raises ModelFileError if the file states none."""
        value = self.metadata.get("general.architecture")
        if not isinstance(value, str) or not value:
            raise malformed_error(self.path.name, "lacks the key general.architecture")
        return value

    @property
    def data_offset(self) -> int:
        return self.shards[0].data_offset

    @property
    def file_bytes(self) -> int:
        """The bytes on disk, all shards together."""
        return sum(shard.file_bytes for shard in self.shards)

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def main_type(self) -> str:
        """The tensor type with the most bytes, such as Q4_K; `none` without any tensors."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors.values():
            sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.nbytes
        return max(sizes, key=lambda name: sizes[name], default="none")

    def array(self, key: str) -> tuple[Scalar, ...] | None:
        """Read the elements of an array from the file; None if there is no such array.

        Raises ModelFileError if they cannot be read.
        """
        value = self.metadata.get(key)
        if not isinstance(value, ArrayValue):
            return None
        return self._read(key, value, lambda raw: decode_array(value, raw))

    def string_bytes(self, key: str) -> list[bytes] | None:
        """Read the elements of an array of strings, undecoded; None if there is no such array."""
        value = self.metadata.get(key)
        if not isinstance(value, ArrayValue) or value.type is not ValueType.STRING:
            return None
        return self._read(key, value, lambda raw: split_strings(raw, value.count))

    def array_bytes(self, key: str) -> bytes:
        """Read an array's raw bytes, to compare or hash them; empty where there is no such array."""
        value = self.metadata.get(key)
        return self._read(key, value, bytes) if isinstance(value, ArrayValue) else b""

    def _read(self, key: str, array: ArrayValue, decode: Callable[[bytes], T]) -> T:
        try:
            with self.path.open("rb") as file:
                file.seek(array.offset)
                return decode(file.read(array.nbytes))
        except (OSError, ValueError) as error:
            raise malformed_error(self.path.name, f"cannot read {key}: {error}") from error

    def array_count(self, key: str) -> int | None:
        value = self.metadata.get(key)
        return value.count if isinstance(value, ArrayValue) else None


# ---- values: the values of a GGUF key: thirteen types, and arrays that are decoded only on request
#
# A vocabulary is an array of many strings that most readers of a header never look at, so an `ArrayValue` keeps the
# position of its bytes, and `Header.array` decodes them. Opens no file.
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
    """Encode fixed-width values as a file holds them. Raises ValueError if one does not fit the type."""
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


# ---- split files: the parts of a model that is split into several files: which part a file is, and the paths of the
# others
#
# llama.cpp names them `NAME-00001-of-00003.gguf` and opens the first; the keys split.no (from zero) and split.count
# say the same inside. Uses names and keys, opens nothing.
MAX_SHARDS = 1024
_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def split_place(path: Path, metadata: Mapping[str, Value]) -> tuple[int, int]:
    """Return (index from zero, number of parts); (0, 1) for an unsplit file.

    Raises ModelFileError on impossible numbers.
    """
    count = _count(path, metadata, "split.count", default=1)
    index = _count(path, metadata, "split.no", default=0)
    if count > MAX_SHARDS:
        raise malformed_error(path.name, f"claims to be one of {count} parts, more than the limit of {MAX_SHARDS}")
    if index >= max(count, 1):
        raise malformed_error(path.name, f"says it is part {index + 1} of {count}")
    return index, max(count, 1)


def _count(path: Path, metadata: Mapping[str, Value], key: str, *, default: int) -> int:
    value = metadata.get(key, default)
    if not isinstance(value, int) or value < 0:
        raise malformed_error(path.name, f"{key} is {value!r}, not a count")
    return value


def following_paths(path: Path, metadata: Mapping[str, Value]) -> tuple[Path, ...]:
    """Return the other parts of the model whose first part is `path`. Raises ModelFileError on a later part."""
    index, count = split_place(path, metadata)
    if count == 1:
        return ()
    named = _NAME.fullmatch(path.name)
    if named is None or int(named["count"]) != count or int(named["number"]) != index + 1:
        raise malformed_error(
            path.name,
            f"is part {index + 1} of {count}, but its name does not say so",
            hint=f"name the parts NAME-00001-of-{count:05}.gguf and so on",
        )
    if index:
        raise malformed_error(
            path.name, f"is part {index + 1} of {count}", hint=f"give the first: {_part(path, named['stem'], 1, count)}"
        )
    return tuple(_part(path, named["stem"], number, count) for number in range(2, count + 1))


def list_named_parts(path: Path) -> tuple[Path, ...]:
    """Return the paths of all parts of a split model, given one of them; the file alone if it is not split."""
    named = _NAME.fullmatch(path.name)
    count = int(named["count"]) if named else 1
    if named is None or not 1 < count <= MAX_SHARDS:
        return (path,)
    return tuple(_part(path, named["stem"], number, count) for number in range(1, count + 1))


def _part(path: Path, stem: str, number: int, count: int) -> Path:
    return path.with_name(f"{stem}-{number:05}-of-{count:05}.gguf")


def round_up(num_bytes: int, alignment: int) -> int:
    return -(-num_bytes // alignment) * alignment


# ---- tensor bytes: a tensor's raw bytes, without numpy, so that planning is quick; tensors.py decodes them
def read_index_range(header: Header, name: str) -> tuple[int, int]:
    """Return the smallest and the largest element of an integer tensor (I64 or I32), such as `d2t`.

    Raises ModelFileError on any other type.
    """
    tensor = find_integers(header, name)
    spelled = "q" if tensor.type.name == "I64" else "i"
    numbers = struct.unpack(f"<{tensor.num_elements}{spelled}", read_bytes(header, tensor))
    return min(numbers), max(numbers)


def find_integers(header: Header, name: str) -> TensorInfo:
    """Return the entry of an integer tensor. Raises ModelFileError if it is missing, or of another type."""
    tensor = find_tensor(header, name)
    if tensor.type.name not in ("I64", "I32"):
        raise malformed_error(header.path.name, f"tensor {name} is {tensor.type.name}, not integers")
    return tensor


def find_tensor(header: Header, name: str) -> TensorInfo:
    """Return the entry of a tensor. Raises ModelFileError if it is missing."""
    if name not in header.tensors:
        raise malformed_error(header.path.name, f"has no tensor {name}")
    return header.tensors[name]


def read_bytes(header: Header, tensor: TensorInfo) -> bytes:
    """Return the tensor's bytes, undecoded. Raises ModelFileError where they are cut short."""
    return read_parts(header, tensor, [0], tensor.nbytes)


def read_parts(header: Header, tensor: TensorInfo, starts: Sequence[int], num_bytes: int) -> bytes:
    """Read `num_bytes` bytes from each of these offsets in the tensor, and join them."""
    shard = header.shards[tensor.shard]
    try:
        with shard.path.open("rb") as file:
            raw = b"".join(_read(file, shard.data_offset + tensor.offset + start, num_bytes) for start in starts)
    except OSError as error:
        raise malformed_error(shard.path.name, f"cannot be read: {error.strerror}") from error
    if len(raw) != len(starts) * num_bytes:
        raise malformed_error(
            shard.path.name, f"cut short: tensor {tensor.name} has {len(raw)} of {len(starts) * num_bytes} bytes"
        )
    return raw


def _read(file: BinaryIO, part: int, num_bytes: int) -> bytes:
    file.seek(part)
    return file.read(num_bytes)
