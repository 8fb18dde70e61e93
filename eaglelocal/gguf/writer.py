"""A writer of GGUF files whose tensors arrive in pieces, so that a file of any size needs little memory.

The `gguf` package writes the header, keys and tensor entries; the data after them is appended here,
because the package wants whole tensors. It does not interpret the data.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.data_layout import round_up
from eaglelocal.gguf.ggml_types import GgmlType
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.values import ArrayValue, Scalar, ValueType

if TYPE_CHECKING:  # numpy is imported when a file is written
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

ALIGNMENT = 32
# keys that describe the layout of the source file, not of its copy
LAYOUT_KEYS = frozenset({"general.architecture", "general.alignment", "split.no", "split.count", "split.tensors.count"})


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key with its value; `element_type` only where the value is an array."""

    key: str
    type: ValueType
    value: Scalar | tuple[Scalar, ...]
    element_type: ValueType | None = None


class PiecedTensor(Protocol):
    """A tensor whose data comes in pieces, in order."""

    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def pieces(self) -> Callable[[], Iterator[Bytes]]: ...


@dataclass(frozen=True, slots=True)
class StreamedTensor:
    """A tensor that can be produced piece by piece; `pieces` gives its bytes in order."""

    name: str
    shape: tuple[int, ...]  # ggml order
    type: GgmlType
    pieces: Callable[[], Iterator[Bytes]]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.type.row_bytes(self.shape[0]) * (self.num_elements // self.shape[0])


def copy_entries(header: Header, *, without: frozenset[str]) -> list[KeyValue]:
    """Return the keys of a file unchanged, arrays included, except those in LAYOUT_KEYS and `without`."""
    entries = []
    for key, value in header.metadata.items():
        if key in LAYOUT_KEYS or key in without:
            continue
        if not isinstance(value, ArrayValue):
            entries.append(KeyValue(key, header.value_types[key], value))
        elif value.count:  # the package refuses empty arrays, and llama.cpp does not need them
            entries.append(KeyValue(key, ValueType.ARRAY, header.array(key) or (), value.type))
    return entries


def max_file_bytes(entries: Sequence[KeyValue], tensors: Sequence[StreamedTensor]) -> int:
    """Return an upper bound of the file's size in bytes."""
    texts = sum(len(str(entry.value)) + 8 * _length(entry.value) + 64 for entry in entries)
    return 4 * texts + sum(round_up(tensor.nbytes, ALIGNMENT) + 256 for tensor in tensors)


def _length(value: Scalar | tuple[Scalar, ...]) -> int:
    return len(value) if isinstance(value, tuple) else 1


def write_streamed(
    path: Path,
    architecture: str,
    *,
    entries: Iterable[KeyValue],
    tensors: Sequence[StreamedTensor],
    on_bytes: Callable[[int], None],
) -> None:
    """Write the file and flush it. `on_bytes` is called with the size of each piece written."""
    _write_head(path, architecture, entries, tensors)
    with path.open("ab") as file:
        _append_data(file, tensors, on_bytes)


def append_streamed(
    path: Path,
    architecture: str,
    *,
    entries: Iterable[KeyValue],
    tensors: Sequence[StreamedTensor],
    on_bytes: Callable[[int], None],
    alignment: int,
) -> None:
    """Write another GGUF behind the one in the file, at a multiple of `alignment`, and flush it."""
    with tempfile.TemporaryDirectory() as folder:
        head = Path(folder) / "head.gguf"
        _write_head(head, architecture, entries, tensors)
        with path.open("ab") as file:
            _pad(file, alignment)
            file.write(head.read_bytes())
            _append_data(file, tensors, on_bytes)


def _append_data(file: BinaryIO, tensors: Sequence[StreamedTensor], on_bytes: Callable[[int], None]) -> None:
    _pad(file)
    for tensor in tensors:
        _append(file, tensor, on_bytes)
    file.flush()


def _write_head(path: Path, architecture: str, entries: Iterable[KeyValue], tensors: Sequence[StreamedTensor]) -> None:
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter  # slow to import

    writer = GGUFWriter(path, architecture)
    for entry in entries:
        element = None if entry.element_type is None else GGUFValueType(entry.element_type)
        writer.add_key_value(entry.key, entry.value, GGUFValueType(entry.type), sub_type=element)
    for tensor in tensors:
        kind = GGMLQuantizationType(tensor.type.id)
        writer.add_tensor_info(tensor.name, tensor.shape[::-1], np.dtype(np.float32), tensor.nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def _append(file: BinaryIO, tensor: StreamedTensor, on_bytes: Callable[[int], None]) -> None:
    write_pieces(file, tensor, on_bytes)
    _pad(file)


def write_pieces(file: BinaryIO, tensor: PiecedTensor, on_bytes: Callable[[int], None]) -> None:
    """Write a tensor's data. Raises OSError, and ValueError if it comes with another number of bytes."""
    written = 0
    for piece in tensor.pieces():
        file.write(piece.data)
        written += piece.nbytes
        on_bytes(piece.nbytes)
    if written != tensor.nbytes:
        raise ValueError(f"tensor {tensor.name} came as {written} bytes, not {tensor.nbytes}")


def _pad(file: BinaryIO, alignment: int = ALIGNMENT) -> None:
    file.write(bytes(-file.tell() % alignment))
