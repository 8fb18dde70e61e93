"""Resolution of a path that a person typed: an existing file, or an error that helps.

Looks at folders for near names only when something is wrong. Does not know what the file is for.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from eaglelocal.catalog.reference import GGUF_SUFFIX
from eaglelocal.errors import ModelFileError

MAX_LISTED = 500  # names looked at in a folder, so that a wrong path never walks a whole disk


def existing_file(reference: str, *, hint: str = "`--target demo` is the embedded model") -> Path:
    """Return the file's path. Raises ModelFileError on a folder or a missing file; `hint` if no name is alike."""
    path = Path(os.path.expanduser(reference))
    if os.path.isdir(path):
        raise ModelFileError(f"{path} is a folder", hint=_one_of(path))
    if not os.path.exists(path):  # unlike Path.exists, also false on a name that no file can have
        raise ModelFileError(f"{path} does not exist", hint=_near(path) or hint)
    return path


def gguf_names(folder: Path) -> list[str]:
    """Return the names of the GGUF files in a folder, sorted; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(MAX_LISTED), strict=False)]
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(GGUF_SUFFIX))


def _one_of(folder: Path) -> str:
    names = gguf_names(folder)
    return f"give a file in it, such as {folder / names[0]}" if names else "give the path of a .gguf file"


def _near(path: Path) -> str:
    near = difflib.get_close_matches(path.name, gguf_names(path.parent), n=1)
    return f"did you mean {path.parent / near[0]}?" if near else ""
