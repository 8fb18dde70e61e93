"""The import of a head without its command: from a published folder and a target file to the head's GGUF."""

from __future__ import annotations

from pathlib import Path

from eaglelocal.gguf.draft_pairing import read_draft
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.heads.convert import HeadReading, ReadHead, make_entries, make_tensors, read_head
from eaglelocal.hub.heads.head_folder import read_published
from eaglelocal.hub.heads.head_store import write_head_file


def understood(folder: Path, target: Path) -> ReadHead:
    header = read_header(target)
    return read_head(read_published(folder), ModelInfo.from_header(header), name=folder.name)


def imported(folder: Path, target: Path, path: Path, *, kind: str = "f32", reading: HeadReading | None = None) -> Path:
    """Import a head and return its path. Raises what the command would raise before it loads anything."""
    info = ModelInfo.from_header(read_header(target))
    head = understood(folder, target)
    entries = make_entries(head, reading or head.stated, info, kind)
    with write_head_file(path, entries, make_tensors(head, info, kind), on_progress=lambda fraction: None) as partial:
        read_draft(read_header(partial), info)
    return path
