"""Images in prompts and caches: rows that have no token, and the stand-in ids that represent them.

Prompts, caches and everything that compares them know token ids only. A row of an image has no id, so each of its
positions has a stand-in: a negative number derived from the image's content. Equal images have equal stand-ins, so that
a cache that holds an image is reused; no vocabulary contains them, and nothing can draft or sample one.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import Protocol

from eaglelocal.core.records import dataclass

LEAST, SPAN = -(2**30), 2**30 - 1  # stand-ins are LEAST - SPAN + 1 to LEAST: below those that a lookup uses


class ImageRows(Protocol):
    """An image, or a part of one, as it will lie in the cache."""

    @property
    def key(self) -> bytes:
        """The identity of the image: equal for equal images."""

    @property
    def num_rows(self) -> int:
        """The cells that it takes."""

    @property
    def num_positions(self) -> int:
        """The positions that it takes; with M-RoPE fewer than rows."""


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image in a prompt, at positions first..end-1."""

    first: int
    rows: ImageRows

    @property
    def end(self) -> int:
        return self.first + self.rows.num_positions

    @property
    def num_hidden(self) -> int:
        """The cells that it takes beyond one per position."""
        return self.rows.num_rows - self.rows.num_positions


def placeholder_ids(rows: ImageRows) -> tuple[int, ...]:
    """Return the stand-in id of each position of the image."""
    numbers = array("I", hashlib.shake_256(rows.key).digest(4 * rows.num_positions))
    return tuple(LEAST - number % SPAN for number in numbers)


# ---- image formats: picture formats by their first bytes, and the limits of a picture's size. Pure; decodes nothing
NAMES = "PNG, JPEG, GIF, WebP or BMP"
MAX_PICTURE_BYTES = 32 * 2**20
MAX_PICTURES = 64  # of a message
MAX_PIXELS = (
    40_000_000  # of a picture: 640 MB while a WebP is decoded, less for other formats; 8K screens have 33 million
)
MAX_JPEG_PIXELS = 80_000_000  # large ones are decoded at reduced size; phones take 12 or 50 million
MAX_REQUEST_PIXELS = 200_000_000  # of a request's pictures, and of an owner's decoded ones that wait for a slot
MAX_ASPECT = 100  # between the sides: thinner pictures show nothing, and scaling them may give unforeseen sizes
SIZE_HINT = "show a smaller copy, or a part of it"
_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
)


def media_type(data: bytes) -> str:
    """Return a media type such as `image/png`; empty if the format is not supported."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for beginning, kind in _BEGINNINGS if data.startswith(beginning)), "")


def size_problem(width: int, height: int, kind: str) -> str:
    """Return why a picture of this size and media type is refused; empty if it is not."""
    most = MAX_JPEG_PIXELS if kind == "image/jpeg" else MAX_PIXELS
    if width * height > most:
        return f"{width} x {height} are more than {most // 10**6} million pixels"
    if max(width, height) > MAX_ASPECT * min(width, height):
        return f"{width} x {height}: one side is more than {MAX_ASPECT} times the other"
    return ""


def name_image(index: int, count: int) -> str:
    """Return the name that errors use for the image with this index in a request."""
    return "the image" if count == 1 else f"image {index + 1} of {count}"
