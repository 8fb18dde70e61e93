"""`eaglelocal ls`: list the models on this disk, for people and as JSON."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from eaglelocal.cli import flags
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import standard_output

WIDTH = 79


def ls(as_json: flags.AsJson = False) -> None:
    """List the models on this disk.

    \b
    eaglelocal ls
    eaglelocal ls --json | jq -r '.models[].reference'
    """
    from eaglelocal import locations
    from eaglelocal.cli.reports import ls as report
    from eaglelocal.hub.heads.head_store import find_unfinished_heads
    from eaglelocal.hub.heads.requantized_copy import list_copies
    from eaglelocal.hub.hub_cache import find_partials
    from eaglelocal.hub.inventory import list_all_models
    from eaglelocal.training.training_folder import list_folders

    output = standard_output()
    cache = locations.hub_cache_dir()
    folders = load_settings({}).model_folders
    entries, partials, heads = list_all_models(cache, folders), find_partials(cache), find_unfinished_heads()
    copies, training = add_sizes(list_copies()), list_folders()
    if as_json:
        return output.object(
            {
                "models": [report.entry_object(entry) for entry in entries],
                "unfinished": [*map(report.partial_object, partials), *map(report.head_object, heads)],
                "light_heads": [{"path": str(path), "size_bytes": size} for path, size in copies],
                "training": [report.folder_object(folder) for folder in training],
            }
        )
    output.lines(report.entry_table(entries, now=time.time(), width=WIDTH if output.is_terminal else None))
    for line in report.other_lines(partials, heads, copies, training):
        output.message(line)
    return None


def add_sizes(paths: Sequence[Path]) -> list[tuple[Path, int]]:
    """Return the files that still exist, with their bytes."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            found.append((path, path.stat().st_size))
    return found
