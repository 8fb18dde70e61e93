"""Picture formats by their first bytes, and the limits of a picture's size. Pure; decodes nothing."""

from __future__ import annotations

NAMES = "PNG, JPEG, GIF, WebP or BMP"
MAX_PICTURE_BYTES = 32 * 2**20
MAX_PICTURES = 64  # of a message
MAX_PIXELS = 80_000_000  # 320 MB unpacked, twice that with transparency; phones take 12 or 50 million
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


def size_problem(width: int, height: int) -> str:
    """Return why a picture of this many pixels is refused; empty if it is not."""
    if width * height > MAX_PIXELS:
        return f"{width} x {height} are more than {MAX_PIXELS // 10**6} million pixels"
    if max(width, height) > MAX_ASPECT * min(width, height):
        return f"{width} x {height}: one side is more than {MAX_ASPECT} times the other"
    return ""
