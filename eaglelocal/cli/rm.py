"""`eaglelocal rm`: remove a model from disk, after showing what that frees and what it does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal import locations
from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_on_disk
from eaglelocal.cli.output import confirm, path_text, standard_output
from eaglelocal.core.amounts import format_disk

if TYPE_CHECKING:
    from eaglelocal.hub.removal import Removal

MAX_KEPT_SHOWN = 5


def rm(
    ref: Annotated[
        str, typer.Argument(metavar="REF", help="Model as `eaglelocal ls` shows it.", autocompletion=complete_on_disk)
    ],
    yes: flags.Yes = False,
) -> None:
    """Remove a model from this disk. What its heads have learned stays, and is named with the command that deletes it.

    \b
    eaglelocal rm user/repo-GGUF:Q4_K_M
    eaglelocal rm demo@1b:bf16 --yes
    """
    from eaglelocal.cli.deletion import find_leftovers, find_removal, leftover_lines
    from eaglelocal.hub.heads.requantized_copy import delete_stale_copies
    from eaglelocal.hub.removal import remove

    output = standard_output()
    removal = find_removal(ref)
    for line in removal_lines(removal):
        output.message(line)
    confirm(f"free {format_disk(removal.freed_bytes)}?", output, yes=yes, default=False)
    removal = find_removal(ref)  # a download may have started before the answer
    left = find_leftovers(removal.paths)
    remove(removal)
    freed_bytes = removal.freed_bytes + delete_stale_copies(locations.light_heads_dir())
    output.message(f"freed {format_disk(freed_bytes)}")
    for line in leftover_lines(left):
        output.message(line)


def removal_lines(removal: Removal) -> list[str]:
    lines = [removal.what]
    if removal.repo_folder is not None:
        revisions = f", in {', '.join(removal.revisions)}" if removal.revisions else ""
        lines.append(f"  {path_text(Path(removal.repo_folder))}{revisions}")
        lines.append("  from the hub's cache: other programs can no longer use it")
    kept = [f"  kept: {name} has the same bytes" for names in removal.kept.values() for name in names]
    return [*lines, *kept[:MAX_KEPT_SHOWN]]
