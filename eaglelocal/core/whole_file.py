"""Writing a file so that it is there whole or not at all, whoever else writes it, and after a power cut too.

Knows nothing of what is written. Whoever writes holds the lock of the file that is yet to be renamed; the lock ends
with the process, so that the next writer in the folder knows whose files nobody will ever finish, and removes them.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from eaglelocal.core.folders import PRIVATE, make_folder, sync_folder

PREFIX, SUFFIX = ".eaglelocal-", ".part"  # nobody else calls his files so
OWN_FILE = 0o600  # some of these files hold keys
OTHERS_WRITE = 0o022


def write_whole(path: Path, content: str | bytes, *, mode: int = OWN_FILE, scratch: Path | None = None) -> None:
    """Write it elsewhere, flush it to the disk, and move it to its place; makes the folder.

    mode     the rights of the file, whatever the umask is
    scratch  where it is written first, on the same disk; beside its place if nothing is said

    Raises OSError, and leaves nothing behind then.
    """
    make_folder(path.parent, PRIVATE)
    scratch = scratch or path.parent
    drop_abandoned(scratch)
    handle, made = _new_file(scratch)
    try:
        with os.fdopen(handle, "wb") as file:  # its lock goes when it is closed
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            os.replace(made, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(made)
        raise
    sync_folder(path.parent)


def put_in_place(made: Path, path: Path) -> None:
    """Flush a file that is complete to the disk and give it its name. Raises OSError.

    Whatever the umask is, only its owner may write it.
    """
    with made.open("rb") as file:
        os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode & 0o777 & ~OTHERS_WRITE)
        os.fsync(file.fileno())
    os.replace(made, path)
    sync_folder(path.parent)


def drop_abandoned(folder: Path) -> None:
    """Remove the unfinished files in a folder whose writers have ended; those of others are let be."""
    for path in folder.glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(OSError):  # it went just now, somebody writes it, or no file system of locks
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    continue
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(handle)


def _new_file(folder: Path) -> tuple[int, str]:
    """A fresh file, open and locked, and its name; only its owner may read it.

    Between its making and its locking another writer may take it for abandoned: then it has no name any more.
    """
    while True:
        handle, made = tempfile.mkstemp(prefix=PREFIX, suffix=SUFFIX, dir=folder)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, made
        os.close(handle)
