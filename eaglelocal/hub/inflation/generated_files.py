"""The folder of generated models: files appear in it whole or not at all, and only one process writes at a time.

Files are written under a temporary name and renamed when complete. If a process that holds the lock finds a temporary
file, a dead process left it.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path

from eaglelocal.core.atomic_file import SHARED, make_folder
from eaglelocal.core.byte_sizes import format_disk
from eaglelocal.core.own_files import append_own
from eaglelocal.errors import ResourceError
from eaglelocal.gguf.writer import write_streamed
from eaglelocal.hub.inflation.file_plan import FilePlan

SPARE_DISK_BYTES = 256 << 20  # to be left free
_TEMPORARY = ".partial"
_PARTIALS = f"*.gguf{_TEMPORARY}"
_LOCK = ".inflate.lock"

Progress = Callable[[float, str], None]  # fraction 0..1, what is being done


def no_progress(fraction: float, what: str) -> None:
    """Ignore the progress of writing a model."""


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of this folder, and clear its partial files. The lock ends with the process, however that ends.

    Raises ResourceError if the folder cannot be written.
    """
    with _open_lock(folder) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _remove_partial(folder)
        try:
            yield
        finally:
            _remove_partial(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove the files of killed processes, which may take gigabytes; do nothing while a process writes."""
    if not any(folder.glob(_PARTIALS)):
        return
    with suppress(ResourceError, BlockingIOError), _open_lock(folder) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_partial(folder)


def make_partial_path(path: Path) -> Path:
    return path.with_name(path.name + _TEMPORARY)


def check_disk(what: str, needed_bytes: int, free_bytes: int, *, hint: str) -> None:
    """Raise ResourceError if needed_bytes do not fit beside SPARE_DISK_BYTES."""
    if needed_bytes + SPARE_DISK_BYTES > free_bytes:
        needed, free = format_disk(needed_bytes + SPARE_DISK_BYTES), format_disk(free_bytes)
        raise ResourceError(f"{what} takes {needed} on disk, {free} are free", hint=hint)


def write_plan(plan: FilePlan, path: Path, on_bytes: Callable[[int], None]) -> None:
    """Write a file. Raises ResourceError if the disk is full or cannot be written."""
    try:
        write_streamed(path, plan.architecture, entries=plan.entries, tensors=plan.tensors, on_bytes=on_bytes)
    except OSError as error:
        raise ResourceError(
            f"cannot write {path.name}: {error.strerror}", hint="see that the disk has room and is not read-only"
        ) from error


class WriteProgress:
    """A sum of what was written, for the progress bar."""

    def __init__(self, total_bytes: int, what: str, on_progress: Progress) -> None:
        self._total_bytes = total_bytes
        self._what = what
        self._on_progress = on_progress
        self._done_bytes = 0

    def add(self, num_bytes: int) -> None:
        self._report(self._done_bytes + num_bytes)

    def reach(self, before_bytes: int) -> Callable[[int], None]:
        """Return a callback that takes the bytes of the current file, and adds `before_bytes`."""
        return lambda num_bytes: self._report(before_bytes + num_bytes)

    def _report(self, done_bytes: int) -> None:
        self._done_bytes = done_bytes
        self._on_progress(min(done_bytes / self._total_bytes, 1.0), self._what)


def _open_lock(folder: Path) -> BufferedWriter:
    try:
        make_folder(folder, SHARED)
        return append_own(folder / _LOCK)
    except OSError as error:
        raise ResourceError(
            f"cannot write in {folder}: {error.strerror}", hint="set XDG_CACHE_HOME to a folder that can be written"
        ) from error


def _remove_partial(folder: Path) -> None:
    for path in folder.glob(_PARTIALS):
        if path.is_file():  # a folder of that name is not ours
            path.unlink(missing_ok=True)
