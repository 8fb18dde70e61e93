"""The folder of one visitor's chat, in the system's temporary folder, and what killed chats left there.

    eaglelocal-chat-RANDOM/.lock    held by the process of the chat for as long as it runs

A folder whose lock is free belongs to nobody any more, whatever process ids say. Folders of earlier versions have no
lock: of these only empty ones are removed, when they are old. Only folders of the same user are looked at.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eaglelocal.core.own_files import append_own

PREFIX, LOCK, UNLOCKED = "eaglelocal-chat-", ".lock", ".lock-to-be"
OLD_S = 86_400.0


@contextmanager
def open_visitor_folder() -> Iterator[Path]:
    """Make a folder for a chat, and remove it after the block. Those that killed chats left are removed first."""
    remove_stale_folders()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, (Path(name) / UNLOCKED).open("ab") as lock:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
            (Path(name) / UNLOCKED).rename(Path(name) / LOCK)  # nobody sees it before it is held
        yield Path(name)


def remove_stale_folders() -> None:
    """Remove the folders of chats that have ended. What cannot be removed stays."""
    now = time.time()
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            if (folder / LOCK).exists():
                _remove_unlocked(folder, LOCK)
            elif now - status.st_mtime > OLD_S:
                if (folder / UNLOCKED).exists():
                    _remove_unlocked(folder, UNLOCKED)
                else:
                    folder.rmdir()  # an empty one


def _remove_unlocked(folder: Path, name: str) -> None:
    """Remove a folder unless its chat still runs and holds the lock of this name. Raises OSError."""
    with append_own(folder / name) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
