"""Makes folders with the rights that they shall have, whatever the umask of the process is.

A umask may be 000, as in many containers: what a plain mkdir makes then is open to everybody. A umask that is
stricter than the rights asked for stays in force.
"""

from __future__ import annotations

import os
from pathlib import Path

PRIVATE = 0o700  # keys, questions, answers, and all else below the state folder
SHARED = 0o755  # models and what can be made again: others may read it


def make_folder(folder: Path, mode: int = PRIVATE) -> None:
    """Make it, and the parents that are missing, all with these rights; a folder that is there stays as it is.

    What is made outlives a power cut, so that a file in it does, too.

    Raises OSError.
    """
    try:
        os.mkdir(folder, mode)
    except FileNotFoundError:
        if folder.parent.exists():  # a file system in which nobody makes folders, such as /proc
            raise
        make_folder(folder.parent, mode)
        make_folder(folder, mode)
    except FileExistsError:
        if not folder.is_dir():
            raise
    else:
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """See that the names in it outlive a power cut. Some file systems know no such thing, which is no failure."""
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
