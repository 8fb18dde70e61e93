"""Downloads of models from a hub into its cache: orders of files, and fetching them once the disk has room.

Files are stored as the hub's client stores them (blob, link in the snapshot, ref) and under its locks, so that every
program that uses the cache finds them, and two processes that need the same file fetch it once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from huggingface_hub.utils import WeakFileLock

from eaglelocal.core.amounts import format_disk
from eaglelocal.core.atomic_file import SHARED, make_folder, sync_folder, write_atomically
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import AUTO, NONE
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import DownloadError, ResourceError, UsageError
from eaglelocal.hub.hub_api import (
    RemoteFile,
    RemoteRepo,
    RetryPolicy,
    check_access,
    fetch_repo,
    format_name,
    is_repo_missing,
)
from eaglelocal.hub.hub_cache import MAIN, OTHER_DISK, HubReference, PromisedFile, make_write_error, repo_folder
from eaglelocal.hub.projector_resolver import list_model_names, list_projectors, match_projectors, parse_projector
from eaglelocal.hub.repo_builds import choose_build, join_names
from eaglelocal.hub.transfer import ByteCount, DownloadProgress, make_partial_path, transfer
from eaglelocal.probe.probe import free_bytes

SPARE_DISK_BYTES = 64 << 20  # left free
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
class FilePlaces:
    """The places of an ordered file in the cache, as the hub's client names them."""

    file: RemoteFile
    blob: Path
    link: Path  # in the snapshot
    lock: Path

    @property
    def is_present(self) -> bool:
        return self.has_all(self.link)  # on a disk without links there is no blob

    @property
    def present_bytes(self) -> int:
        """The bytes of the blob or of its partial download."""
        for path in (self.blob, make_partial_path(self.blob)):
            if path.is_file():
                return path.stat().st_size
        return 0

    def has_all(self, path: Path) -> bool:
        return path.is_file() and path.stat().st_size == self.file.size_bytes


def find_places(order: DownloadOrder, cache: Path) -> list[FilePlaces]:
    """Return the places of an order's files, first that of the file that llama.cpp opens."""
    folder = repo_folder(cache, order.repo.id)
    snapshot = folder / "snapshots" / order.repo.commit
    return [
        FilePlaces(
            file, folder / "blobs" / file.etag, snapshot / file.name, _find_lock(cache, order.repo.id, file.etag)
        )
        for file in order.files
    ]


def _find_lock(cache: Path, repo: str, etag: str) -> Path:
    return cache / ".locks" / repo_folder(cache, repo).name / f"{etag}.lock"


def check_names(orders: Sequence[DownloadOrder], cache: Path) -> None:
    """Raise DownloadError on a file whose name or path is longer than the system allows."""
    for order in orders:
        for places in find_places(order, cache):
            path = os.fsencode(places.link.absolute())
            longest = max(map(len, path.split(b"/")))
            if longest > MAX_NAME_BYTES or len(path) > MAX_PATH_BYTES:
                many, most = (longest, MAX_NAME_BYTES) if longest > MAX_NAME_BYTES else (len(path), MAX_PATH_BYTES)
                what = f"{order.repo.id} has a file whose name is too long: {format_name(places.file.name)}"
                raise DownloadError(f"{what} ({many} bytes, at most {most})", hint="choose another repository")


def count_missing_bytes(orders: Sequence[DownloadOrder], cache: Path) -> int:
    """Return the bytes still to fetch; parts of unfinished downloads count as present."""
    missing = {
        places.blob: max(0, places.file.size_bytes - places.present_bytes)
        for order in orders
        for places in find_places(order, cache)
        if not places.is_present
    }
    return sum(missing.values())


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
    on_progress: Callable[[DownloadProgress], None],
) -> list[Path]:
    """Fetch what is missing; return, for each order, the file that llama.cpp opens.

    Raises DownloadError and ResourceError. A later call resumes.
    """
    check_names(orders, cache)
    check_disk(orders, cache, free=free_bytes(cache))
    byte_count = ByteCount(sum(order.size_bytes for order in orders), on_progress)
    for order in orders:
        try:
            for places in find_places(order, cache):
                _fetch_file(order.repo, places, retries, byte_count)
            _write_ref(order, cache)
        except OSError as problem:  # an error of the disk: connection errors are converted before
            raise make_write_error(problem, str(problem.filename or cache)) from problem
    return [find_places(order, cache)[0].link for order in orders]


def _fetch_file(repo: RemoteRepo, places: FilePlaces, retries: RetryPolicy, byte_count: ByteCount) -> None:
    file = places.file
    with _hold_blob_lock(places, byte_count.report_waiting):
        if places.is_present:
            return byte_count.add_present(file.size_bytes)
        make_folder(places.link.parent, SHARED)  # a repository without snapshots looks damaged to other programs
        if places.has_all(places.blob):
            byte_count.add_present(file.size_bytes)
        else:
            transfer(repo, file, places.blob, retries, byte_count)
        return _make_link(places.blob, places.link)


def find_complete_files(order: DownloadOrder, cache: Path) -> list[tuple[RemoteFile, PromisedFile]]:
    """Return the files of an order that are complete, with the hashes that the hub states."""
    return [
        (one.file, PromisedFile(one.file.name, one.link, one.file.etag, one.file.size_bytes))
        for one in find_places(order, cache)
        if one.is_present
    ]


