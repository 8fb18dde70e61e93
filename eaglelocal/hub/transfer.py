"""The download of one file into its blob in the cache: resumed, counted, hashed, and in place only when it is right.

What was received so far is in BLOB.incomplete, and stays there when the connection, the person or the machine stops:
the next call resumes. Whether the bytes are right is judged by the hash that the hub states for them, over all of
them, those of earlier calls too. The caller holds the lock of the blob.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from eaglelocal.core.atomic_file import flush_and_rename
from eaglelocal.core.folders import SHARED, make_folder
from eaglelocal.errors import DownloadError, ResourceError
from eaglelocal.hub.hub_api import CHUNK_BYTES, RemoteFile, RemoteRepo, Stream, opened
from eaglelocal.hub.hub_cache import PARTIAL, write_error
from eaglelocal.hub.hub_errors import PROBLEMS, RetryPolicy, explained
from eaglelocal.hub.verification import SHA256_CHARS, new_hash

OnBytes = Callable[[int], None]  # bytes added; negative where they were discarded


class _WrongBytes(Exception):
    """A download that has all bytes, or more, and not those that were promised."""


class Incoming:
    """An open partial file, with the hash of all that it holds."""

    def __init__(self, file: BinaryIO, expected: RemoteFile, on_bytes: OnBytes) -> None:
        self._file = file
        self._expected = expected
        self._on_bytes = on_bytes
        self.size_bytes = 0
        self._hash = self._new_hash()

    def read_back(self) -> None:
        """Count and hash what an earlier call left behind; start over where it is more than the whole file."""
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
        """Write a stream. Raises ResourceError when it cannot be written, _WrongBytes when too much comes."""
        if stream.start != self.size_bytes:
            self.start_over()
        for chunk in stream.chunks:
            if self.size_bytes + len(chunk) > self._expected.size_bytes:
                raise _WrongBytes
            self._write(chunk)
            self._count(chunk)

    def _write(self, chunk: bytes) -> None:
        """Write a chunk. Raises ResourceError, as trouble with the disk must not be retried like the connection's."""
        try:
            self._file.write(chunk)
        except OSError as problem:
            raise _unwritten(problem, self._file.name) from problem

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
        return new_hash(self._expected.etag, self._expected.size_bytes)


def partial_of(blob: Path) -> Path:
    return blob.with_name(blob.name + PARTIAL)


def transfer(repo: RemoteRepo, file: RemoteFile, blob: Path, *, patience: RetryPolicy, on_bytes: OnBytes) -> None:
    """Fetch the file and put it in its place.

    Raises DownloadError, ResourceError; what was received stays for the next call, unless it is wrong.
    """
    partial = partial_of(blob)
    try:
        with _opened_partial(partial) as out:
            incoming = Incoming(out, file, on_bytes)
            incoming.read_back()
            _complete(repo, file, incoming, patience)
            out.flush()
        flush_and_rename(partial, blob)
    except _WrongBytes:
        partial.unlink(missing_ok=True)
        raise DownloadError(
            f"{file.name} of {repo.id} is not what the hub promised: its {_measure(file)} is wrong",
            hint="what came was deleted; try again, and tell the repository's owner if it stays so",
        ) from None
    except OSError as problem:  # buffered bytes could not be written
        raise _unwritten(problem, str(partial)) from problem


def _unwritten(problem: OSError, path: str) -> ResourceError:
    return write_error(problem, path, hint="make room with `eaglelocal rm`; the same command resumes the download")


def _measure(file: RemoteFile) -> str:
    return "SHA-256" if len(file.etag) == SHA256_CHARS else "SHA-1"


def _opened_partial(partial: Path) -> BinaryIO:
    """Open the partial file for reading and writing, made if it is not there."""
    try:
        make_folder(partial.parent, SHARED)
        partial.touch()
        return partial.open("r+b")
    except OSError as problem:
        raise write_error(problem, str(partial)) from problem


def _complete(repo: RemoteRepo, file: RemoteFile, incoming: Incoming, patience: RetryPolicy) -> None:
    """Fetch until the file is whole and right. A wrong one that was begun earlier is fetched anew, once."""
    is_fresh = incoming.size_bytes == 0
    while True:
        try:
            _receive(repo, file, incoming, patience)
            if incoming.is_right:
                return
        except _WrongBytes:
            pass
        if is_fresh:
            raise _WrongBytes
        incoming.start_over()
        is_fresh = True


def _receive(repo: RemoteRepo, file: RemoteFile, incoming: Incoming, patience: RetryPolicy) -> None:
    """Fetch until the file is whole; attempts are counted anew whenever bytes were received."""
    attempt, reached = 0, incoming.size_bytes
    while not incoming.is_whole:
        try:
            with opened(repo, file, incoming.size_bytes) as stream:
                incoming.take(stream)
            if incoming.size_bytes < stream.end:
                raise OSError(f"it ended after {incoming.size_bytes} of {file.size_bytes} bytes")
        except PROBLEMS as problem:
            if incoming.size_bytes > reached:
                attempt, reached = 0, incoming.size_bytes
            if not patience.wait(problem, attempt):
                raise explained(problem, repo.id) from problem
            attempt += 1
