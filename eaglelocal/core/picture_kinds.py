"""Which kind of picture a file is, by its first bytes, and how large one may be. Pure; decodes nothing."""

from __future__ import annotations

NAMES = "PNG, JPEG, GIF, WebP or BMP"
MAX_PICTURE_BYTES = 32 * 2**20
MAX_PICTURES = 64  # of a message
MAX_PIXELS = 80_000_000  # 320 MB unpacked, twice where it is transparent; phones take 12 or 50 million
MAX_ASPECT = 100  # between the sides: what is thinner shows nothing, and nobody has reckoned with what it is scaled to
SIZE_HINT = "show a smaller copy, or a part of it"
_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
)


def media_type(data: bytes) -> str:
    """`image/png`; empty for what is none of ours."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for beginning, kind in _BEGINNINGS if data.startswith(beginning)), "")


def size_problem(width: int, height: int) -> str:
    """Why a picture of that many pixels is not unpacked; empty where it is."""
    if width * height > MAX_PIXELS:
        return f"{width} x {height} are more than {MAX_PIXELS // 10**6} million pixels"
    if max(width, height) > MAX_ASPECT * min(width, height):
        return f"{width} x {height}: one side is more than {MAX_ASPECT} times the other"
    return ""
