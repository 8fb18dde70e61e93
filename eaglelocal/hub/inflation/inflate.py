"""The files of `demo@SIZE[:TYPE]`: written once, whole or not at all.

The result answers as the small embedded model does and costs what a large one costs (see `widen.py`). Files are
written under a temporary name and renamed when complete; one process at a time writes in a folder, so temporary files
that it finds there were left by processes that died. Names carry a hash of the sources, so that a rebuilt demo never
uses the inflation of its predecessor.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from eaglelocal.core.atomic_file import flush_and_rename
from eaglelocal.core.byte_sizes import format_disk
from eaglelocal.core.folders import SHARED, make_folder
from eaglelocal.errors import ResourceError
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.head_info import check_head
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.writer import write_streamed
from eaglelocal.hub.inflation.demo_sizes import DEFAULT_SIZE, DemoSize, parse_demo_reference
from eaglelocal.probe.probe import free_bytes

if TYPE_CHECKING:
    from eaglelocal.hub.inflation.blueprint import Blueprint, FilePlan

__all__ = ["DEFAULT_SIZE", "DemoSize", "InflatedPaths", "inflate", "locate_inflated", "parse_demo_reference"]

METHOD = "1"  # part of every name: raise it when the same sources would give other files
SPARE_DISK_BYTES = 256 << 20  # to be left free
_TEMPORARY = ".partial"
_PARTIALS = f"demo-*{_TEMPORARY}"
_LOCK = ".inflate.lock"

Progress = Callable[[float, str], None]  # fraction 0..1, what is being done


@dataclass(frozen=True, slots=True)
class InflatedPaths:
    target: Path
    head: Path

    @property
    def complete(self) -> bool:
        return self.target.is_file() and self.head.is_file()


def no_progress(fraction: float, what: str) -> None:
    """Ignore the progress of writing a model."""


def inflate(
    reference: DemoSize,
    *,
    source_target: Path,
    source_head: Path,
    folder: Path,
    on_progress: Progress = no_progress,
    free_bytes: Callable[[Path], int] = free_bytes,
) -> InflatedPaths:
    """Return the inflated pair, written now unless it is there already.

    Raises ResourceError when the disk is too small, ModelFileError or IncompatibleError when the
    sources cannot be inflated; leaves nothing behind then.
    """
    paths = locate_inflated(reference, source_target=source_target, source_head=source_head, folder=folder)
    if paths.complete:
        _remove_leftovers(folder)
        return paths
    from eaglelocal.hub.inflation.blueprint import plan_inflation

    with _open_lock(folder) as lock, _hold_lock(folder, lock):
        if not paths.complete:  # the process that held the lock may have written it
            blueprint = plan_inflation(reference, source_target, source_head)
            _check_disk(blueprint, reference, free_bytes(folder))
            _write_pair(blueprint, paths, _WriteProgress(blueprint, reference, on_progress))
    return paths


def check_room(
    reference: DemoSize,
    *,
    source_target: Path,
    source_head: Path,
    folder: Path,
    free_bytes: Callable[[Path], int] = free_bytes,
) -> None:
    """Check that the disk has room for the pair; writes nothing. Raises as `inflate` does."""
    from eaglelocal.hub.inflation.blueprint import plan_inflation

    _check_disk(plan_inflation(reference, source_target, source_head), reference, free_bytes(folder))


def locate_inflated(reference: DemoSize, *, source_target: Path, source_head: Path, folder: Path) -> InflatedPaths:
    """Return the paths of the pair, written or not."""
    digest = hashlib.sha256(METHOD.encode())
    for source in (source_target, source_head):
        digest.update(_hash_content(source))
    stem = f"demo-{reference.slug}-{digest.hexdigest()[:12]}"
    return InflatedPaths(folder / f"{stem}.gguf", folder / f"{stem}-head.gguf")


def _hash_content(path: Path) -> bytes:
    read_header(path, keys=())  # raises on a missing or damaged source
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _open_lock(folder: Path) -> IO[str]:
    try:
        make_folder(folder, SHARED)
        return (folder / _LOCK).open("w")
    except OSError as error:
        raise ResourceError(
            f"cannot write in {folder}: {error.strerror}", hint="set XDG_CACHE_HOME to a folder that can be written"
        ) from error


@contextmanager
def _hold_lock(folder: Path, lock: IO[str]) -> Iterator[None]:
    """Hold the lock of this folder, and clear its partial files. The lock ends with the process, however that ends."""
    fcntl.flock(lock, fcntl.LOCK_EX)
    _remove_partial(folder)
    try:
        yield
    finally:
        _remove_partial(folder)


def _remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left, gigabytes that nothing else would remove; nothing while a process writes."""
    if not any(folder.glob(_PARTIALS)):
        return
    with suppress(ResourceError, BlockingIOError), _open_lock(folder) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_partial(folder)


def _remove_partial(folder: Path) -> None:
    for path in folder.glob(_PARTIALS):
        if path.is_file():  # a folder of that name is not ours
            path.unlink(missing_ok=True)


def _check_disk(blueprint: Blueprint, reference: DemoSize, free_bytes: int) -> None:
    needed = blueprint.disk_bytes + SPARE_DISK_BYTES
    if needed > free_bytes:
        raise ResourceError(
            f"a {reference.label} {reference.type} model takes {format_disk(needed)} on disk, "
            f"{format_disk(free_bytes)} are free",
            hint="free some space, or take a smaller size, such as `demo@300m` or a `:q4_0`",
        )


def _write_pair(blueprint: Blueprint, paths: InflatedPaths, tally: _WriteProgress) -> None:
    partial = InflatedPaths(_make_partial_path(paths.target), _make_partial_path(paths.head))
    _write(blueprint.head, partial.head, tally)
    _write(blueprint.target, partial.target, tally)
    check_head(EagleInfo.from_header(read_header(partial.head)), ModelInfo.from_header(read_header(partial.target)))
    flush_and_rename(partial.head, paths.head)
    flush_and_rename(partial.target, paths.target)


def _make_partial_path(path: Path) -> Path:
    return path.with_name(path.name + _TEMPORARY)


class _WriteProgress:
    """A sum of what was written, for the progress bar."""

    def __init__(self, blueprint: Blueprint, reference: DemoSize, on_progress: Progress) -> None:
        self._total_bytes = blueprint.target.data_bytes + blueprint.head.data_bytes
        self._what = f"writing the embedded guide at the cost of a {reference.label} model"
        self._on_progress = on_progress
        self._done_bytes = 0

    def add(self, num_bytes: int) -> None:
        self._done_bytes += num_bytes
        self._on_progress(self._done_bytes / self._total_bytes, self._what)


def _write(plan: FilePlan, path: Path, tally: _WriteProgress) -> None:
    try:
        write_streamed(path, plan.architecture, entries=plan.entries, tensors=plan.tensors, on_bytes=tally.add)
    except OSError as error:
        raise ResourceError(
            f"cannot write {path.name}: {error.strerror}", hint="see that the disk has room and is not read-only"
        ) from error
