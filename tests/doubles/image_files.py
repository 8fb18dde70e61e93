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
    return png_of(header, b"IDAT" + zlib.compress(b"\0" * 64), b"IEND")


def png_of(*parts: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts
    )


def deep_image(width: int, height: int) -> bytes:
    """Return a small PNG of 16 bits a colour with transparency: the most work for its size."""
    row = b"\0" + bytes(8 * width)
    squeeze = zlib.compressobj(9)
    data = b"".join(squeeze.compress(row) for _ in range(height)) + squeeze.flush()
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 16, 6, 0, 0, 0)
    return png_of(header, b"IDAT" + data, b"IEND")


def empty_webp(width: int, height: int) -> bytes:
    """Return a WebP of 34 bytes, which decodes to this many pixels of one colour."""
    bits = b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little") + b"\x07\x10\x11\x11\x88\x88\x08\x00"
    chunk = b"VP8L" + len(bits).to_bytes(4, "little") + bits + b"\0" * (len(bits) % 2)
    return b"RIFF" + (4 + len(chunk)).to_bytes(4, "little") + b"WEBP" + chunk
