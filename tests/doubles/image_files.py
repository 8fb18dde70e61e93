"""Small pictures as the bytes of files."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

from PIL import Image


def image_bytes(kind: str = "PNG", size: tuple[int, int] = (4, 3), colour: str = "red") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, kind)
    return out.getvalue()


def write_image(path: Path, kind: str = "PNG", size: tuple[int, int] = (4, 3), colour: str = "red") -> Path:
    path.write_bytes(image_bytes(kind, size, colour))
    return path


def image_with_false_size(width: int, height: int) -> bytes:
    """Return a PNG of a few bytes that claims this size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [header, b"IDAT" + zlib.compress(b"\0" * 64), b"IEND"]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts
    )
