"""A reader of safetensors files: a JSON header, then the tensors' bytes. Nothing in such a file is ever executed.

The format is eight bytes of length, the header, the data; all of it is checked against the file's size before it is
used. Rows are read on demand and returned as float32, bfloat16 included, which numpy does not know. Does not know the
meaning of tensors.
"""

from __future__ import annotations

import itertools
import json
import math
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.cursor import malformed_error
from eaglelocal.gguf.writer import write_pieces

if TYPE_CHECKING:
    from eaglelocal.gguf.writer import Bytes


Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

MAX_HEADER_BYTES = 25_000_000  # the hub has the same limit
MAX_TENSORS = 1 << 15  # heads have some dozens; whole models of many experts have 100 000
MAX_DIMENSIONS = 8
ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
    | {"F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "U32": 4, "U64": 8}
)
FLOATS: Mapping[str, str] = MappingProxyType({"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"})
INTS: Mapping[str, str] = MappingProxyType({"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1", "BOOL": "<u1"})


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in its file: `nbytes` bytes at `offset`."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # numpy's order: (rows, columns)
    path: Path
    offset: int
    nbytes: int

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    def rows(self, first: int, end: int) -> Floats:
        """Return rows first..end-1 of a matrix [rows, columns]. Raises ModelFileError on non-finite numbers."""
        row_bytes = self.nbytes // self.shape[0]
        raw = self._read(first * row_bytes, (end - first) * row_bytes)
        return self._as_floats(raw).reshape(end - first, -1)

    def floats(self) -> Floats:
        """Return the whole tensor as float32, in its shape."""
        return self._as_floats(self._read(0, self.nbytes)).reshape(self.shape)

    def integers(self) -> Ints:
        """Return the whole tensor as int64. Raises ModelFileError if it does not hold integers."""
        if self.dtype not in INTS:
            raise malformed_error(self.path.name, f"tensor {self.name} is {self.dtype} where integers are due")
        return np.frombuffer(self._read(0, self.nbytes), INTS[self.dtype]).astype(np.int64).reshape(self.shape)

    def _as_floats(self, raw: bytes) -> Floats:
        if not self.is_float:
            known = ", ".join(FLOATS)
            raise malformed_error(
                self.path.name, f"tensor {self.name} is {self.dtype}; weights are read as {known}", hint=""
            )
        numbers = np.frombuffer(raw, FLOATS[self.dtype])
        if self.dtype == "BF16":
            floats = (numbers.astype(np.uint32) << 16).view(np.float32)
        else:
            floats = numbers.astype(np.float32)
        if not np.isfinite(floats).all():
            raise malformed_error(self.path.name, f"tensor {self.name} holds numbers that are not finite")
        return floats

    def _read(self, start: int, num_bytes: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset + start)
                raw = file.read(num_bytes)
        except OSError as error:
            raise malformed_error(self.path.name, f"cannot be read: {error.strerror}") from error
        if len(raw) != num_bytes:
            raise malformed_error(self.path.name, f"cut short inside tensor {self.name}")
        return raw


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of one file by name. Raises ModelFileError, with the figure, on any inconsistency."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise malformed_error(path.name, "is not a regular file", hint="")
        with path.open("rb") as file:
            header, data_offset = _read_header(file, path, found.st_size)
    except OSError as error:
        raise malformed_error(path.name, f"cannot be read: {error.strerror}") from error
    check_count(path, len(header))
    tensors = [
        _tensor(path, name, entry, data_offset, found.st_size - data_offset)
        for name, entry in header.items()
        if name != "__metadata__"
    ]
    for before, after in itertools.pairwise(sorted(tensors, key=lambda tensor: tensor.offset)):
        if before.offset + before.nbytes > after.offset:
            raise malformed_error(path.name, f"tensor {after.name} overlaps {before.name}")
    return {tensor.name: tensor for tensor in tensors}


def check_count(path: Path, num_tensors: int) -> None:
    """Raise ModelFileError if there are more tensors than any head has."""
    if num_tensors > MAX_TENSORS:
        raise malformed_error(
            path.name, f"{num_tensors} tensors, more than the limit of {MAX_TENSORS} for a head", hint=""
        )


