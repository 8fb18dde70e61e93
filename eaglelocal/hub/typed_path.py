"""Check of a path that a user typed: an existing file, or an error that helps.

Searches folders for similar names only if something is wrong. Does not know what the file is for.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from eaglelocal.catalog.reference import GGUF_SUFFIX
from eaglelocal.errors import ModelFileError

MAX_LISTED = 500  # names that are read from a folder


def check_file(path: Path, *, hint: str = "eaglelocal ls") -> None:
    """Raise ModelFileError on a folder or a missing file; `hint`: if no name is similar."""
    if os.path.isdir(path):
        raise ModelFileError(f"{path} is a folder", hint=_suggest_file(path))
    if not os.path.exists(path):  # unlike Path.exists, also false on a name that no file can have
        raise ModelFileError(f"{path} does not exist", hint=_suggest_near(path) or hint)


def list_gguf_names(folder: Path) -> list[str]:
    """Return the names of the GGUF files in a folder, sorted; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(MAX_LISTED), strict=False)]
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(GGUF_SUFFIX))


def _suggest_file(folder: Path) -> str:
    names = list(filter(str.isprintable, list_gguf_names(folder)))
    return f"give a file in it, such as {folder / names[0]}" if names else "give the path of a .gguf file"


def _suggest_near(path: Path) -> str:
    names = filter(str.isprintable, list_gguf_names(path.parent))
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.parent / near[0]}?" if near else ""
