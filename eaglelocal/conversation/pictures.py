"""Pictures of a question: from paths that people type, paste and drop to checked bytes with a name.

A file that is no picture is refused here, by name, before a request is sent.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shlex
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from eaglelocal.core.atomic_file import sync_folder, write_atomically
from eaglelocal.core.image import MAX_PICTURE_BYTES, MAX_PICTURES, NAMES, SIZE_HINT, media_type, size_problem
from eaglelocal.core.own_files import list_own, read_own
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import Image, Message
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image as Opened

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp")
MAX_PATHS_CHARS = 8192  # a longer text is not a dropped path
BEGINNING_BYTES = 16
ADDRESS = re.compile("https?:/")


@dataclass(frozen=True, slots=True)
class AttachedPicture:
    """A picture of a question. `data` is empty if the file of a saved conversation is gone."""

    name: str
    data: bytes = field(repr=False)
    width: int = 0
    height: int = 0
    digest: str = ""  # SHA-256 of the bytes, their file name in picture_store

    @property
    def label(self) -> str:
        name = "".join(char if char.isprintable() else "?" for char in self.name)
        return f"[image: {name}, {self.width}x{self.height}]" if self.data else f"[image: {name}, gone]"


Pictures = tuple[AttachedPicture, ...]


def check_picture(name: str, data: bytes) -> AttachedPicture:
    """Check the bytes of a picture and read its size. Raises UsageError on an unknown format or a bad size."""
    if not (kind := media_type(data)):
        raise UsageError(f"{name} is not a {NAMES} file", hint="save it in one of these formats")
    with _open_image(name, data) as image:
        width, height = image.size
    if problem := size_problem(width, height, kind):
        raise UsageError(f"{name} cannot be read: {problem}", hint=SIZE_HINT)
    return AttachedPicture(name, data, width, height, hashlib.sha256(data).hexdigest())


@contextmanager
def _open_image(name: str, data: bytes) -> Iterator[Opened]:
    """Open a picture. Turns any exception into UsageError, also in the `with` body: damaged files fail in any way."""
    from PIL import Image, UnidentifiedImageError  # imported only when there are pictures: it is slow

    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data), formats=FORMATS) as image:
            yield image
    except UnidentifiedImageError:
        raise UsageError(f"{name} cannot be read: it is damaged") from None
    except Image.DecompressionBombError:
        raise UsageError(f"{name} cannot be read: it has too many pixels", hint=SIZE_HINT) from None
    except Exception as problem:
        raise UsageError(f"{name} cannot be read: {problem or type(problem).__name__}") from None


def read_picture(path: Path) -> AttachedPicture:
    """Read and decode a picture file. Raises UsageError with its name."""
    try:
        with open(path, "rb", opener=_opener) as file:
            os.set_blocking(file.fileno(), True)
            data = file.read(MAX_PICTURE_BYTES + 1)
    except (OSError, ValueError) as problem:  # an impossible file name is a ValueError
        reason = problem.strerror if isinstance(problem, OSError) else problem
        hint = "download the picture, and give its path" if ADDRESS.match(str(path)) else ""
        raise UsageError(f"cannot read {path}: {reason}", hint=hint) from None
    if len(data) > MAX_PICTURE_BYTES:
        raise UsageError(f"{path.name} has more than {MAX_PICTURE_BYTES // 2**20} MiB", hint="make the picture smaller")
    picture = check_picture(path.name, data)
    with _open_image(path.name, data) as image:
        image.draft("L", (1, 1))  # decode a JPEG only as far as it takes to see that it is complete
        image.load()
    return picture


def _opener(path: str, flags: int) -> int:
    """Open without blocking, so that a named pipe without a writer does not block."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_pictures(paths: Iterable[str]) -> Pictures:
    """Read the pictures at these paths. Raises UsageError if one is unreadable or there are too many."""
    return join_pictures((), (read_picture(expand_path(_path(path))) for path in paths))


def join_pictures(attached: Pictures, more: Iterable[AttachedPicture]) -> Pictures:
    """Return both lists of pictures as one. Raises UsageError if they are too many for one question."""
    joined = (*attached, *more)
    if len(joined) > MAX_PICTURES:
        raise UsageError(f"{len(joined)} pictures are too many for one question", hint=f"at most {MAX_PICTURES}")
    return joined


# ---- paths
def parse_paths(text: str) -> tuple[Path, ...]:
    """Return the files that a text names: a path, one path a line, or several quoted as terminals paste dropped files.

    >>> parse_paths("'my cat.png' file:///tmp/a%20b.png my\\\\ dog.png")
    (PosixPath('my cat.png'), PosixPath('/tmp/a b.png'), PosixPath('my dog.png'))
    """
    whole = _path(text.strip())
    lines = tuple(_path(line.strip()) for line in text.strip().splitlines())
    if all(map(_is_file, lines)):
        return lines
    try:
        parts = tuple(map(_path, shlex.split(text)))
    except ValueError:  # an unclosed quote: most likely an apostrophe
        parts = ()
    return parts if any(map(_is_file, parts)) else (whole,)


def find_dropped_pictures(text: str) -> tuple[Path, ...]:
    """Return the picture files that a text names; empty if it contains anything else."""
    if not text.strip() or len(text) > MAX_PATHS_CHARS:
        return ()
    paths = parse_paths(text)
    return paths if all(map(_is_picture, paths)) else ()


def _path(text: str) -> Path:
    if text.startswith("file://"):
        _host, slash, rest = text.removeprefix("file://").partition("/")
        return Path(unquote(slash + rest))
    return Path(os.path.expanduser(text))


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # unlike Path.is_file, False for an impossible file name too


def _is_picture(path: Path) -> bool:
    if not _is_file(path):
        return False
    try:
        with path.open("rb") as file:
            return bool(media_type(file.read(BEGINNING_BYTES)))
    except OSError:
        return False


# ---- messages
def describe_question(text: str, pictures: Pictures) -> str:
    """Return a question as a transcript shows it: a label for each picture, then the text."""
    return "\n".join([*(picture.label for picture in pictures), text])


def make_message(question: str, pictures: Pictures, *, sees: bool = True) -> Message:
    """Return the user message of a question, pictures before the text.

    Missing pictures, and all of them if the model reads no images (sees=False), are replaced by their labels.
    """
    sent = tuple(picture for picture in pictures if picture.data and sees)
    labeled = tuple(picture for picture in pictures if picture not in sent)
    return Message("user", describe_question(question, labeled), images=tuple(Image(picture.data) for picture in sent))


# ---- picture store: pictures of saved conversations: one file each, named by its SHA-256, in a folder beside the
# conversations
#
# A picture is written once, however many conversations show it, and removed with the last of them. A missing or
# changed file is shown as gone; the conversation can still be read.
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
