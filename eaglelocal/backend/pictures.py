"""The bytes of a picture file, which anyone may have sent -> its pixels. Knows Pillow, no model.

Bounded before anything is unpacked: a file of a few kilobytes may say that it is a gigabyte of pixels.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, NamedTuple

from eaglelocal.core.picture_kinds import MAX_PIXELS, NAMES, SIZE_HINT, size_problem
from eaglelocal.errors import RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
MAX_SIDE = 4096  # beyond these a picture is made smaller: no model looks closer
MAX_SHOWN = 2048 * 2048  # pixels: 12 MB, of each of a request's together


class Pixels(NamedTuple):
    """RGB, row by row."""

    width: int
    height: int
    data: bytes


def pixels_of(data: bytes) -> Pixels:
    """The first picture of the file, upright, on white where it is transparent. Raises RequestError."""
    from PIL import Image, ImageOps, UnidentifiedImageError  # not before somebody sends one

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            if problem := size_problem(*opened.size):
                raise unreadable(problem, hint=SIZE_HINT)
            side = longest_side(*opened.size)
            opened.draft("RGB", (side, side))  # of a large JPEG no more is unpacked than is wanted
            image = mixable(opened)
            image.thumbnail((side, side))
            image = opaque(ImageOps.exif_transpose(image))
    except UnidentifiedImageError:
        raise unreadable(f"it is damaged, or no {NAMES}") from None
    except Image.DecompressionBombError:
        raise unreadable(f"it has more than {MAX_PIXELS // 10**6} million pixels", hint=SIZE_HINT) from None
    except RequestError:
        raise
    except Exception as error:  # files that are cut or wrong fail in any way
        raise unreadable(f"{error or type(error).__name__}"[:200]) from error
    return Pixels(image.width, image.height, image.tobytes())


def mixable(image: Image) -> Image:
    """In a mode whose pixels have means: numbers of a palette have none, and lines of a text would be left out."""
    if image.mode not in ("1", "P"):
        return image
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def opaque(image: Image) -> Image:
    """In RGB."""
    from PIL import Image

    if image.mode.startswith("I;16"):  # greys of 16 bits: Pillow would cut them off at 255
        image = image.point(lambda grey: grey / 256).convert("L")
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")


def longest_side(width: int, height: int) -> int:
    """At most, as it is shown."""
    return min(MAX_SIDE, math.isqrt(MAX_SHOWN * max(width, height) // min(width, height)))


def unreadable(reason: str, hint: str = "") -> RequestError:
    what = f"an image cannot be read: {reason}"
    return RequestError(what, hint=hint, parameter="messages", code="invalid_image")
