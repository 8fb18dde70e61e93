"""The contents of TOML files, kept as JSON in the cache: parsing them takes longer than all else that a plan needs.

What is kept counts only for exactly these files, as they are now; it is always safe to delete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from eaglelocal import locations
from eaglelocal.catalog.toml_table import TomlTable
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.json_text import read_json
from eaglelocal.core.own_files import read_own

FileVersion = tuple[Path, int, int]  # file, time of its last change in ns, bytes


def read_tables(versions: Sequence[FileVersion]) -> list[TomlTable]:
    """Return the content of each file. Raises UsageError for one that cannot be read or is not TOML."""
    described = [[str(path), mtime_ns, num_bytes] for path, mtime_ns, num_bytes in versions]
    kept = find_kept(versions)
    contents = read_kept(kept, described)
    if contents is not None:
        return [TomlTable(content, path=path) for content, (path, _, _) in zip(contents, versions, strict=True)]
    tables = [TomlTable.of_file(path) for path, _, _ in versions]
    keep = {"files": described, "contents": [table.content for table in tables]}
    with suppress(OSError, TypeError, ValueError):  # dates are no JSON; a cache that cannot be written is none
        write_atomically(kept, json.dumps(keep, allow_nan=False))
    return tables


def find_kept(versions: Sequence[FileVersion]) -> Path:
    """Return where the contents of files in these folders are kept."""
    folders = sorted({str(path.parent) for path, _, _ in versions})
    name = hashlib.blake2b("\n".join(folders).encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return locations.parsed_profiles_dir() / f"{name}.json"


def read_kept(path: Path, described: list[list[object]]) -> list[dict[str, object]] | None:
    """Return the contents of exactly these files; None if they are not kept."""
    try:
        kept = read_json(read_own(path))
    except (OSError, ValueError):
        return None
    if not isinstance(kept, dict) or kept.get("files") != described:
        return None
    contents = kept.get("contents")
    if not isinstance(contents, list) or len(contents) != len(described):
        return None
    return contents if all(isinstance(one, dict) for one in contents) else None
