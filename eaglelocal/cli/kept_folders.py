"""Measure and delete the folders of what servers, chats and learning have kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from eaglelocal.cli.output import path_text
from eaglelocal.core.byte_sizes import format_disk
from eaglelocal.errors import ResourceError

TRIES = 5


def list_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def format_size(folders: Iterable[Path]) -> str:
    return format_disk(sum(measure_file(path) for folder in folders for path in list_files(folder)))


def measure_file(path: Path) -> int:
    """Return the bytes of a file; 0 if it was deleted meanwhile."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def delete_light_copies(learned: Path) -> None:
    """Delete the copies of learned heads in fewer bits, which are kept elsewhere."""
    from eaglelocal.hub.heads.requantized_copy import find_copies

    for head in learned.rglob("*.gguf"):
        for copy in find_copies(head):
            with suppress(OSError):
                copy.unlink()


def delete_folder(folder: Path) -> None:
    """Delete a folder; tried again where a server writes into it just then. Raises ResourceError."""
    for left in reversed(range(TRIES)):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            if not left:
                raise ResourceError(
                    f"cannot delete {path_text(folder)}: {error.strerror}", hint="check its permissions"
                ) from error
