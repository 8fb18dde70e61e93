"""Pictures of saved conversations: one file each, named by its SHA-256, in a folder beside the conversations.

A picture is written once, however many conversations show it, and removed with the last of them. A missing or changed
file is shown as gone; the conversation can still be read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from eaglelocal.conversation.pictures import AttachedPicture, Pictures, check_picture
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.folders import sync_folder
from eaglelocal.core.image_formats import MAX_PICTURE_BYTES, MAX_PICTURES
from eaglelocal.core.own_files import list_own, read_own
from eaglelocal.errors import UsageError

FOLDER = "pictures"
DIGEST = re.compile(r"[0-9a-f]{64}")


def keep(folder: Path, pictures: Iterable[AttachedPicture]) -> None:
    """Write the pictures that are not stored yet. Raises OSError."""
    for picture in pictures:
        path = folder / FOLDER / picture.digest
        if picture.data and not path.is_file():
            write_atomically(path, picture.data)


def to_json(pictures: Pictures) -> list[dict[str, str]]:
    return [{"name": picture.name, "sha256": picture.digest} for picture in pictures]


def from_json(folder: Path, entries: object) -> Pictures | None:
    """Read the pictures that a conversation file lists; None if the list is invalid."""
    if not isinstance(entries, list) or len(entries) > MAX_PICTURES:
        return None
    found = []
    for entry in entries:
        match entry:
            case {"name": str(name), "sha256": str(digest)} if DIGEST.fullmatch(digest):
                found.append(_read(folder, name, digest))
            case _:
                return None
    return tuple(found)


def find_digests(conversation: Path) -> set[str]:
    """Return the digests that a conversation file mentions; none if it cannot be read."""
    try:
        return set(DIGEST.findall(read_own(conversation).decode()))
    except (OSError, ValueError):
        return set()


def drop(folder: Path, digests: set[str]) -> None:
    """Remove the pictures with these digests that no conversation mentions any more."""
    if digests:
        left = digests.difference(*map(find_digests, list_own(folder, "*.json")))
        for digest in left:
            with suppress(OSError):
                (folder / FOLDER / digest).unlink()
        if left:
            sync_folder(folder / FOLDER)


def _read(folder: Path, name: str, digest: str) -> AttachedPicture:
    path = folder / FOLDER / digest
    try:
        data = read_own(path, MAX_PICTURE_BYTES)
        if hashlib.sha256(data).hexdigest() == digest:
            return check_picture(name, data)
    except (OSError, UsageError):
        pass
    return AttachedPicture(name, b"", digest=digest)
