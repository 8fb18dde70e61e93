"""The data of a GGUF header: metadata, tensor entries and the files that hold them.

Plain data, checked by `reader.py` before it exists. Tensor shapes are in ggml's order: the first
dimension is the contiguous one, the reverse of numpy's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.cursor import malformed_error
from eaglelocal.gguf.ggml_types import GgmlType
from eaglelocal.gguf.values import ArrayValue, Scalar, Value, ValueType, decode_array, split_strings

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
        """Read the elements of an array from the file; None where there is no such array.

        Raises ModelFileError if they cannot be read.
        """
        value = self.metadata.get(key)
        if not isinstance(value, ArrayValue):
            return None
        return self._read(key, value, lambda raw: decode_array(value, raw))

    def string_bytes(self, key: str) -> list[bytes] | None:
        """Read the elements of an array of strings, undecoded; None where there is no such array."""
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
