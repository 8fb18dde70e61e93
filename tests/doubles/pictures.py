"""Small pictures as files have them."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image


def picture_bytes(kind: str = "PNG", size: tuple[int, int] = (4, 3), colour: str = "red") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, kind)
    return out.getvalue()


def write_picture(path: Path, kind: str = "PNG", size: tuple[int, int] = (4, 3), colour: str = "red") -> Path:
    path.write_bytes(picture_bytes(kind, size, colour))
    return path
