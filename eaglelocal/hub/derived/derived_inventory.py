"""List the derived models on this disk, as their headers describe them. Reads no source."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote_to_bytes

from eaglelocal import locations
from eaglelocal.core.own_files import list_own
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf.ggml_types import REFERENCE_KEY
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.derived.derived_file import SOURCE_HASH_KEY, SOURCE_KEY, make_slug
from eaglelocal.hub.derived.recipes import parse_recipe


@dataclass(frozen=True, slots=True)
class DerivedEntry:
    """A derived model on disk. `paths`: its file, then the heads that were inflated for it."""

    reference: str
    origin: str  # how it was made: a word for lists
    paths: tuple[Path, ...]
    is_outdated: bool  # its source is gone or has changed, or another version of eaglelocal made it


def list_derived() -> Iterator[DerivedEntry]:
    """Yield the derived models in the cache, by file name; files of other kinds and damaged ones are skipped."""
    for path in list_own(locations.generated_models_dir(), "*@*.gguf"):
        with suppress(EagleLocalError, OSError):
            if entry := _read_entry(path):
                yield entry


def _read_entry(path: Path) -> DerivedEntry | None:
    metadata = read_header(path, keys=(REFERENCE_KEY, SOURCE_KEY, SOURCE_HASH_KEY)).metadata
    reference, source, digest = (metadata.get(key) for key in (REFERENCE_KEY, SOURCE_KEY, SOURCE_HASH_KEY))
    if not (isinstance(reference, str) and isinstance(source, str) and isinstance(digest, str)):
        return None
    recipe = parse_recipe(reference.rpartition("@")[2])
    heads = sorted(path.parent.glob(f"{glob.escape(path.stem)}-head-*.gguf"))
    is_current = path.stem.endswith(f"@{make_slug(recipe, digest)}") and _is_older(_parse_source(source), path)
    return DerivedEntry(reference, recipe.origin, (path, *heads), not is_current)


def _parse_source(url: str) -> Path:
    return Path(os.fsdecode(unquote_to_bytes(url.removeprefix("file://"))))


def _is_older(source: Path, made: Path) -> bool:
    """Return whether the source still exists, and was not written after the file that was made of it."""
    try:
        return source.stat().st_mtime <= made.stat().st_mtime
    except OSError:
        return False
