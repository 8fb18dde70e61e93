"""`eaglelocal forget`: delete what servers and chats have kept of questions and answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from eaglelocal import locations
from eaglelocal.cli import flags
from eaglelocal.cli.amounts import path_text
from eaglelocal.cli.confirm import confirm
from eaglelocal.cli.output import standard_output
from eaglelocal.core.byte_sizes import format_disk
from eaglelocal.errors import ResourceError

KEPT: dict[str, Callable[[], Path]] = {  # folders, by what a file in them is
    "texts for lookups": lambda: locations.lookups_dir(),
    "caches of conversations": lambda: locations.conversation_cells_dir(),
}


def forget(yes: flags.Yes = False) -> None:
    """Delete the texts that `--lookup-memory` has kept, and the caches that `--cache-disk` has.

    Saved conversations, models and heads stay. A server that runs goes on with what it has in memory.

    \b
    eaglelocal forget
    eaglelocal forget --yes
    """
    output = standard_output()
    kept = {what: files for what, folder in KEPT.items() if (files := list_files(folder()))}
    if not kept:
        output.message("nothing is kept")
        return
    for what, files in kept.items():
        num_bytes = sum(path.stat().st_size for path in files)
        output.message(f"{path_text(KEPT[what]())}: {len(files)} {what}, {format_disk(num_bytes)}")
    confirm("delete them?", output, yes=yes, default=False)
    for what in kept:
        delete(KEPT[what]())
    output.message("deleted")


def list_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def delete(folder: Path) -> None:
    """Delete a folder. Raises ResourceError."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise ResourceError(
            f"cannot delete {path_text(folder)}: {error.strerror}", hint="check its permissions"
        ) from error
