"""The download of one file into its blob in the cache: resumed, counted, and verified by its hash.

Received bytes are in BLOB.incomplete, and stay there if the download stops for any reason; the next call resumes.
The hash is that of the whole file, including the bytes of earlier calls. The caller holds the lock of the blob.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from eaglelocal.core.atomic_file import SHARED, flush_and_rename, make_folder
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
from eaglelocal.hub.hub_cache import PARTIAL, make_write_error
from eaglelocal.hub.verification import SHA256_CHARS, make_hash

OnBytes = Callable[[int], None]  # bytes added; negative if they were discarded


class _WrongBytes(Exception):
    """A download with other bytes than the hub states, or with too many."""


class Incoming:
    """An open partial file, with the hash of its content."""

    def __init__(self, file: BinaryIO, expected: RemoteFile, on_bytes: OnBytes) -> None:
        self._file = file
        self._expected = expected
        self._on_bytes = on_bytes
        self.size_bytes = 0
        self._hash = self._new_hash()

    def read_back(self) -> None:
        """Count and hash the bytes of an earlier call; start over if there are more than the whole file has."""
        self._file.seek(0)
        while chunk := self._file.read(CHUNK_BYTES):
            self._count(chunk)
        if self.size_bytes > self._expected.size_bytes:
            self.start_over()

    def start_over(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._on_bytes(-self.size_bytes)
        self.size_bytes, self._hash = 0, self._new_hash()

    def take(self, stream: Stream) -> None:
        """Write a stream. Raises ResourceError if it cannot be written, _WrongBytes if it is too long."""
        if stream.start != self.size_bytes:
            self.start_over()
        for chunk in stream.chunks:
            if self.size_bytes + len(chunk) > self._expected.size_bytes:
                raise _WrongBytes
            self._write(chunk)
            self._count(chunk)

    def _write(self, chunk: bytes) -> None:
        """Write a chunk. Raises ResourceError, because the disk's errors must not be retried."""
        try:
            self._file.write(chunk)
        except OSError as problem:
            raise _make_partial_error(problem, self._file.name) from problem

    @property
    def is_whole(self) -> bool:
        return self.size_bytes == self._expected.size_bytes

    @property
    def is_right(self) -> bool:
        return self._hash.hexdigest() == self._expected.etag

    def _count(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self.size_bytes += len(chunk)
        self._on_bytes(len(chunk))

    def _new_hash(self) -> hashlib._Hash:
        return make_hash(self._expected.etag, self._expected.size_bytes)


def make_partial_path(blob: Path) -> Path:
    return blob.with_name(blob.name + PARTIAL)


def transfer(repo: RemoteRepo, file: RemoteFile, blob: Path, *, retries: RetryPolicy, on_bytes: OnBytes) -> None:
    """Fetch the file into its blob.

    Raises DownloadError or ResourceError. Received bytes stay for the next call, unless they are wrong.
    """
    partial = make_partial_path(blob)
    try:
        with _open_partial(partial) as out:
            incoming = Incoming(out, file, on_bytes)
            incoming.read_back()
            _fetch_all(repo, file, incoming, retries)
            out.flush()
        flush_and_rename(partial, blob)
    except _WrongBytes:
        partial.unlink(missing_ok=True)
        raise DownloadError(
            f"{file.name} of {repo.id} is damaged: its {_name_hash(file)} is wrong",
            hint="what was received is deleted: try again, and tell the repository's owner if it happens again",
        ) from None
    except OSError as problem:  # buffered bytes could not be written
        raise _make_partial_error(problem, str(partial)) from problem


def _make_partial_error(problem: OSError, path: str) -> ResourceError:
    return make_write_error(problem, path, hint="make room with `eaglelocal rm`; the same command resumes the download")


def _name_hash(file: RemoteFile) -> str:
    return "SHA-256" if len(file.etag) == SHA256_CHARS else "SHA-1"


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
