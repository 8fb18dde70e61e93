"""Folders that only their owner may enter, whatever the umask: for state, caches and keys."""

from __future__ import annotations

from pathlib import Path

PRIVATE_DIR_MODE = 0o700


def make_private_folder(folder: Path) -> Path:
    """Make the folder and the parents it lacks, each with mode 0700; return it.

    `Path.mkdir(parents=True, mode=0o700)` gives that mode to the last folder only. A folder that exists keeps its
    mode: it may be shared on purpose. Raises OSError.
    """
    missing = [folder]
    while not missing[-1].parent.exists() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        each.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    return folder
