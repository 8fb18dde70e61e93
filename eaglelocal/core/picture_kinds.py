"""Which kind of picture a file is, by its first bytes. Pure; whether it can be decoded is another question."""

from __future__ import annotations

NAMES = "PNG, JPEG, GIF, WebP or BMP"
MAX_PICTURE_BYTES = 32 * 2**20
MAX_PICTURES = 64  # of a message
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
