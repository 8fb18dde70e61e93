"""The output of `eaglelocal ls`: the models and what lies beside them, as lines and for JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal.cli.output import age_text, path_text
from eaglelocal.core.byte_sizes import count_noun, format_disk
from eaglelocal.hub.model_library import PLACES

if TYPE_CHECKING:
    from eaglelocal.hub.heads.head_store import UnfinishedHead
    from eaglelocal.hub.hub_cache import Partial
    from eaglelocal.hub.inventory import InventoryEntry
    from eaglelocal.training.training_folder import TrainingFolder

HEADINGS = ("MODEL", "SIZE", "CONTEXT", "KIND", "AGE")
KINDS = {"head": "draft head", "embedding model": "embeddings", "image encoder": "images only"}


def entry_table(entries: Sequence[InventoryEntry], *, now: float, width: int | None) -> list[str]:
    """Return the table, at most `width` columns wide (None: any); a reference that is too long gets its own line."""
    rows = [HEADINGS, *(_row(entry, now) for entry in entries)]
    targets = [(), *(entry.targets for entry in entries)]
    widths = [max(len(row[column]) for row in rows) for column in range(1, len(HEADINGS))]
    rest = sum(widths) + 2 * len(widths)
    longest = max(len(row[0]) for row in rows)
    first = longest if width is None else min(longest, width - rest)
    lines = []
    for (reference, *cells), drafted in zip(rows, targets, strict=True):
        rest_of_row = "".join(f"  {cell:<{w}}" for cell, w in zip(cells, widths, strict=True)).rstrip()
        if len(reference) <= first:
            lines.append(f"{reference:<{first}}{rest_of_row}")
        else:
            lines += [reference, f"{'':<{first}}{rest_of_row}"]
        lines += [f"  drafts for {target}" for target in drafted]
    return lines


def _row(entry: InventoryEntry, now: float) -> tuple[str, ...]:
    about = entry.description
    context = f"{about.context}" if about.context else ""
    age = "" if entry.origin == "embedded" else age_text(now - entry.modified_at)
    return entry.reference, format_disk(entry.size_bytes), context, _kind(entry), age


def _kind(entry: InventoryEntry) -> str:
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


def other_lines(
    partials: Sequence[Partial],
    heads: Sequence[UnfinishedHead],
    copies: Sequence[tuple[Path, int]],
    folders: Sequence[TrainingFolder],
) -> list[str]:
    """Return lines on all files that are not models: unfinished ones, copies of heads, answers for training."""
    return [*partial_lines(partials), *head_lines(heads), *copy_lines(copies), *folder_lines(folders)]


def partial_lines(partials: Sequence[Partial]) -> list[str]:
    lines = []
    for repo in dict.fromkeys(partial.repo for partial in partials):
        num_bytes = sum(partial.size_bytes for partial in partials if partial.repo == repo)
        lines.append(f"unfinished: {repo}, {format_disk(num_bytes)} so far")
    return lines


def head_lines(heads: Sequence[UnfinishedHead]) -> list[str]:
    """Return lines on the files of imports that were killed; imports that still run are left out."""
    return [
        line
        for head in heads
        if not head.is_being_written
        for line in (
            f"unfinished: an imported head, {format_disk(head.size_bytes)} so far",
            f"  {path_text(head.path)}",
        )
    ]


def copy_lines(copies: Sequence[tuple[Path, int]]) -> list[str]:
    """Return lines on the disk use of quantized copies of heads.

    A copy is removed with its head, and made again when the head drafts.
    """
    if not copies:
        return []
    total = format_disk(sum(size for _, size in copies))
    folder = path_text(copies[0][0].parent)
    return [f"also on disk: {count_noun(len(copies), 'quantized head')}, {total}", f"  {folder}"]


def folder_lines(folders: Sequence[TrainingFolder]) -> list[str]:
    """Return lines on the folders in which `train` keeps answers for the next run."""
    if not folders:
        return []
    lines = ["also on disk: answers for training heads (eaglelocal rm FOLDER)"]
    for folder in folders:
        lines += [f"  {path_text(folder.folder)}"]
        lines += [f"    {format_disk(folder.size_bytes)}, {folder.target or 'a target'}"]
    return lines


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
        "repo": entry.repo or None,
        "quant": about.quant or None,
        "size_bytes": entry.size_bytes,
        "context": about.context,
        "architecture": about.architecture or None,
        "kind": about.kind,
        "is_draft": about.kind == "head",
        "drafts_for": list(entry.targets),
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
