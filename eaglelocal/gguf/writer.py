"""A writer of GGUF files whose tensors arrive in pieces, so that a file of any size needs little memory.

The `gguf` package writes the header, keys and tensor entries; the data after them is appended here,
because the package wants whole tensors. It does not interpret the data.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from eaglelocal.core.records import dataclass
from eaglelocal.errors import ResourceError
from eaglelocal.gguf.architectures import EAGLE
from eaglelocal.gguf.cursor import malformed_error
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME, GgmlType
from eaglelocal.gguf.header import (
    ArrayValue,
    Header,
    Scalar,
    TensorInfo,
    ValueType,
    encode_scalars,
    round_up,
    width_bytes,
)

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


def list_entries(values: Mapping[str, Scalar | tuple[Scalar, ...]]) -> list[KeyValue]:
    """Return keys with their values in the types that models have them in: counts are UINT32, arrays of them INT32."""
    types = {bool: ValueType.BOOL, int: ValueType.UINT32, float: ValueType.FLOAT32, str: ValueType.STRING}
    elements = {**types, int: ValueType.INT32}
    return [
        KeyValue(key, ValueType.ARRAY, value, elements[type(value[0])])
        if isinstance(value, tuple)
        else KeyValue(key, types[type(value)], value)
        for key, value in values.items()
    ]


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


@dataclass(frozen=True, slots=True)
class GgufPart:
    """A GGUF of a file; most files have one. Those behind the first begin at a multiple of `alignment`."""

    architecture: str
    entries: Sequence[KeyValue]
    tensors: Sequence[StreamedTensor]
    alignment: int = ALIGNMENT


def write_streamed(path: Path, parts: Sequence[GgufPart], on_bytes: Callable[[int], None]) -> None:
    """Write the file and flush it. `on_bytes` is called with the size of each piece written."""
    _write_head(path, parts[0])
    with path.open("ab") as file:
        _append_data(file, parts[0].tensors, on_bytes)
        for part in parts[1:]:
            _pad(file, part.alignment)
            with tempfile.TemporaryDirectory() as folder:
                head = Path(folder) / "head.gguf"
                _write_head(head, part)
                file.write(head.read_bytes())
            _append_data(file, part.tensors, on_bytes)


def _append_data(file: BinaryIO, tensors: Sequence[StreamedTensor], on_bytes: Callable[[int], None]) -> None:
    _pad(file)
    for tensor in tensors:
        write_pieces(file, tensor.pieces(), on_bytes, name=tensor.name, num_bytes=tensor.nbytes)
        _pad(file)
    file.flush()


def _write_head(path: Path, part: GgufPart) -> None:
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter  # slow to import

    writer = GGUFWriter(path, part.architecture)
    for entry in part.entries:
        element = None if entry.element_type is None else GGUFValueType(entry.element_type)
        writer.add_key_value(entry.key, entry.value, GGUFValueType(entry.type), sub_type=element)
    for tensor in part.tensors:
        kind = GGMLQuantizationType(tensor.type.id)
        writer.add_tensor_info(tensor.name, tensor.shape[::-1], np.dtype(np.float32), tensor.nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def write_pieces(
    file: BinaryIO, pieces: Iterable[Bytes], on_bytes: Callable[[int], None], *, name: str, num_bytes: int
) -> None:
    """Write a tensor's data, in order. Raises OSError, and ValueError if its length differs from the entry's."""
    written = 0
    for piece in pieces:
        file.write(piece.data)
        written += piece.nbytes
        on_bytes(piece.nbytes)
    if written != num_bytes:
        raise ValueError(f"tensor {name} came as {written} bytes, not {num_bytes}")


def count_share(total_bytes: int, on_progress: Callable[[float], None]) -> Callable[[int], None]:
    """Return a callback that takes the size of each piece written, and reports the share that is done."""
    done_bytes = 0

    def count(num_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += num_bytes
        on_progress(done_bytes / total_bytes)

    return count


def _pad(file: BinaryIO, alignment: int = ALIGNMENT) -> None:
    file.write(bytes(-file.tell() % alignment))


# ---- header patch: overwrite values in the header of a GGUF in place: flags, numbers, and arrays of numbers of
# unchanged length
#
# This records measurements in a file without writing the weights again. Strings and lengths cannot change,
# because everything after them would move.
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


def roll_columns(header: Header, name: str, num_blocks: int) -> None:
    """Move the columns of a matrix to the right in place, by so many blocks of its type; those at the end come first.

    Raises ResourceError where the file cannot be written.
    """
    import numpy as np

    tensor = header.tensors[name]
    try:
        with header.path.open("r+b") as file:
            start = header.data_offset + tensor.offset
            file.seek(start)
            blocks = np.frombuffer(file.read(tensor.nbytes), np.uint8).reshape(
                tensor.shape[1], -1, tensor.type.block_bytes
            )
            file.seek(start)
            file.write(np.roll(blocks, num_blocks, 1).tobytes())
            file.flush()
    except OSError as error:
        raise ResourceError(f"cannot write {header.path.name}: {error.strerror}") from error


# ---- head requantization: choose the tensors of an EAGLE head to quantize further than in the published file
#
# A drafted token costs a pass over the head, and every draft is verified anyway: bits that hardly change the drafts
# are not worth reading (docs/architecture/step.md). Decides by name, type and shape, without the weights.
AS_IN_FILE = "file"
BEST_TYPE = "q4_0"  # what `auto` means
MIN_BYTES = 8 << 20  # a smaller head fits the CPU's caches in any type
HEAVY_TYPES = frozenset({"F32", "F16", "BF16", "Q8_0"})
MIN_SAVED_SHARE = 0.2  # share of the bytes read per token
EMBEDDING = "token_embd.weight"  # one row is read per token, so its bits cost memory, not time
EMBEDDING_TYPE = GGML_TYPES_BY_NAME["Q8_0"]


def choose_head_type(setting: str) -> str:
    """Resolve a setting to a quantization: `auto` is BEST_TYPE, anything else is itself."""
    return BEST_TYPE if setting == "auto" else setting


def choose_tensor_types(header: Header, kind: str) -> Mapping[str, GgmlType]:
    """Return the new types, by tensor name, of a copy quantized to `kind`; empty if there should be no copy."""
    if kind == AS_IN_FILE or header.metadata.get("general.architecture") != EAGLE or header.tensor_bytes < MIN_BYTES:
        return {}
    new_type = GGML_TYPES_BY_NAME[kind.upper()]
    types = {name: EMBEDDING_TYPE if name == EMBEDDING else new_type for name in header.tensors}
    smaller = {name: new_type for name, new_type in types.items() if _gets_smaller(header.tensors[name], new_type)}
    read = {name: tensor for name, tensor in header.tensors.items() if name != EMBEDDING}
    saved_bytes = sum(
        read[name].nbytes - _bytes_as(read[name], new_type) for name, new_type in smaller.items() if name in read
    )
    return smaller if saved_bytes >= MIN_SAVED_SHARE * sum(tensor.nbytes for tensor in read.values()) else {}


def requantize_header(header: Header, kind: str) -> Header:
    """Return the header that such a copy has, except for the offsets of its tensors."""
    changed = {
        name: replace(header.tensors[name], type=new_type, nbytes=_bytes_as(header.tensors[name], new_type))
        for name, new_type in choose_tensor_types(header, kind).items()
    }
    return replace(header, tensors={**header.tensors, **changed})


def _gets_smaller(tensor: TensorInfo, new_type: GgmlType) -> bool:
    fits = len(tensor.shape) == 2 and tensor.shape[0] % new_type.block_elements == 0
    return fits and tensor.type.name in HEAVY_TYPES and _bytes_as(tensor, new_type) < tensor.nbytes


def _bytes_as(tensor: TensorInfo, kind: GgmlType) -> int:
    return kind.row_bytes(tensor.shape[0]) * (tensor.num_elements // tensor.shape[0])
