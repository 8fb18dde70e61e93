"""A head that was published in 16 or 8 bits, written once more in fewer: what the engine drafts with.

Copies lie in the cache, under names that tell the original's state, so that a head which changes gets a new one; those
whose original is gone or has changed go when the next is written. Where none can be written the original drafts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from eaglelocal import locations
from eaglelocal.errors import EagleLocalError, ResourceError
from eaglelocal.gguf.header import Header, TensorInfo
from eaglelocal.gguf.lighter import lighter_types
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_raw, read_rows
from eaglelocal.gguf.types import GgmlType
from eaglelocal.gguf.values import ValueType
from eaglelocal.gguf.writer import Bytes, Entry, StreamedTensor, copied_entries
from eaglelocal.hub.heads.store import written
from eaglelocal.hub.heads.weights import PIECE_BYTES, encode

METHOD = "1"  # part of every name: raise it when the same original would give another copy
ORIGIN_KEY = "eaglelocal.copy_of"
FILE_TYPE_KEY = "general.file_type"
FILE_TYPES = {"q4_0": 2, "q8_0": 7}

Progress = Callable[[float], None]


def light_copy(path: Path, kind: str, *, on_progress: Progress) -> Path:
    """The copy of a head in the type `kind`, written now unless it is there; the head itself where none is lighter.

    Raises ModelFileError where the head cannot be read.
    """
    header = read_header(path)
    types = lighter_types(header, kind)
    if not types:
        return path
    with suppress(OSError, ResourceError):  # a full disk: the original drafts as well, only dearer
        copy = place_of(path, kind)
        if not _is_current(copy):  # or it is damaged
            drop_stale(copy.parent)
            _write(copy, header, types, kind, on_progress)
        return copy
    return path


def place_of(path: Path, kind: str) -> Path:
    """Where the copy of a head lies, or will. Raises OSError where there is no such head."""
    original, status = path.resolve(), path.stat()
    told = f"{METHOD} {original} {status.st_size} {status.st_mtime_ns} {kind}"
    digest = hashlib.sha256(told.encode()).hexdigest()[:12]
    return locations.light_heads_dir() / f"{path.stem[:80]}-{digest}-{kind}.gguf"


def copies_of(path: Path) -> list[Path]:
    """Those that are on disk."""
    with suppress(OSError):
        return [copy for kind in FILE_TYPES if (copy := place_of(path, kind)).is_file()]
    return []


def drop_stale(folder: Path) -> None:
    """Copies that nothing would take any more."""
    for copy in folder.glob("*.gguf"):
        if not _is_current(copy):
            with suppress(OSError):
                copy.unlink()


def _is_current(copy: Path) -> bool:
    try:
        origin = read_header(copy).metadata.get(ORIGIN_KEY)
    except EagleLocalError:
        return False
    return isinstance(origin, str) and copy in copies_of(Path(origin))


def _write(copy: Path, header: Header, types: Mapping[str, GgmlType], kind: str, on_progress: Progress) -> None:
    entries = [
        *copied_entries(header, without=frozenset({"general.architecture", FILE_TYPE_KEY, ORIGIN_KEY})),
        Entry(FILE_TYPE_KEY, ValueType.UINT32, FILE_TYPES[kind]),
        Entry(ORIGIN_KEY, ValueType.STRING, str(header.path.absolute())),
    ]
    tensors = [_tensor(header, tensor, types.get(name)) for name, tensor in header.tensors.items()]
    with written(copy, entries, tensors, on_progress=on_progress):
        pass


def _tensor(header: Header, tensor: TensorInfo, light: GgmlType | None) -> StreamedTensor:
    if light is None:
        return StreamedTensor(tensor.name, tensor.shape, tensor.type, lambda: iter([read_raw(header, tensor.name)]))
    return StreamedTensor(tensor.name, tensor.shape, light, lambda: _encoded(header, tensor, light))


def _encoded(header: Header, tensor: TensorInfo, light: GgmlType) -> Iterator[Bytes]:
    columns, rows = tensor.shape
    step = max(1, PIECE_BYTES // (4 * columns))
    for first in range(0, rows, step):
        values = read_rows(header.path, header, tensor.name, range(first, min(first + step, rows)))
        yield encode(values, light, tensor.name)
