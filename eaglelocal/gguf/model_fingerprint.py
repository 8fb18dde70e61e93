"""Identifies a model by samples of its weights, of all files if it is split into several."""

from __future__ import annotations

import hashlib
from pathlib import Path

from eaglelocal.core.file_fingerprint import fingerprint
from eaglelocal.gguf.split_files import list_named_parts


def fingerprint_model(path: Path) -> str:
    """Return the fingerprint of a model's file; one of all its parts, as far as they exist, if it is split.

    Raises OSError.
    """
    parts = [part for part in list_named_parts(path) if part.is_file()]
    if len(parts) < 2:
        return fingerprint(path)
    return hashlib.sha256("\n".join(map(fingerprint, parts)).encode()).hexdigest()[:24]
