"""`eaglelocal ls`: list the models on this disk, for people and as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal import locations
from eaglelocal.cli import flags
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import WIDTH, path_text, standard_output
from eaglelocal.core.amounts import count_noun, format_age, format_disk
from eaglelocal.errors import UsageError

if TYPE_CHECKING:
    from eaglelocal.hub.heads.head_store import UnfinishedHead
    from eaglelocal.hub.hub_cache import Partial
    from eaglelocal.hub.inventory import InventoryEntry
    from eaglelocal.training.training_folder import TrainingFolder

HEADINGS = ("MODEL", "SIZE", "CONTEXT", "KIND", "AGE")
KINDS = {"head": "draft head", "embedding model": "embeddings", "image encoder": "images only"}


def ls(as_json: flags.AsJson = False) -> None:
    """List the models on this disk.

    \b
    eaglelocal ls
    eaglelocal ls --json | jq -r '.models[].reference'
    """
    from eaglelocal.hub.heads.head_store import find_unfinished_heads
    from eaglelocal.hub.heads.requantized_copy import list_copies
    from eaglelocal.hub.hub_cache import find_partials
    from eaglelocal.hub.inventory import list_all_models
    from eaglelocal.training.training_folder import list_folders

    output = standard_output()
    cache = locations.hub_cache_dir()
    try:
        folders = load_settings({}).model_folders
    except UsageError as problem:
        output.message(f"warning: {problem.message}; your folders of models are not listed")
        folders = ()
    entries = list_all_models(cache, folders)
    partials, heads = find_partials(cache), find_unfinished_heads()
    copies, training = add_sizes(list_copies()), list_folders()
    if as_json:
        return output.object(
            {
                "models": [entry_object(entry) for entry in entries],
                "unfinished": [
                    *(unfinished_object(partial, partial.repo) for partial in partials),
                    *(unfinished_object(head, None) for head in heads),
                ],
                "light_heads": [{"path": str(path), "size_bytes": size} for path, size in copies],
                "training": [folder_object(folder) for folder in training],
            }
        )
    output.lines(entry_table(entries, now=time.time(), width=WIDTH if output.is_terminal else None))
    for line in (*partial_lines(partials), *head_lines(heads), *copy_lines(copies), *folder_lines(training)):
        output.message(line)
    return None


def add_sizes(paths: Sequence[Path]) -> list[tuple[Path, int]]:
    """Return the files that still exist, with their bytes."""
    found = []
    for path in paths:
        with suppress(OSError):
            found.append((path, path.stat().st_size))
    return found


def entry_table(entries: Sequence[InventoryEntry], *, now: float, width: int | None) -> list[str]:
    """Return the table, at most `width` columns wide (None: any); a reference that is too long gets its own line."""
    rows = [HEADINGS, *(_row(entry, now) for entry in entries)]
    targets = [(), *(entry.targets for entry in entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first = widths[0] if width is None else min(widths[0], width - sum(widths[1:]) - 2 * len(widths[1:]))
    lines = []
    for (reference, *cells), drafted in zip(rows, targets, strict=True):
        rest_of_row = "".join(f"  {cell:<{w}}" for cell, w in zip(cells, widths[1:], strict=True)).rstrip()
        if len(reference) <= first:
            lines.append(f"{reference:<{first}}{rest_of_row}")
        else:
            lines += [reference, f"{'':<{first}}{rest_of_row}"]
        lines += [f"  drafts for {target}" for target in drafted]
    return lines


def _row(entry: InventoryEntry, now: float) -> tuple[str, ...]:
    about = entry.description
    age = "" if entry.origin == "embedded" else format_age(now - entry.modified_at)
    return entry.reference, format_disk(entry.size_bytes), str(about.context or ""), _kind(entry), age


def _kind(entry: InventoryEntry) -> str:
    from eaglelocal.hub.model_library import PLACES

    if entry.description.problem:
        return "unreadable"
    if entry.is_outdated:
        return "outdated"
    kind = KINDS.get(entry.description.kind, entry.description.architecture)
    if entry.origin in PLACES:
        return f"{kind}, {entry.origin}"
    if entry.origin != "hub":
        return entry.origin
    return f"{kind}, images" if entry.projector else kind


def partial_lines(partials: Sequence[Partial]) -> Iterator[str]:
    for repo in dict.fromkeys(partial.repo for partial in partials):
        num_bytes = sum(partial.size_bytes for partial in partials if partial.repo == repo)
        yield f"unfinished: {repo}, {format_disk(num_bytes)} so far"


def head_lines(heads: Sequence[UnfinishedHead]) -> Iterator[str]:
    """Yield lines on the files of imports that were killed; imports that still run are left out."""
    for head in heads:
        if not head.is_being_written:
            yield f"unfinished: an imported head, {format_disk(head.size_bytes)} so far"
            yield f"  {path_text(head.path)}"


def copy_lines(copies: Sequence[tuple[Path, int]]) -> Iterator[str]:
    """Yield lines on the quantized copies of heads. Each is removed with its head, and made again when it drafts."""
    if copies:
        total = format_disk(sum(size for _, size in copies))
        yield f"also on disk: {count_noun(len(copies), 'quantized head')}, {total}"
        yield f"  {path_text(copies[0][0].parent)}"


def folder_lines(folders: Sequence[TrainingFolder]) -> Iterator[str]:
    """Yield lines on the folders in which `train` keeps answers for the next run."""
    if folders:
        yield "also on disk: answers for training heads (eaglelocal rm FOLDER)"
    for folder in folders:
        yield f"  {path_text(folder.folder)}"
        yield f"    {format_disk(folder.size_bytes)}, {folder.target or 'a target'}"


def unfinished_object(file: Partial | UnfinishedHead, repo: str | None) -> dict[str, object]:
    return {"repo": repo, "size_bytes": file.size_bytes, "path": str(file.path)}


def folder_object(folder: TrainingFolder) -> dict[str, object]:
    return {
        "path": str(folder.folder),
        "target": folder.target or None,
        "size_bytes": folder.size_bytes,
        "is_in_use": folder.is_in_use,
    }


def entry_object(entry: InventoryEntry) -> dict[str, object]:
    about = entry.description
    return {
        "reference": entry.reference,
        "origin": entry.origin,
        "size_bytes": entry.size_bytes,
        "is_outdated": entry.is_outdated,
        "modified_at": entry.modified_at,
        "repo": entry.repo or None,
        "quant": about.quant or None,
        "context": about.context,
        "architecture": about.architecture or None,
        "kind": about.kind,
        "is_draft": about.kind == "head",
        "drafts_for": list(entry.targets),
        "projector": str(entry.projector) if entry.projector else None,
        "path": str(entry.path),
        "files": len(entry.paths),
        "problem": about.problem or None,
    }
