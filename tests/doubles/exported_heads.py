"""The export of a head without its command: from a head's GGUF to a published folder."""

from __future__ import annotations

from pathlib import Path

from eaglelocal.hub.heads.export_folder import read_eagle_head, write_head_folder
from eaglelocal.hub.heads.export_tensors import EXPORT_FORMATS, KEEP, ExportHead, make_config, make_published_tensors
from eaglelocal.hub.heads.safetensors_files import SHARD_BYTES

REPO = "somebody/random-target"


def exported(path: Path, folder: Path, form: str, *, kind: str = KEEP, shard_bytes: int = SHARD_BYTES) -> Path:
    """Export a head and return its folder. Raises what the command would raise."""
    head = ExportHead(read_eagle_head(path), EXPORT_FORMATS[form], kind)
    config, tensors = make_config(head, form, REPO), make_published_tensors(head)
    write_head_folder(folder, config, tensors, on_progress=lambda share: None, shard_bytes=shard_bytes)
    return folder