def discard_file(order: DownloadOrder, file: RemoteFile, cache: Path) -> None:
    """Delete a damaged file and its partial download. Raises ResourceError."""
    places = find_places(order, cache)[order.files.index(file)]
    with _hold_blob_lock(places):
        for path in (places.link, places.blob, make_partial_path(places.blob)):
            try:
                path.unlink(missing_ok=True)
            except OSError as problem:
                raise make_write_error(problem, str(path), hint=f"ls -ld {quote_path(path)}") from problem


@contextmanager
def _hold_blob_lock(places: FilePlaces, on_wait: Callable[[str], None] = lambda name: None) -> Iterator[None]:
    """Hold the hub client's own lock of this blob; `on_wait` gets the file's name while another process holds it."""
    folder = places.lock.parent
    try:
        make_folder(folder, SHARED)
    except OSError as problem:
        raise make_write_error(problem, str(folder)) from problem
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(WeakFileLock(places.lock, timeout=WAIT_S))
                break
            except TimeoutError:
                on_wait(places.file.name)
        yield


def is_being_downloaded(cache: Path, repo: str, etag: str) -> bool:
    """Return whether a process holds the lock of this blob."""
    lock = _find_lock(cache, repo, etag)
    if not lock.is_file():
        return False
    try:
        with WeakFileLock(lock, timeout=TRY_S):
            return False
    except TimeoutError:
        return True


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


# ---- orders: the files to fetch for a reference, from a hub's lists
CONFIG = "config.json"
WEIGHTS = (".safetensors", ".safetensors.index.json")
# formats that can be read without running code in them
PICKLED = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?|medusa_lm_head\.pt")


def order_model(reference: HubReference, retries: RetryPolicy) -> DownloadOrder:
    """Order a model as GGUF, from the first of its repositories that has the quantization.

    Raises UsageError with the available quantizations, DownloadError if no repository can be read.
    """
    problems: list[DownloadError | UsageError] = []
    for name in reference.repos:
        try:
            repo = fetch_repo(name, retries)
            build = choose_build(repo.builds, reference.quant, repo=name, drafts=reference.drafts)
        except UsageError as problem:
            problems.append(problem)
        except DownloadError as problem:
            if not is_repo_missing(problem):
                raise
            problems.append(problem)
        else:
            order = DownloadOrder(repo, repo.list_files(build), f"{repo.id}:{build.tag}")
            return check_readable(order, retries)
    raise problems[0]


def order_head(name: str, retries: RetryPolicy) -> DownloadOrder:
    """Order the files of a draft head for a later import. Raises UsageError if the repository has none."""
    repo = fetch_repo(name, retries)
    config = [file for file in repo.files if file.name == CONFIG]
    weights = [file for file in repo.files if file.name.endswith(WEIGHTS)]
    weights = weights or [file for file in repo.files if PICKLED.fullmatch(file.name)]
    if not (config and weights):
        raise UsageError(f"{name} is not a draft head: it has no {CONFIG} with weights", hint=f"see {repo.page}")
    return check_readable(DownloadOrder(repo, (*config, *weights), name), retries)


def order_draft(reference: HubReference, retries: RetryPolicy) -> DownloadOrder:
    """Order a draft: as GGUF if the repository has one, else as a head to import."""
    try:
        return order_model(reference, retries)
    except UsageError as problem:
        if reference.quant is not None:
            raise
        try:
            return order_head(reference.repos[0], retries)
        except UsageError:
            raise problem from None


def add_projector(order: DownloadOrder, mmproj: str) -> DownloadOrder:
    """Add to an order the named image projector, or for `auto` the best that its repository has for the model.

    Raises UsageError if it has none of that name.
    """
    build = next((build for build in order.repo.builds if order.files[0].name in build.names), None)
    if build is None or build.is_draft or mmproj == NONE:
        return order
    sizes = {file.name: file.size_bytes for file in order.repo.files}
    names = list_projectors(sizes)
    if mmproj == AUTO:
        projectors = [parse_projector(name, size_bytes=sizes[name]) for name in names]
        is_alone = len(list_model_names(sizes)) <= 1
        found = [one.name for one in match_projectors(projectors, [build.stem.rpartition("/")[2]], is_alone=is_alone)]
    else:
        found = [name for name in names if mmproj.lower() in (name.lower(), name.rsplit("/", 1)[-1].lower())]
        if not found:
            has = f"it has {join_names(names, like=mmproj)}" if names else "it has none; --mmproj none"
            raise UsageError(f"{order.repo.id} has no projector {mmproj}", hint=has)
    chosen = [file for file in order.repo.files if file.name in found[:1]]
    return DownloadOrder(order.repo, (*order.files, *chosen), order.reference)


def needs_import(order: DownloadOrder) -> bool:
    return order.files[0].name == CONFIG


def check_readable(order: DownloadOrder, retries: RetryPolicy) -> DownloadOrder:
    """Return the order if its files may be read; otherwise raise before anything is downloaded."""
    if order.repo.is_gated:
        check_access(order.repo, order.files[0], retries)
    return order
