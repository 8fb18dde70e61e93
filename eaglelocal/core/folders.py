"""Creates folders with the intended permissions, whatever the umask of the process is.

A umask may be 000, as in many containers: a plain mkdir then creates folders that everybody can write. A umask that
is stricter than the permissions asked for stays in force.
"""

from __future__ import annotations

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
        if not folder.is_dir():
            raise
    else:
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Sync the folder's entries to disk, so that they survive a power cut; ignored where a file system cannot."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