def _read_header(file: BinaryIO, path: Path, file_bytes: int) -> tuple[dict[str, object], int]:
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, file_bytes - 8):
        raise malformed_error(path.name, f"no safetensors file: a header of {length} bytes in a file of {file_bytes}")
    raw, num_objects = file.read(length), itertools.count(1)

    def check_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if next(num_objects) > MAX_TENSORS + 2:  # one of each tensor, the metadata, the whole
            raise _TooManyObjects
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name is there twice")
        return found

    try:
        header = json.loads(raw, object_pairs_hook=check_object)
    except RecursionError:
        raise malformed_error(path.name, "its header is nested too deeply") from None
    except _TooManyObjects:
        raise malformed_error(path.name, f"more than {MAX_TENSORS} tensors, the limit for a head", hint="") from None
    except ValueError as error:
        raise malformed_error(path.name, f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise malformed_error(path.name, "its header is no JSON object")
    return header, 8 + length


class _TooManyObjects(Exception):
    """A header with too many tensors; the rest of it need not be read."""


def _tensor(path: Path, name: str, entry: object, data_offset: int, data_bytes: int) -> StoredTensor:
    if not isinstance(entry, dict):
        raise malformed_error(path.name, f"tensor {name}: no entry but {str(entry)[:40]}")
    dtype, shape, bounds = entry.get("dtype"), _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise malformed_error(path.name, f"tensor {name} has the unknown type {str(dtype)[:40]}")
    if bounds is None or len(bounds) != 2 or bounds[0] > bounds[1]:
        raise malformed_error(path.name, f"tensor {name} has the offsets {str(entry.get('data_offsets'))[:80]}")
    if shape is None or len(shape) > MAX_DIMENSIONS:
        raise malformed_error(path.name, f"tensor {name} has the shape {str(entry.get('shape'))[:80]}")
    begin, end = bounds
    tensor = StoredTensor(name, dtype, shape, path, data_offset + begin, end - begin)
    if not 0 < math.prod(shape) * ITEM_BYTES[dtype] == tensor.nbytes:
        raise malformed_error(path.name, f"tensor {name} {shape} of {dtype} lies in {tensor.nbytes} bytes")
    if end > data_bytes:
        raise malformed_error(
            path.name, f"cut short: tensor {name} ends at byte {end} of the data, but it has {data_bytes}"
        )
    return tensor


def _counts(values: object) -> tuple[int, ...] | None:
    if not isinstance(values, list):
        return None
    counts = tuple(value for value in values if isinstance(value, int) and not isinstance(value, bool) and value >= 0)
    return counts if len(counts) == len(values) else None


# ---- safetensors writer: a writer of safetensors files whose tensors arrive in pieces, so that a head of any size
# needs little memory
#
# A head of several gigabytes is split into shards with an index, as hubs and readers expect. Does not know the meaning
# of tensors.
SHARD_BYTES = 5_000_000_000  # as transformers splits
HEADER_MULTIPLE = 8  # bytes to which the header is padded with spaces, so that the data is aligned
ONE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"

OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class OutgoingTensor:
    """A tensor to write; `pieces` gives its bytes in order.

    dtype  as safetensors names it, such as BF16
    shape  numpy's order: (rows, columns)
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[Bytes]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def write_shards(
    folder: Path, tensors: Sequence[OutgoingTensor], *, on_bytes: OnBytes, shard_bytes: int = SHARD_BYTES
) -> list[Path]:
    """Write the tensors into one file, or several and their index, and return the files with tensors.

    on_bytes     called with the size of each piece written
    shard_bytes  the most data in a file, unless a single tensor has more

    Raises OSError.
    """
    shards = split_tensors(tensors, shard_bytes)
    if len(shards) == 1:
        write_safetensors(folder / ONE_FILE, tensors, on_bytes=on_bytes)
        return [folder / ONE_FILE]
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        write_safetensors(folder / name, shard, on_bytes=on_bytes)
    places = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    total = sum(tensor.nbytes for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return [folder / name for name in names]


def split_tensors(tensors: Sequence[OutgoingTensor], shard_bytes: int) -> list[list[OutgoingTensor]]:
    """Split tensors, in their order, into shards of at most `shard_bytes`; a larger tensor gets a shard of its own."""
    shards: list[list[OutgoingTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    return shards


def write_safetensors(path: Path, tensors: Sequence[OutgoingTensor], *, on_bytes: OnBytes) -> None:
    """Write one file. Raises OSError."""
    with path.open("xb") as file:
        file.write(make_header(tensors))
        for tensor in tensors:
            write_pieces(file, tensor.pieces(), on_bytes, name=tensor.name, num_bytes=tensor.nbytes)


def make_header(tensors: Sequence[OutgoingTensor]) -> bytes:
    """Return the length of the header in eight bytes, and the header."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}  # without it transformers refuses the file
    begin = 0
    for tensor in tensors:
        end = begin + tensor.nbytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_MULTIPLE)
    return len(text).to_bytes(8, "little") + text
