"""Downloads of models from a hub into its cache: free space is checked first, then files come one by one.

Lays files down as the hub's client does (blob, link in the snapshot, ref), under its locks, so that every program
that uses the cache finds them, and two processes that want the same file fetch it once. Progress is of all files
together.
"""

from __future__ import annotations

import os
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub.utils import WeakFileLock

from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.folders import SHARED, make_folder, sync_folder
from eaglelocal.errors import DownloadError, ResourceError
from eaglelocal.hub.hub_api import RemoteFile, RemoteRepo, shown_name
from eaglelocal.hub.hub_cache import MAIN, OTHER_DISK, repo_folder, write_error
from eaglelocal.hub.hub_errors import RetryPolicy
from eaglelocal.hub.transfer import partial_of, transfer
from eaglelocal.hub.verification import PromisedFile
from eaglelocal.probe.probe import free_bytes

SPARE_DISK_BYTES = 64 << 20  # to be left free
RATE_WINDOW_S = 10.0
WAIT_S, TRY_S = 0.5, 0.05
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 4095
READABLE = 0o644  # by others who use the cache


@dataclass(frozen=True, slots=True)
class DownloadOrder:
    """Files to be fetched together from one repository, under the reference that finds them later."""

    repo: RemoteRepo
    files: tuple[RemoteFile, ...]
    reference: str

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """The progress of all files together. `rate`: bytes a second over the last RATE_WINDOW_S; None: not known yet."""

    done_bytes: int
    total_bytes: int
    rate: float | None
    waits_for: str = ""  # the file that another process is fetching

    @property
    def fraction(self) -> float:
        return self.done_bytes / self.total_bytes if self.total_bytes else 1.0

    @property
    def left_s(self) -> float | None:
        return (self.total_bytes - self.done_bytes) / self.rate if self.rate else None


OnProgress = Callable[[DownloadProgress], None]


@dataclass(slots=True)
class ByteCount:
    """A sum of bytes over all files. Bytes that were there already count as done and not as speed."""

    total_bytes: int
    on_progress: OnProgress
    clock: Callable[[], float] = time.monotonic
    done_bytes: int = 0
    _recent: deque[tuple[float, int]] = field(default_factory=deque)  # (seconds, bytes received until then)
    _came_bytes: int = 0

    def found(self, num_bytes: int) -> None:
        self.done_bytes += num_bytes
        self._tell()

    def came(self, num_bytes: int) -> None:
        self.done_bytes += num_bytes
        self._came_bytes += num_bytes
        now_s = self.clock()
        self._recent.append((now_s, self._came_bytes))
        while now_s - self._recent[0][0] > RATE_WINDOW_S:
            self._recent.popleft()
        self._tell()

    def waiting(self, name: str) -> None:
        self._tell(waits_for=name)

    def _tell(self, waits_for: str = "") -> None:
        self.on_progress(DownloadProgress(self.done_bytes, self.total_bytes, self._rate(), waits_for))

    def _rate(self) -> float | None:
        if len(self._recent) < 2:
            return None
        (began_s, before), (ended_s, after) = self._recent[0], self._recent[-1]
        return max(0.0, (after - before) / (ended_s - began_s)) if ended_s > began_s else None


def blob_of(order: DownloadOrder, file: RemoteFile, cache: Path) -> Path:
    return repo_folder(cache, order.repo.id) / "blobs" / file.etag


def check_names(orders: Sequence[DownloadOrder], cache: Path) -> None:
    """Raise DownloadError on a file whose name or path is longer than the system takes."""
    for order in orders:
        for file in order.files:
            path = os.fsencode(snapshot_link(order, file, cache).absolute())
            longest = max(map(len, path.split(b"/")))
            if longest > MAX_NAME_BYTES or len(path) > MAX_PATH_BYTES:
                many, most = (longest, MAX_NAME_BYTES) if longest > MAX_NAME_BYTES else (len(path), MAX_PATH_BYTES)
                what = f"{order.repo.id} has a file whose name no disk takes: {shown_name(file.name)}"
                raise DownloadError(f"{what} ({many} bytes, at most {most})", hint="choose another repository")


def missing_bytes(orders: Sequence[DownloadOrder], cache: Path) -> int:
    """Return the bytes still to be fetched; those of partial downloads count as present."""
    missing: dict[Path, int] = {}
    for order in orders:
        for file in order.files:
            blob = blob_of(order, file, cache)
            if not _is_whole(snapshot_link(order, file, cache), file):  # on a disk without links it has no blob
                missing[blob] = max(0, file.size_bytes - _there_bytes(blob))
    return sum(missing.values())


def _there_bytes(blob: Path) -> int:
    for path in (blob, partial_of(blob)):
        if path.is_file():
            return path.stat().st_size
    return 0


def check_disk(orders: Sequence[DownloadOrder], cache: Path, *, free: int) -> None:
    """Raise ResourceError, with the figures, where not everything would fit."""
    needed = missing_bytes(orders, cache)
    if needed and needed + SPARE_DISK_BYTES > free:
        raise ResourceError(
            f"the download takes {_amount(needed)}, and the disk of {cache} has {_amount(free)} free",
            hint=f"make room with `eaglelocal rm`, or {OTHER_DISK}",
        )


