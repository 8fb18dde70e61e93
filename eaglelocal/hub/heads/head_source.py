"""The folder of a published head: one that a person names, or a repository in the hub's cache. Never downloads."""

from __future__ import annotations

import os
import re
from pathlib import Path

from eaglelocal import locations
from eaglelocal.errors import ModelFileError, UsageError
from eaglelocal.hub.heads.head_folder import CONFIG, SUFFIX

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def head_folder(reference: str) -> tuple[Path, str]:
    """Return the folder and the head's name. Raises UsageError or ModelFileError where there is none."""
    path = Path(os.path.expanduser(reference))
    if path.is_dir():
        return path, path.resolve().name
    if path.exists():
        raise UsageError(f"{path} is a file", hint=_instead_of(path))
    if not REPOSITORY.fullmatch(reference):
        raise ModelFileError(f"{path} does not exist", hint=f"give a folder with {CONFIG} and *{SUFFIX}")
    cached = _cached(reference)
    if cached is None:
        raise ModelFileError(f"{reference} is not on this machine", hint=f"eaglelocal pull TARGET --draft {reference}")
    return cached, reference.rpartition("/")[2]


def _cached(repository: str) -> Path | None:
    """Return the repository's snapshot in the hub's cache; None where it has none."""
    from eaglelocal.hub.client_settings import prepare_client

    prepare_client(connects=False)
    from huggingface_hub import try_to_load_from_cache  # slow to import
    from huggingface_hub.errors import HFValidationError

    from eaglelocal.hub.hub_errors import explained

    try:
        found = try_to_load_from_cache(repository, CONFIG, cache_dir=locations.hub_cache_dir())
    except HFValidationError as problem:
        raise explained(problem, repository) from None
    return Path(found).parent if isinstance(found, str) else None


def _instead_of(path: Path) -> str:
    if path.suffix == ".gguf":
        return "a GGUF needs no import: name it with --draft"
    return f"give the folder that it lies in: {path.parent or '.'}"
