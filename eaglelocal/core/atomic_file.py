"""Writes a file completely or not at all, safe against other writers and power cuts.

A writer holds the lock of its temporary file until it is renamed. The lock ends with the
process, so that the next writer in the folder recognises abandoned temporary files, and removes them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PREFIX, SUFFIX = ".eaglelocal-", ".part"  # of temporary files; no other program uses such names
OWN_FILE = 0o600  # some of these files hold keys
OTHERS_WRITE = 0o022


def write_atomically(path: Path, content: str | bytes, *, mode: int = OWN_FILE, scratch: Path | None = None) -> None:
    """Write a file as `writing_atomically` does."""
    with writing_atomically(path, mode=mode, scratch=scratch) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def writing_atomically(path: Path, *, mode: int = OWN_FILE, scratch: Path | None = None) -> Iterator[BinaryIO]:
    """Yield a temporary file that is flushed to disk and moved to its place at the end; creates the folder.

    mode     the permissions of the file, whatever the umask is
    scratch  folder of the temporary file, on the same disk; by default the file's own

    Raises OSError, and leaves nothing behind then, nor after another error in the block.
    """
    make_folder(path.parent, PRIVATE)
    scratch = scratch or path.parent
    remove_abandoned(scratch)
    handle, made = _new_file(scratch)
    try:
        with os.fdopen(handle, "wb") as file:  # closing it releases its lock
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            os.replace(made, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(made)
        raise
    sync_folder(path.parent)


def flush_and_rename(made: Path, path: Path) -> None:
    """Flush a complete file to disk as `flush_file` does, and rename it to `path`. Raises OSError."""
    flush_file(made)
    os.replace(made, path)
    sync_folder(path.parent)


def flush_file(path: Path) -> None:
    """Flush a complete file to disk; only its owner may write it, whatever the umask is. Raises OSError."""
    with path.open("rb") as file:
        os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode & 0o777 & ~OTHERS_WRITE)
        os.fsync(file.fileno())


def remove_abandoned(folder: Path) -> None:
    """Remove temporary files in a folder whose writers have ended; those of running writers stay."""
    for path in folder.glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(OSError):  # it is gone, being written, or on a file system without locks
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    continue
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(handle)


def _new_file(folder: Path) -> tuple[int, str]:
    """Return a new temporary file, open and locked, and its name; only its owner may read it.

    Another writer may remove it as abandoned before it is locked; then another one is made.
    """
    while True:
        handle, made = tempfile.mkstemp(prefix=PREFIX, suffix=SUFFIX, dir=folder)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, made
        os.close(handle)


# ---- folders
#
# A umask may be 000, as in many containers: a plain mkdir then creates folders that everybody can write. A umask that
# is stricter than the permissions asked for stays in force.
PRIVATE = 0o700  # keys, questions, answers, and everything else below the state folder
SHARED = 0o755  # models and reproducible files: others may read them


def make_folder(folder: Path, mode: int = PRIVATE) -> None:
    """Create the folder and missing parents with these permissions; an existing folder stays as it is.

    New folders are synced to disk, so that a file in them survives a power cut too.

    Raises OSError.
    """
    try:
        _make_one(folder, mode)
    except FileNotFoundError:
        if not folder.parent.exists():
            make_folder(folder.parent, mode)
        _make_one(folder, mode)  # fails again on a file system without mkdir, such as /proc


def _make_one(folder: Path, mode: int) -> None:
    try:
        os.mkdir(folder, mode)
    except FileExistsError:
        if not folder.is_dir():  # a file, or a dangling link
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
    else:
        sync_folder(folder.parent)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other processes that lock the folder out of it meanwhile; without effect on file systems without locks."""
    with suppress(OSError):
        make_folder(folder, PRIVATE)
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield  # writing reports it
        return
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def make_absolute(path: Path) -> Path:
    """Return a path that names the same file in every working folder."""
    flat = Path(os.path.abspath(path))
    if ".." in path.parts and os.path.realpath(flat) != os.path.realpath(path):  # it leads out of a linked folder
        return Path(os.path.realpath(path.parent), path.name)
    return flat


def is_gone(path: Path) -> bool:
    """Return whether a file is certainly gone.

    A file that cannot be read may still exist, and so may one whose folder is missing: its disk may not be mounted.
    """
    try:
        path.stat()
    except FileNotFoundError:
        return os.path.isdir(os.path.dirname(os.path.realpath(path)))
    except OSError:
        pass
    return False


def sync_folder(folder: Path) -> None:
    """Sync the folder's entries to disk, so that they survive a power cut; ignored where a file system cannot."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