def _amount(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def download_files(
    orders: Sequence[DownloadOrder],
    cache: Path,
    *,
    patience: RetryPolicy,
    on_progress: OnProgress,
    free: int | None = None,
) -> list[Path]:
    """Fetch what is missing. Returns, for each order, the file that llama.cpp opens.

    Raises DownloadError and ResourceError; a later call resumes.
    """
    check_names(orders, cache)
    check_disk(orders, cache, free=free_bytes(cache) if free is None else free)
    tally = ByteCount(sum(order.size_bytes for order in orders), on_progress)
    for order in orders:
        try:
            for file in order.files:
                _fetch_file(order, file, cache, patience, tally)
            _write_ref(order, cache)
        except OSError as problem:  # of the disk: those of the connection were converted before
            raise write_error(problem, str(problem.filename or cache)) from problem
    return [snapshot_link(order, order.files[0], cache) for order in orders]


def _fetch_file(order: DownloadOrder, file: RemoteFile, cache: Path, patience: RetryPolicy, tally: ByteCount) -> None:
    blob, place = blob_of(order, file, cache), snapshot_link(order, file, cache)
    with _locked(order, file, cache, tally):
        if _is_whole(place, file):
            return tally.found(file.size_bytes)
        make_folder(place.parent, SHARED)  # a repository without snapshots looks damaged to other programs
        if _is_whole(blob, file):
            tally.found(file.size_bytes)
        else:
            counted = _Resumed(tally, _there_bytes(blob))
            transfer(order.repo, file, blob, patience=patience, on_bytes=counted)
        return _link(blob, place)


def find_complete_files(order: DownloadOrder, cache: Path) -> list[tuple[RemoteFile, PromisedFile]]:
    """Return the files of an order that are here, with the hashes that the hub promised."""
    places = [(file, snapshot_link(order, file, cache)) for file in order.files]
    return [
        (file, PromisedFile(file.name, place, file.etag, file.size_bytes))
        for file, place in places
        if _is_whole(place, file)
    ]


def discard_file(order: DownloadOrder, file: RemoteFile, cache: Path) -> None:
    """Delete a damaged file and its partial download. Raises ResourceError."""
    blob = blob_of(order, file, cache)
    with _locked(order, file, cache, ByteCount(0, lambda progress: None)):
        for path in (snapshot_link(order, file, cache), blob, partial_of(blob)):
            try:
                path.unlink(missing_ok=True)
            except OSError as problem:
                raise write_error(problem, str(path), hint=f"ls -ld {shlex.quote(str(path))}") from problem


def _is_whole(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size_bytes


class _Resumed:
    """A callback that counts bytes read back from disk as found, and later ones as received."""

    def __init__(self, tally: ByteCount, there_bytes: int) -> None:
        self._tally, self._there_bytes = tally, there_bytes

    def __call__(self, num_bytes: int) -> None:
        if 0 < num_bytes <= self._there_bytes:
            self._there_bytes -= num_bytes
            self._tally.found(num_bytes)
        else:
            self._tally.came(num_bytes)


@contextmanager
def _locked(order: DownloadOrder, file: RemoteFile, cache: Path, tally: ByteCount) -> Iterator[None]:
    """Hold the hub client's own lock of this blob; while another process has it, wait and say so."""
    folder = cache / ".locks" / repo_folder(cache, order.repo.id).name
    try:
        make_folder(folder, SHARED)
    except OSError as problem:
        raise write_error(problem, str(folder)) from problem
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(WeakFileLock(folder / f"{file.etag}.lock", timeout=WAIT_S))
                break
            except TimeoutError:
                tally.waiting(file.name)
        yield


def is_being_fetched(cache: Path, repo: str, etag: str) -> bool:
    """Return whether some process holds the lock of this blob."""
    lock = cache / ".locks" / repo_folder(cache, repo).name / f"{etag}.lock"
    if not lock.is_file():
        return False
    try:
        with WeakFileLock(lock, timeout=TRY_S):
            return False
    except TimeoutError:
        return True


def snapshot_link(order: DownloadOrder, file: RemoteFile, cache: Path) -> Path:
    return repo_folder(cache, order.repo.id) / "snapshots" / order.repo.commit / file.name


def _link(blob: Path, link: Path) -> None:
    """Link the blob under its name in the snapshot; on a disk without links move it there, as the client does."""
    make_folder(link.parent, SHARED)  # somebody may have removed the rest of the snapshot meanwhile
    link.unlink(missing_ok=True)  # a dangling link, or one to other bytes
    try:
        os.symlink(os.path.relpath(blob, link.parent), link)
    except OSError:
        os.replace(blob, link)
    sync_folder(link.parent)


def _write_ref(order: DownloadOrder, cache: Path) -> None:
    """Record which commit `main` is, whole or not at all."""
    folder = repo_folder(cache, order.repo.id)
    make_folder(folder / "refs", SHARED)
    # other programs take any file in `refs` for a reference, so the temporary file is beside that folder
    write_atomically(folder / "refs" / MAIN, order.repo.commit, mode=READABLE, scratch=folder)
