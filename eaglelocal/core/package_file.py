"""An installed package, found and read without importing it: importing may load a library that crashes the process."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

_VERSION_LINE = re.compile(r"""^__version__ *= *["']([^"']+)["']""", re.MULTILINE)


def find_package_file(name: str) -> Path | None:
    """Return the first file of a top-level package; None if it is not installed."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # something put a module without a spec in its place
        return None
    return Path(spec.origin) if spec and spec.origin else None


def read_package_version(name: str) -> str | None:
    """Return the version in the package's file, else in its metadata; None if it is not installed or says none.

    Metadata takes ten times as long, at every start.
    """
    file = find_package_file(name)
    try:
        text = file.read_text(encoding="utf-8") if file else ""
    except (OSError, UnicodeDecodeError):
        return None
    if found := _VERSION_LINE.search(text):
        return found[1]
    return _read_metadata(name) if file else None


def _read_metadata(name: str) -> str | None:
    from importlib import metadata

    distributions = metadata.packages_distributions().get(name, [])
    return metadata.version(distributions[0]) if distributions else None
