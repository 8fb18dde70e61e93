"""`eaglelocal ls`: list the models on this disk, for people and as JSON."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal.cli import flags
from eaglelocal.cli.amounts import age_text, path_text, size_text
from eaglelocal.cli.output import standard_output

if TYPE_CHECKING:
    from eaglelocal.hub.heads.head_store import UnfinishedHead
    from eaglelocal.hub.hub_cache import Partial
    from eaglelocal.hub.inventory import InventoryEntry
    from eaglelocal.training.training_folder import TrainingFolder

WIDTH = 79
HEADINGS = ("MODEL", "SIZE", "CONTEXT", "KIND", "AGE")
KINDS = {"head": "draft head", "embedding model": "embeddings", "image encoder": "images only"}


def ls(as_json: flags.AsJson = False) -> None:
    """List the models on this disk.

    \b
    eaglelocal ls
    eaglelocal ls --json | jq -r '.models[].reference'
    """
    from eaglelocal import locations
    from eaglelocal.hub.heads.head_store import find_unfinished_heads
    from eaglelocal.hub.heads.requantized_copy import list_copies
    from eaglelocal.hub.hub_cache import find_partials
    from eaglelocal.hub.inventory import list_all_models
    from eaglelocal.training.training_folder import list_folders

    output = standard_output()
    cache = locations.hub_cache_dir()
    places = list_folders()
    entries, partials, heads, copies = (
        list_all_models(cache),
        find_partials(cache),
        find_unfinished_heads(),
        sized(list_copies()),
    )
    if as_json:
        return output.object(
            {
                "models": [entry_object(entry) for entry in entries],
                "unfinished": [*map(partial_object, partials), *map(head_object, heads)],
                "light_heads": [{"path": str(path), "size_bytes": size} for path, size in copies],
                "training": [place_object(place) for place in places],
            }
        )
    for line in table(entries, now=time.time(), width=WIDTH if output.is_terminal else None):
        output.data(line)
    for line in (*partial_lines(partials), *head_lines(heads), *copy_lines(copies), *place_lines(places)):
        output.message(line)
    return None


def table(entries: Sequence[InventoryEntry], *, now: float, width: int | None) -> list[str]:
    """Return the table, at most `width` columns wide (None: any); a reference that is too long gets its own line."""
    rows = [HEADINGS, *(_row(entry, now) for entry in entries)]
    widths = [max(len(row[column]) for row in rows) for column in range(1, len(HEADINGS))]
    rest = sum(widths) + 2 * len(widths)
    longest = max(len(row[0]) for row in rows)
    first = longest if width is None else min(longest, width - rest)
    lines = []
    for reference, *cells in rows:
        told = "".join(f"  {cell:<{w}}" for cell, w in zip(cells, widths, strict=True)).rstrip()
        lines += [f"{reference:<{first}}{told}"] if len(reference) <= first else [reference, f"{'':<{first}}{told}"]
    return lines


def _row(entry: InventoryEntry, now: float) -> tuple[str, ...]:
    about = entry.description
    context = f"{about.context}" if about.context else ""
    age = "" if entry.origin == "embedded" else age_text(now - entry.modified_at)
    return entry.reference, size_text(entry.size_bytes), context, _kind(entry), age


def _kind(entry: InventoryEntry) -> str:
    if entry.description.problem:
        return "unreadable"
    if entry.is_outdated:
        return "outdated"
    if entry.origin != "hub":
        return entry.origin
    kind = KINDS.get(entry.description.kind, entry.description.architecture)
    return f"{kind}, images" if entry.projector else kind


def partial_lines(partials: Sequence[Partial]) -> list[str]:
    """Return a line for each repository with an unfinished download."""
    lines = []
    for repo in dict.fromkeys(partial.repo for partial in partials):
        came = sum(partial.size_bytes for partial in partials if partial.repo == repo)
        lines.append(f"unfinished: {repo}, {size_text(came)} so far")
    return lines


def head_lines(heads: Sequence[UnfinishedHead]) -> list[str]:
    """Return lines on the files of imports that were killed; imports that still run are left out."""
    return [
        f"unfinished: an imported head, {size_text(head.size_bytes)} so far\n  {path_text(head.path)}"
        for head in heads
        if not head.is_being_written
    ]


def sized(paths: Sequence[Path]) -> list[tuple[Path, int]]:
    """Return the files that still exist, with their bytes."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            found.append((path, path.stat().st_size))
    return found


def copy_lines(copies: Sequence[tuple[Path, int]]) -> list[str]:
    """Return lines on the disk use of quantized copies of heads.

    A copy is removed with its head, and made again when the head drafts.
    """
    if not copies:
        return []
    heads, total = "head" if len(copies) == 1 else "heads", size_text(sum(size for _, size in copies))
    return [f"beside them: {len(copies)} {heads} in fewer bits, {total}\n  {path_text(copies[0][0].parent)}"]


def place_lines(places: Sequence[TrainingFolder]) -> list[str]:
    """Return lines on the folders in which `train` keeps answers for the next run."""
    if not places:
        return []
    told = [
        f"  {path_text(place.folder)}\n    {size_text(place.size_bytes)}, {place.target or 'a target'}"
        for place in places
    ]
    return ["beside them: answers that heads learn from (eaglelocal rm FOLDER)", *told]


def place_object(place: TrainingFolder) -> dict[str, object]:
    return {
        "path": str(place.folder),
        "target": place.target or None,
        "size_bytes": place.size_bytes,
        "is_in_use": place.is_in_use,
    }


def entry_object(entry: InventoryEntry) -> dict[str, object]:
    about = entry.description
    return {
        "reference": entry.reference,
        "origin": entry.origin,
        "repo": entry.repo or None,
        "quant": about.quant or None,
        "size_bytes": entry.size_bytes,
        "context": about.context,
        "architecture": about.architecture or None,
        "kind": about.kind,
        "is_draft": about.kind == "head",
        "projector": str(entry.projector) if entry.projector else None,
        "is_outdated": entry.is_outdated,
        "modified_at": entry.modified_at,
        "path": str(entry.path),
        "files": len(entry.paths),
        "problem": about.problem or None,
    }


def head_object(head: UnfinishedHead) -> dict[str, object]:
    return {"repo": None, "size_bytes": head.size_bytes, "path": str(head.path)}


def partial_object(partial: Partial) -> dict[str, object]:
    return {"repo": partial.repo, "size_bytes": partial.size_bytes, "path": str(partial.path)}
