"""Downloads of models from a hub into its cache: free space is checked first, then files are fetched one by one.

Files are stored as the hub's client stores them (blob, link in the snapshot, ref) and under its locks, so that every
program that uses the cache finds them, and two processes that need the same file fetch it once.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from pathlib import Path

from huggingface_hub.utils import WeakFileLock

from eaglelocal.core.atomic_file import SHARED, make_folder, sync_folder, write_atomically
from eaglelocal.core.byte_sizes import format_disk
from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import DownloadError, ResourceError
from eaglelocal.hub.hub_api import RemoteFile, RemoteRepo, RetryPolicy, format_name
from eaglelocal.hub.hub_cache import MAIN, OTHER_DISK, make_write_error, repo_folder
from eaglelocal.hub.transfer import make_partial_path, transfer
from eaglelocal.hub.verification import PromisedFile
from eaglelocal.probe.probe import free_bytes

SPARE_DISK_BYTES = 64 << 20  # left free
RATE_WINDOW_S = 10.0
WAIT_S, TRY_S = 0.5, 0.05
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 4095
READABLE = 0o644  # for other users of the cache


@dataclass(frozen=True, slots=True)
class DownloadOrder:
    """Files to fetch together from one repository, and the reference that finds them later."""

    repo: RemoteRepo
    files: tuple[RemoteFile, ...]
    reference: str

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """The progress of all files together. `rate`: bytes per second over the last RATE_WINDOW_S; None: not known yet."""

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
    """A count of bytes over all files. Bytes that were already present count as done, not for the rate."""

    total_bytes: int
    on_progress: OnProgress
    clock: Callable[[], float] = time.monotonic
    done_bytes: int = 0
    _recent: deque[tuple[float, int]] = field(default_factory=deque)  # (seconds, bytes received until then)
    _received_bytes: int = 0

    def add_present(self, num_bytes: int) -> None:
        self.done_bytes += num_bytes
        self._report()

    def add_received(self, num_bytes: int) -> None:
        self.done_bytes += num_bytes
        self._received_bytes += num_bytes
        now_s = self.clock()
        self._recent.append((now_s, self._received_bytes))
        while now_s - self._recent[0][0] > RATE_WINDOW_S:
            self._recent.popleft()
        self._report()

    def report_waiting(self, name: str) -> None:
        self._report(waits_for=name)

    def _report(self, waits_for: str = "") -> None:
        self.on_progress(DownloadProgress(self.done_bytes, self.total_bytes, self._compute_rate(), waits_for))

    def _compute_rate(self) -> float | None:
        if len(self._recent) < 2:
            return None
        (began_s, before), (ended_s, after) = self._recent[0], self._recent[-1]
        return max(0.0, (after - before) / (ended_s - began_s)) if ended_s > began_s else None


def make_blob_path(order: DownloadOrder, file: RemoteFile, cache: Path) -> Path:
    return repo_folder(cache, order.repo.id) / "blobs" / file.etag


def check_names(orders: Sequence[DownloadOrder], cache: Path) -> None:
    """Raise DownloadError on a file whose name or path is longer than the system allows."""
    for order in orders:
        for file in order.files:
            path = os.fsencode(make_link_path(order, file, cache).absolute())
            longest = max(map(len, path.split(b"/")))
            if longest > MAX_NAME_BYTES or len(path) > MAX_PATH_BYTES:
                many, most = (longest, MAX_NAME_BYTES) if longest > MAX_NAME_BYTES else (len(path), MAX_PATH_BYTES)
                what = f"{order.repo.id} has a file whose name is too long: {format_name(file.name)}"
                raise DownloadError(f"{what} ({many} bytes, at most {most})", hint="choose another repository")


def count_missing_bytes(orders: Sequence[DownloadOrder], cache: Path) -> int:
    """Return the bytes still to fetch; those of partial downloads count as present."""
    missing: dict[Path, int] = {}
    for order in orders:
        for file in order.files:
            blob = make_blob_path(order, file, cache)
            if not _is_whole(make_link_path(order, file, cache), file):  # on a disk without links there is no blob
                missing[blob] = max(0, file.size_bytes - _count_present_bytes(blob))
    return sum(missing.values())


def _count_present_bytes(blob: Path) -> int:
    for path in (blob, make_partial_path(blob)):
        if path.is_file():
            return path.stat().st_size
    return 0


def check_disk(orders: Sequence[DownloadOrder], cache: Path, *, free: int) -> None:
    """Raise ResourceError, with the figures, if the files do not fit on the disk."""
    needed = count_missing_bytes(orders, cache)
    if needed and needed + SPARE_DISK_BYTES > free:
        raise ResourceError(
            f"the download takes {format_disk(needed)}, and the disk of {cache} has {format_disk(free)} free",
            hint=f"make room with `eaglelocal rm`, or {OTHER_DISK}",
        )


def download_files(
    orders: Sequence[DownloadOrder],
    cache: Path,
    *,
    retries: RetryPolicy,
    on_progress: OnProgress,
    free: int | None = None,
) -> list[Path]:
    """Fetch what is missing; return, for each order, the file that llama.cpp opens.

    Raises DownloadError and ResourceError. A later call resumes.
    """
    check_names(orders, cache)
    check_disk(orders, cache, free=free_bytes(cache) if free is None else free)
    byte_count = ByteCount(sum(order.size_bytes for order in orders), on_progress)
    for order in orders:
        try:
            for file in order.files:
                _fetch_file(order, file, cache, retries, byte_count)
            _write_ref(order, cache)
        except OSError as problem:  # an error of the disk: connection errors are converted before
            raise make_write_error(problem, str(problem.filename or cache)) from problem
    return [make_link_path(order, order.files[0], cache) for order in orders]


def _fetch_file(
    order: DownloadOrder, file: RemoteFile, cache: Path, retries: RetryPolicy, byte_count: ByteCount
) -> None:
    blob, place = make_blob_path(order, file, cache), make_link_path(order, file, cache)
    with _hold_blob_lock(order, file, cache, byte_count):
        if _is_whole(place, file):
            return byte_count.add_present(file.size_bytes)
        make_folder(place.parent, SHARED)  # a repository without snapshots looks damaged to other programs
        if _is_whole(blob, file):
            byte_count.add_present(file.size_bytes)
        else:
            counted = _ResumedCount(byte_count, _count_present_bytes(blob))
            transfer(order.repo, file, blob, retries=retries, on_bytes=counted)
        return _make_link(blob, place)


def find_complete_files(order: DownloadOrder, cache: Path) -> list[tuple[RemoteFile, PromisedFile]]:
    """Return the files of an order that are complete, with the hashes that the hub states."""
    places = [(file, make_link_path(order, file, cache)) for file in order.files]
    return [
        (file, PromisedFile(file.name, place, file.etag, file.size_bytes))
        for file, place in places
        if _is_whole(place, file)
    ]


def discard_file(order: DownloadOrder, file: RemoteFile, cache: Path) -> None:
    """Delete a damaged file and its partial download. Raises ResourceError."""
    blob = make_blob_path(order, file, cache)
    with _hold_blob_lock(order, file, cache, ByteCount(0, lambda progress: None)):
        for path in (make_link_path(order, file, cache), blob, make_partial_path(blob)):
            try:
                path.unlink(missing_ok=True)
            except OSError as problem:
                raise make_write_error(problem, str(path), hint=f"ls -ld {quote_path(path)}") from problem


def _is_whole(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size_bytes


class _ResumedCount:
    """A callback that counts bytes read back from disk as found, and later ones as received."""

    def __init__(self, byte_count: ByteCount, present_bytes: int) -> None:
        self._byte_count, self._present_bytes = byte_count, present_bytes

    def __call__(self, num_bytes: int) -> None:
        if 0 < num_bytes <= self._present_bytes:
            self._present_bytes -= num_bytes
            self._byte_count.add_present(num_bytes)
        else:
            self._byte_count.add_received(num_bytes)


@contextmanager
def _hold_blob_lock(order: DownloadOrder, file: RemoteFile, cache: Path, byte_count: ByteCount) -> Iterator[None]:
    """Hold the hub client's own lock of this blob; report if another process holds it, and wait."""
    folder = cache / ".locks" / repo_folder(cache, order.repo.id).name
    try:
        make_folder(folder, SHARED)
    except OSError as problem:
        raise make_write_error(problem, str(folder)) from problem
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(WeakFileLock(folder / f"{file.etag}.lock", timeout=WAIT_S))
                break
            except TimeoutError:
                byte_count.report_waiting(file.name)
        yield


