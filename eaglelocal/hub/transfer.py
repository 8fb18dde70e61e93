"""The download of one file into its blob in the cache: resumed, counted, and verified by its hash.

Received bytes are in BLOB.incomplete, and stay there if the download stops for any reason; the next call resumes.
The hash is that of the whole file, including the bytes of earlier calls. The caller holds the lock of the blob.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import BinaryIO

from eaglelocal.core.atomic_file import SHARED, flush_and_rename, make_folder
from eaglelocal.core.records import dataclass
from eaglelocal.errors import DownloadError, ResourceError
from eaglelocal.hub.hub_api import (
    CHUNK_BYTES,
    CLIENT_ERRORS,
    RemoteFile,
    RemoteRepo,
    RetryPolicy,
    Stream,
    explain_error,
    open_stream,
)
from eaglelocal.hub.hub_cache import PARTIAL, SHA256_CHARS, make_hash, make_write_error

RATE_WINDOW_S = 10.0


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


@dataclass(slots=True)
class ByteCount:
    """A count of bytes over all files. Bytes that were already present count as done, not for the rate."""

    total_bytes: int
    on_progress: Callable[[DownloadProgress], None]
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


class _WrongBytes(Exception):
    """A download with other bytes than the hub states, or with too many."""


class Incoming:
    """An open partial file, with the hash of its content."""

    def __init__(self, file: BinaryIO, expected: RemoteFile, byte_count: ByteCount) -> None:
        self._file = file
        self._expected = expected
        self._byte_count = byte_count
        self.size_bytes = 0
        self._hash = make_hash(expected.etag, expected.size_bytes)

    def read_back(self) -> None:
        """Count and hash the bytes of an earlier call; start over if there are more than the whole file has."""
        while chunk := self._file.read(CHUNK_BYTES):
            self._hash.update(chunk)
            self.size_bytes += len(chunk)
            self._byte_count.add_present(len(chunk))
        if self.size_bytes > self._expected.size_bytes:
            self.start_over()

    def start_over(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._byte_count.add_received(-self.size_bytes)
        self.size_bytes, self._hash = 0, make_hash(self._expected.etag, self._expected.size_bytes)

    def take(self, stream: Stream) -> None:
        """Write a stream. Raises ResourceError if it cannot be written, _WrongBytes if it is too long."""
        if stream.start != self.size_bytes:
            self.start_over()
        for chunk in stream.chunks:
            if self.size_bytes + len(chunk) > self._expected.size_bytes:
                raise _WrongBytes
            try:
                self._file.write(chunk)
            except OSError as problem:  # not an error of the connection, which would be retried
                raise _make_partial_error(problem, self._file.name) from problem
            self._hash.update(chunk)
            self.size_bytes += len(chunk)
            self._byte_count.add_received(len(chunk))

    @property
    def is_whole(self) -> bool:
        return self.size_bytes == self._expected.size_bytes

    @property
    def is_right(self) -> bool:
        return self._hash.hexdigest() == self._expected.etag


def make_partial_path(blob: Path) -> Path:
    return blob.with_name(blob.name + PARTIAL)


def transfer(repo: RemoteRepo, file: RemoteFile, blob: Path, retries: RetryPolicy, byte_count: ByteCount) -> None:
    """Fetch the file into its blob.

    Raises DownloadError or ResourceError. Received bytes stay for the next call, unless they are wrong.
    """
    partial = make_partial_path(blob)
    try:
        with _open_partial(partial) as out:
            incoming = Incoming(out, file, byte_count)
            incoming.read_back()
            _fetch_all(repo, file, incoming, retries)
            out.flush()
        flush_and_rename(partial, blob)
    except _WrongBytes:
        partial.unlink(missing_ok=True)
        hash_name = "SHA-256" if len(file.etag) == SHA256_CHARS else "SHA-1"
        raise DownloadError(
            f"{file.name} of {repo.id} is damaged: its {hash_name} is wrong",
            hint="what was received is deleted: try again, and tell the repository's owner if it happens again",
        ) from None
    except OSError as problem:  # buffered bytes could not be written
        raise _make_partial_error(problem, str(partial)) from problem


def _make_partial_error(problem: OSError, path: str) -> ResourceError:
    return make_write_error(problem, path, hint="make room with `eaglelocal rm`; the same command resumes the download")


def _open_partial(partial: Path) -> BinaryIO:
    try:
        make_folder(partial.parent, SHARED)
        partial.touch()
        return partial.open("r+b")
    except OSError as problem:
        raise make_write_error(problem, str(partial)) from problem


def _fetch_all(repo: RemoteRepo, file: RemoteFile, incoming: Incoming, retries: RetryPolicy) -> None:
    """Fetch until the file is whole and correct. If the bytes of an earlier call are wrong, start over once."""
    is_fresh = incoming.size_bytes == 0
    while True:
        try:
            _receive(repo, file, incoming, retries)
            if incoming.is_right:
                return
        except _WrongBytes:
            pass
        if is_fresh:
            raise _WrongBytes
        incoming.start_over()
        is_fresh = True


def _receive(repo: RemoteRepo, file: RemoteFile, incoming: Incoming, retries: RetryPolicy) -> None:
    """Fetch until the file is whole; the count of attempts restarts whenever bytes were received."""
    attempt, reached = 0, incoming.size_bytes
    while not incoming.is_whole:
        try:
            with open_stream(repo, file, incoming.size_bytes) as stream:
                incoming.take(stream)
            if incoming.size_bytes < stream.end:
                raise OSError(f"the file ended after {incoming.size_bytes} of {file.size_bytes} bytes")
        except CLIENT_ERRORS as problem:
            if incoming.size_bytes > reached:
                attempt, reached = 0, incoming.size_bytes
            if not retries.wait(problem, attempt):
                raise explain_error(problem, repo.id) from problem
            attempt += 1
