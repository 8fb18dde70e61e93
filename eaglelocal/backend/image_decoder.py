"""Decodes untrusted picture files to pixels. Knows Pillow, no model.

Sizes are checked before anything is unpacked: a file of a few kilobytes may declare a gigabyte of pixels.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, NamedTuple

from eaglelocal.core.image_formats import MAX_PIXELS, NAMES, SIZE_HINT, size_problem
from eaglelocal.errors import RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
MAX_SIDE = 4096  # larger pictures are scaled down: no model uses more detail
MAX_SHOWN = 2048 * 2048  # pixels: 12 MB for each picture of a request


class Pixels(NamedTuple):
    """An RGB picture, row by row."""

    width: int
    height: int
    data: bytes


def pixels_of(data: bytes) -> Pixels:
    """Return the file's first picture, upright, on white where it is transparent. Raises RequestError."""
    from PIL import Image, ImageOps, UnidentifiedImageError  # imported with the first picture

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            if problem := size_problem(*opened.size):
                raise unreadable(problem, hint=SIZE_HINT)
            side = longest_side(*opened.size)
            opened.draft("RGB", (side, side))  # decodes a large JPEG at reduced size
            image = mixable(opened)
            image.thumbnail((side, side))
            image = opaque(ImageOps.exif_transpose(image))
    except UnidentifiedImageError:
        raise unreadable(f"it is damaged, or no {NAMES}") from None
    except Image.DecompressionBombError:
        raise unreadable(f"it has more than {MAX_PIXELS // 10**6} million pixels", hint=SIZE_HINT) from None
    except RequestError:
        raise
    except Exception as error:  # damaged files may raise anything
        raise unreadable(f"{error or type(error).__name__}"[:200]) from error
    return Pixels(image.width, image.height, image.tobytes())


def mixable(image: Image) -> Image:
    """Return the picture in a mode that can be averaged when scaled: palette indices and single bits cannot."""
    if image.mode not in ("1", "P"):
        return image
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def opaque(image: Image) -> Image:
    """Return the picture in RGB, on a white background."""
    from PIL import Image

    if image.mode.startswith("I;16"):  # 16-bit grey: Pillow would clip it at 255
        image = image.point(lambda grey: grey / 256).convert("L")
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")


def longest_side(width: int, height: int) -> int:
    """Return the limit of the longer side for a picture of these proportions."""
    return min(MAX_SIDE, math.isqrt(MAX_SHOWN * max(width, height) // min(width, height)))


def unreadable(reason: str, hint: str = "") -> RequestError:
    what = f"an image cannot be read: {reason}"
    return RequestError(what, hint=hint, parameter="messages", code="invalid_image")
