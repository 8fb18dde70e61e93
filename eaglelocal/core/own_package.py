"""The folder that eaglelocal was installed from, and the command that installs one of its extras."""

from __future__ import annotations

import contextlib
import importlib.metadata
import shlex
import urllib.parse
from pathlib import Path

from eaglelocal.core.json_text import read_object

NAME = "eaglelocal"


def find_source() -> str:
    """Return what pip installs eaglelocal from: its folder, if it was installed from one that is still there."""
    folders = [Path(__file__).parents[2]]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError, KeyError):
        origin = read_object(importlib.metadata.distribution(NAME).read_text("direct_url.json") or "{}")
        folders.append(Path(urllib.parse.unquote(urllib.parse.urlsplit(str(origin["url"])).path)))
    return next((str(folder) for folder in folders if (folder / "pyproject.toml").is_file()), NAME)


def suggest_extra(names: str, source: str = "", pip: str = "pip") -> str:
    """Return the command that installs extras, given with commas between them.

    >>> suggest_extra("ssl,train", "eaglelocal")
    "pip install 'eaglelocal[ssl,train]'"
    """
    return f"{pip} install {shlex.quote(f'{source or find_source()}[{names}]')}"