def is_being_downloaded(cache: Path, repo: str, etag: str) -> bool:
    """Return whether a process holds the lock of this blob."""
    lock = cache / ".locks" / repo_folder(cache, repo).name / f"{etag}.lock"
    if not lock.is_file():
        return False
    try:
        with WeakFileLock(lock, timeout=TRY_S):
            return False
    except TimeoutError:
        return True


def make_link_path(order: DownloadOrder, file: RemoteFile, cache: Path) -> Path:
    return repo_folder(cache, order.repo.id) / "snapshots" / order.repo.commit / file.name


def _make_link(blob: Path, link: Path) -> None:
    """Link the blob under its name in the snapshot; on a disk without links move it, as the client does."""
    make_folder(link.parent, SHARED)  # the rest of the snapshot may just have been removed
    link.unlink(missing_ok=True)  # a dangling link, or one to other bytes
    try:
        os.symlink(os.path.relpath(blob, link.parent), link)
    except OSError:
        os.replace(blob, link)
    sync_folder(link.parent)


def _write_ref(order: DownloadOrder, cache: Path) -> None:
    folder = repo_folder(cache, order.repo.id)
    make_folder(folder / "refs", SHARED)
    # other programs read every file in `refs` as a reference, so the temporary file is outside that folder
    write_atomically(folder / "refs" / MAIN, order.repo.commit, mode=READABLE, scratch=folder)
