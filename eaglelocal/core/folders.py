"""Creates folders with the intended permissions, whatever the umask of the process is.

A umask may be 000, as in many containers: a plain mkdir then creates folders that everybody can write. A umask that
is stricter than the permissions asked for stays in force.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

PRIVATE = 0o700  # keys, questions, answers, and everything else below the state folder
SHARED = 0o755  # models and reproducible files: others may read them


def make_folder(folder: Path, mode: int = PRIVATE) -> None:
    """Create the folder and missing parents with these permissions; an existing folder stays as it is.

    New folders are synced to disk, so that a file in them survives a power cut too.

    Raises OSError.
    """
    try:
        os.mkdir(folder, mode)
    except FileNotFoundError:
        if folder.parent.exists():  # a file system without mkdir, such as /proc
            raise
        make_folder(folder.parent, mode)
        make_folder(folder, mode)
    except FileExistsError:
        if not folder.is_dir():  # a file, or a link that leads nowhere
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
    else:
        sync_folder(folder.parent)


def make_absolute(path: Path) -> Path:
    """Return a path that names the same file in every working folder."""
    flat = Path(os.path.abspath(path))
    if ".." in path.parts and os.path.realpath(flat) != os.path.realpath(path):  # it leads out of a linked folder
        return Path(os.path.realpath(path.parent), path.name)
    return flat


def is_gone(path: Path) -> bool:
    """Return whether a file is certainly not there any more.

    One that cannot be read may be there, and so may one whose folder is missing too: its disk may not be mounted.
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
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
