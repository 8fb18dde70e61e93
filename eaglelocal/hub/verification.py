"""Check that files in the cache have the hashes that the hub states.

A hub identifies large files by SHA-256 and small ones as git does, and its client names blobs by that hash. So files
are compared with the hub's list, or with the blobs' own names if no hub answers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from eaglelocal.core.own_files import open_regular
from eaglelocal.core.records import dataclass
from eaglelocal.errors import ResourceError
from eaglelocal.hub.hub_cache import CachedModel, find_blob

SHA256_CHARS = 64
CHUNK_BYTES = 1 << 20
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PromisedFile:
    """A file on disk, and the hash that its bytes should have."""

    name: str
    path: Path
    hash: str
    size_bytes: int


def make_hash(promised: str, size_bytes: int) -> hashlib._Hash:
    """Return a hash object of the promised kind: SHA-256, or for small files git's SHA-1, which includes the size."""
    if len(promised) == SHA256_CHARS:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size_bytes)


def list_promised_files(model: CachedModel) -> list[PromisedFile]:
    """Return a model's files with the hashes in their blobs' names; none on a disk without links."""
    files = []
    for path, size_bytes in ((path, path.stat().st_size) for path in model.paths):
        if _HASH.fullmatch(name := find_blob(path).name):
            files.append(PromisedFile(path.name, path, name, size_bytes))
    return files


def find_damaged(files: Sequence[PromisedFile], on_bytes: Callable[[int], None]) -> list[PromisedFile]:
    """Return the files whose bytes have another hash. Raises ResourceError if one cannot be read."""
    damaged = []
    for file in files:
        digest = make_hash(file.hash, file.size_bytes)
        try:
            with open_regular(file.path) as content:
                while chunk := content.read(CHUNK_BYTES):
                    digest.update(chunk)
                    on_bytes(len(chunk))
        except OSError as problem:
            what = f"{file.path} cannot be read: {problem.strerror or problem}"
            raise ResourceError(what, hint="check the disk; `eaglelocal rm` removes the model") from problem
        if digest.hexdigest() != file.hash:
            damaged.append(file)
    return damaged
