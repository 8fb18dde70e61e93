"""Opens files only if they are regular ones, and those in our own folders only if this user put them there.

A pipe, socket, device or folder may stand where we keep a cache, a head or a session. Opening a pipe in the usual way
waits for a writer forever, and a device may have no end. Readers treat the OSError like a missing file; a warning says
once what is skipped.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from io import BufferedReader, BufferedWriter
from pathlib import Path

from eaglelocal.core.atomic_file import OWN_FILE, PRIVATE, make_folder

KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
MAX_BYTES = 64 << 20  # of a file that is read whole
USUAL_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.ENOSPC, errno.EDQUOT)  # there is no file at this path


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file without waiting. Raises OSError, whose `strerror` says what it is instead."""
    return os.fdopen(_open(path, os.O_RDONLY, is_ours=False), "rb")


def open_own(path: Path) -> BufferedReader:
    """Open a file of a folder of ours as `open_regular` does. Raises OSError also for a file of another user."""
    return os.fdopen(_open(path, os.O_RDONLY), "rb")


def append_own(path: Path) -> BufferedWriter:
    """Open a file of a folder of ours to append, as `open_own` does; only its owner may read a new one."""
    return os.fdopen(_open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def read_regular(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file. Raises OSError as `open_regular`, and for more than `max_bytes`."""
    with open_regular(path) as file:
        return _read(path, file, max_bytes)


def read_own(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file of a folder of ours. Raises OSError as `open_own`, and for more than `max_bytes`."""
    with _warning(path), open_own(path) as file:
        return _read(path, file, max_bytes)


@contextmanager
def hold_lock(path: Path, *, waits: bool = True) -> Iterator[None]:
    """Hold the lock of a file of a folder of ours, which ends with the process, however that ends.

    Raises OSError if the file cannot be made; BlockingIOError if another process holds it and this one does not wait.
    """
    make_folder(path.parent, PRIVATE)
    with append_own(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks
            pass
        yield


def is_own(path: Path) -> bool:
    """Return whether a path of a folder of ours is a regular file of this user; a link to one is."""
    try:
        with _warning(path):
            _check(path, os.stat(path), is_ours=True)
    except OSError:
        return False
    return True


def list_own(folder: Path, pattern: str) -> list[Path]:
    """Return the regular files of this user in a folder of ours, sorted; none if it cannot be read."""
    try:
        return [path for path in sorted(folder.glob(pattern)) if is_own(path)]
    except OSError:
        return []


def _read(path: Path, file: BufferedReader, max_bytes: int) -> bytes:
    if os.fstat(file.fileno()).st_size > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes} bytes", str(path))
    return file.read()


def _open(path: Path, flags: int, *, is_ours: bool = True) -> int:
    with _warning(path) if is_ours else nullcontext():
        try:
            handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, OWN_FILE)
        except OSError as problem:
            if problem.errno == errno.ENXIO:  # a socket, or a pipe without a reader, opened for writing
                _check(path, os.stat(path), is_ours=False)
            raise
        try:
            _check(path, os.fstat(handle), is_ours=is_ours)
        except OSError:
            os.close(handle)
            raise
    return handle


def _check(path: Path, status: os.stat_result, *, is_ours: bool) -> None:
    """Raise OSError unless it is a regular file.

    In our folders, it must also belong to this user or, as in some containers, to the folder's owner: otherwise a head
    that another user puts into a world-writable folder would be loaded.
    """
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {KINDS.get(kind, 'a device')}, not a file", str(path))
    owner = status.st_uid
    if is_ours and owner not in (0, os.geteuid()) and owner != os.stat(path.parent).st_uid:
        raise OSError(errno.EPERM, f"it belongs to another user ({owner})", str(path))


@contextmanager
def _warning(path: Path) -> Iterator[None]:
    """Warn once of an error of the block that is not usual."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in USUAL_ERRORS:
            _warn_once(str(path), problem.strerror or str(problem))
        raise


@lru_cache(maxsize=256)
def _warn_once(path: str, why: str) -> None:
    import logging  # only then: it takes time of every start

    logging.getLogger(__name__).warning("%s is skipped: %s", path, why)


# ---- fingerprints
NUM_SAMPLES, SAMPLE_BYTES = 32, 4096  # of a file of weights


def fingerprint(path: Path) -> str:
    """Return a hash of a file's size and of samples of its content: weights of another training differ everywhere.

    Raises OSError.
    """
    size = path.stat().st_size
    content = hashlib.sha256(str(size).encode())
    with open_regular(path) as file:
        for part in range(NUM_SAMPLES):
            file.seek(max(size - SAMPLE_BYTES, 0) * part // (NUM_SAMPLES - 1))
            content.update(file.read(SAMPLE_BYTES))
    return content.hexdigest()[:24]
