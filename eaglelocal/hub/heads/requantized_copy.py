"""A head's copy with fewer bits than the published 16 or 8; the engine drafts with this copy.

Copies are in the cache, under names that depend on the original's state, so a changed head gets a new copy. When the
next copy is written, those with a missing or changed original are deleted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import unquote_to_bytes

from eaglelocal import locations
from eaglelocal.core.own_files import is_own, list_own
from eaglelocal.errors import EagleLocalError, ResourceError
from eaglelocal.gguf.architectures import TOKENS_KEY
from eaglelocal.gguf.ggml_types import FILE_TYPE_IDS, GgmlType
from eaglelocal.gguf.header import Header, TensorInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.writer import StreamedTensor, choose_tensor_types, copy_entries, list_entries, requantize_header
from eaglelocal.hub.heads.head_store import delete_leftovers, write_head_file

METHOD = "1"  # part of every name: raise it when the same original would give another copy
ORIGIN_KEY = "eaglelocal.copy_of"  # as a file: URL, because paths need not be text
FILE_TYPE_KEY = "general.file_type"
LIGHT_TYPES = ("q4_0", "q8_0")
MAX_STEM = 40  # letters of a name: they may take four bytes each

Progress = Callable[[float], None]


def make_light_copy(path: Path, kind: str, *, on_progress: Progress) -> Path:
    """Return a head's copy in the type `kind`, written now if it is missing; the head itself if no copy is smaller.

    Raises ModelFileError if the head cannot be read, ResourceError if the copy cannot be written.
    """
    header = read_header(path)
    types = choose_tensor_types(header, kind)
    if not types:
        return path
    try:
        copy = make_copy_path(path, kind)
        if not is_current(copy):  # or it is damaged
            delete_stale_copies(copy.parent)
            _write(copy, header, types, kind, on_progress)
        return copy
    except (OSError, ValueError) as error:
        raise _make_copy_error(kind, str(error)) from error
    except ResourceError as error:
        raise _make_copy_error(kind, error.message) from error


def _make_copy_error(kind: str, reason: str) -> ResourceError:
    message = f"no copy of the head in {kind} could be written: {reason}"
    return ResourceError(message, hint="free some space, or `--draft-type file`")


def make_copy_path(path: Path, kind: str) -> Path:
    """Return the path of a head's copy, written or not. Raises OSError or ModelFileError if the head is missing."""
    digest = hashlib.sha256(f"{METHOD} {kind}".encode())
    for shard in read_header(path, keys=()).shards:
        status = shard.path.stat()
        digest.update(os.fsencode(shard.path.resolve()) + f" {status.st_size} {status.st_mtime_ns} ".encode())
    return locations.light_heads_dir() / f"{path.stem[:MAX_STEM]}-{digest.hexdigest()[:12]}-{kind}.gguf"


def list_copies() -> list[Path]:
    """Return the copies of all heads, also outdated ones."""
    return list_own(locations.light_heads_dir(), "*.gguf")


def find_copies(path: Path) -> list[Path]:
    """Return the copies of a head that are on disk."""
    with suppress(OSError, EagleLocalError):
        return [copy for kind in LIGHT_TYPES if is_own(copy := make_copy_path(path, kind))]
    return []


def delete_stale_copies(folder: Path) -> int:
    """Delete outdated copies, and leftovers of killed writers; return the bytes that this freed."""
    freed = 0
    for copy in folder.glob("*.gguf"):
        if not is_current(copy):
            with suppress(OSError):
                num_bytes = copy.stat().st_size
                copy.unlink()
                freed += num_bytes
    return freed + delete_leftovers(folder)


def is_current(copy: Path) -> bool:
    """Return whether the copy is whole, and its original unchanged."""
    try:
        origin = read_header(copy, keys=(ORIGIN_KEY,)).metadata.get(ORIGIN_KEY)
    except EagleLocalError:
        return False
    if not isinstance(origin, str):
        return False
    return copy in find_copies(Path(os.fsdecode(unquote_to_bytes(origin.removeprefix("file://")))))


def _write(copy: Path, header: Header, types: Mapping[str, GgmlType], kind: str, on_progress: Progress) -> None:
    entries = [
        *copy_entries(header, without=frozenset({FILE_TYPE_KEY, ORIGIN_KEY})),
        *list_entries({FILE_TYPE_KEY: FILE_TYPE_IDS[kind], ORIGIN_KEY: header.path.absolute().as_uri()}),
    ]
    tensors = [_stream_tensor(header, tensor, types.get(name)) for name, tensor in header.tensors.items()]
    with write_head_file(copy, entries, tensors, on_progress=on_progress) as made:
        _check(read_header(made), header, kind)


def _check(copy: Header, original: Header, kind: str) -> None:
    """Raise ResourceError if the tensors or tokens of the copy differ from the requested ones."""
    kept = [
        [(t.name, t.shape, t.type) for t in head.tensors.values()] for head in (copy, requantize_header(original, kind))
    ]
    if kept[0] != kept[1] or copy.array_bytes(TOKENS_KEY) != original.array_bytes(TOKENS_KEY):
        raise ResourceError(f"{original.path.name} came out otherwise than it should")


def _stream_tensor(header: Header, tensor: TensorInfo, light: GgmlType | None) -> StreamedTensor:
    from eaglelocal.gguf.tensors import read_span, stream_copy  # imports numpy
    from eaglelocal.hub.heads.tensor_names import encode_pieces

    if light is None:
        return stream_copy(header, tensor, tensor.name)
    columns, num_rows = tensor.shape
    pieces = encode_pieces(tensor.name, partial(read_span, header, tensor.name), (num_rows, columns), light)
    return StreamedTensor(tensor.name, tensor.shape, light, pieces)
