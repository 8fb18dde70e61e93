"""Imported heads on disk: one folder for each kind of target, in which `--draft auto` looks.

A kind of target is its architecture, width, depth and tokens; so all quantizations of a model, and its fine-tunes, have
the same heads. The target's name in a head's file shows whether it was made for this very model. Writing is all or
nothing: a head appears under its name once it is complete and has passed its trial.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from eaglelocal import locations
from eaglelocal.catalog.reference import GGUF_SUFFIX
from eaglelocal.core.amounts import format_disk
from eaglelocal.core.atomic_file import PRIVATE, SHARED, flush_and_rename, make_folder
from eaglelocal.core.own_files import list_own
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, ResourceError
from eaglelocal.gguf.architectures import TOKENS_KEY
from eaglelocal.gguf.draft_pairing import is_same_model
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.head_info import check_head
from eaglelocal.gguf.medusa_info import MedusaInfo, read_graph_head
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.upper_layers import split_head
from eaglelocal.gguf.writer import KeyValue, StreamedTensor, count_share, max_file_bytes, write_streamed
from eaglelocal.probe.probe import free_bytes
from eaglelocal.probe.process_info import is_alive, start_mark

MAX_HEADS = 64  # of one kind of target, the newest, that are read
SPARE_DISK_BYTES = 200_000_000
PARTIAL = ".partial"
WRITER = r"(?P<pid>\d+)-(?P<birth>[\w.]+)"  # in the name of a partial file, so that others know when it is abandoned
PARTIAL_NAME = re.compile(rf"{re.escape(GGUF_SUFFIX)}\.{WRITER}{re.escape(PARTIAL)}$")
TRAINED_HERE = ", trained here"  # suffix of the names of such heads

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class StoredHead:
    path: Path
    info: EagleInfo | MedusaInfo
    is_own: bool  # made for a target of this name


def make_target_folder(target: ModelInfo) -> Path:
    """Return the folder of the heads for this kind of target."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{target.architecture} {target.n_embd} {target.n_layer}".encode())
    digest.update(target.header.array_bytes(TOKENS_KEY))
    return locations.heads_dir() / digest.hexdigest()


def make_head_path(target: ModelInfo, name: str, kind: str) -> Path:
    """Return the path for a head of this name, in the type `kind`."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "head"
    return make_target_folder(target) / f"{slug}-{kind}.gguf"


def list_fitting_heads(target: ModelInfo) -> list[StoredHead]:
    """Return the heads that fit this target, those made for it first, then the newest; damaged files are skipped."""
    found = []
    for path in list_heads(target):
        with suppress(EagleLocalError):
            info = read_graph_head(read_header(path))
            check_head(info, target)
            found.append(StoredHead(path, info, is_same_model(info.target_name, target.name)))
    return sorted(found, key=lambda head: not head.is_own)


def list_heads(target: ModelInfo) -> list[Path]:
    """Return all heads in the folder of this kind of target, the newest first, including those that cannot draft."""
    dated = []
    has_any = locations.heads_dir().is_dir()  # the folder's name takes a hash of all tokens
    for path in list_own(make_target_folder(target), "*.gguf") if has_any else []:
        with suppress(OSError):  # it was just deleted
            dated.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(dated, reverse=True)[:MAX_HEADS]]


@dataclass(frozen=True, slots=True)
class UnfinishedHead:
    """A partial file that an import is writing, or left behind."""

    path: Path
    size_bytes: int
    is_being_written: bool


def find_unfinished_heads() -> list[UnfinishedHead]:
    """Return the partial files in the folders where `--draft auto` looks."""
    found = []
    for path in sorted(locations.heads_dir().glob(f"*/*{PARTIAL}")):
        with suppress(OSError):  # it was just deleted
            is_written = bool(PARTIAL_NAME.search(path.name)) and not is_abandoned(path.name, PARTIAL_NAME)
            found.append(UnfinishedHead(path, path.stat().st_size, is_written))
    return found


def name_writer() -> str:
    """Return the name of this process, as WRITER matches it."""
    return f"{os.getpid()}-{start_mark(os.getpid())}"


def is_abandoned(name: str, pattern: re.Pattern[str]) -> bool:
    """Return whether a file's name ends with the id of a process that has ended."""
    writer = pattern.search(name)
    return writer is not None and not is_alive(int(writer["pid"]), writer["birth"])


def delete_leftovers(folder: Path) -> int:
    """Delete only the partial files of killed writers; return the bytes that this freed."""
    freed = 0
    for partial in folder.glob(f"*{PARTIAL}"):
        if is_abandoned(partial.name, PARTIAL_NAME):
            with suppress(OSError):
                num_bytes = partial.stat().st_size
                partial.unlink()
                freed += num_bytes
    return freed


@contextmanager
def write_head_file(
    path: Path, entries: Sequence[KeyValue], tensors: Sequence[StreamedTensor], *, on_progress: Progress
) -> Iterator[Path]:
    """Write a complete head beside `path`. If the block ends without an error it is renamed to `path`, else deleted.

    Raises ResourceError if the disk is too small or cannot be written.
    """
    partial = path.with_name(f"{path.name}.{name_writer()}{PARTIAL}")
    delete_leftovers(path.parent)
    try:
        _write(partial, entries, tensors, on_progress)
        yield partial
        try:
            flush_and_rename(partial, path)
        except OSError as error:
            raise _make_write_error(path, error) from error
    finally:
        with suppress(OSError):  # nothing was written, perhaps not even the folder
            partial.unlink()


def _make_folder(folder: Path) -> None:
    make_folder(folder, PRIVATE if folder.is_relative_to(locations.state_dir()) else SHARED)


def check_writable(path: Path) -> None:
    """Make the folder of `path`. Raises ResourceError where no file can be made in it."""
    try:
        _make_folder(path.parent)
        with tempfile.TemporaryFile(dir=path.parent):
            return
    except OSError as error:
        raise _make_write_error(path.parent, error) from error


def _make_write_error(place: Path, error: OSError) -> ResourceError:
    return ResourceError(
        f"cannot write {place}: {error.strerror}",
        hint=f"--out {locations.suggest_path('head.gguf')}",
    )


def _write(path: Path, entries: Sequence[KeyValue], tensors: Sequence[StreamedTensor], on_progress: Progress) -> None:
    parts = split_head(entries, tensors)
    count = count_share(sum(tensor.nbytes for part in parts for tensor in part.tensors), on_progress)
    try:
        _make_folder(path.parent)
        check_disk(path.parent, max_file_bytes(entries, tensors), remedy="`--type q8_0`")
        write_streamed(path, parts, count)
    except OSError as error:
        raise _make_write_error(path.parent, error) from error


def check_disk(folder: Path, wanted_bytes: int, *, remedy: str) -> None:
    """Raise ResourceError if a head of this size does not fit.

    remedy  a hint besides freeing space
    """
    free = free_bytes(folder)
    missing_bytes = wanted_bytes + SPARE_DISK_BYTES - free
    if missing_bytes > 0:
        raise ResourceError(
            f"the head takes {format_disk(wanted_bytes)} on disk, {format_disk(free)} are free in {folder}",
            hint=f"free {format_disk(missing_bytes)}, or {remedy}",
        )
