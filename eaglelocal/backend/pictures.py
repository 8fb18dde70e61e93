"""The bytes of a picture file, which anyone may have sent -> its pixels. Knows Pillow, no model.

Bounded before anything is unpacked: a file of a few kilobytes may say that it is a gigabyte of pixels.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, NamedTuple

from eaglelocal.errors import RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
MAX_PIXELS = 80_000_000  # 320 MB unpacked, twice where it is transparent; phones take 12 or 50 million
MAX_SIDE = 4096  # beyond these a picture is made smaller: no model looks closer
MAX_SHOWN = 2048 * 2048  # pixels: 12 MB, of each of a request's together
MAX_ASPECT = 100  # between the sides: what is thinner shows nothing, and nobody has reckoned with what it is scaled to


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
            check_size(*opened.size)
            side = longest_side(*opened.size)
            opened.draft("RGB", (side, side))  # of a large JPEG no more is unpacked than is wanted
            image = mixable(opened)
            image.thumbnail((side, side))
            image = opaque(ImageOps.exif_transpose(image))
    except UnidentifiedImageError:
        raise unreadable(f"it is none of {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError:
        raise too_many_pixels("its sides") from None
    except RequestError:
        raise
    except Exception as error:  # files that are cut or wrong fail in any way
        raise unreadable(f"{type(error).__name__}: {error}"[:200]) from error
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


def check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise too_many_pixels(f"{width} x {height}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise unreadable(f"{width} x {height}: one side is more than {MAX_ASPECT} times the other", hint="a part of it")


def longest_side(width: int, height: int) -> int:
    """At most, as it is shown."""
    return min(MAX_SIDE, math.isqrt(MAX_SHOWN * max(width, height) // min(width, height)))


def too_many_pixels(size: str) -> RequestError:
    return unreadable(f"{size} are more than {MAX_PIXELS // 10**6} million pixels", hint="a smaller one")


def unreadable(reason: str, hint: str = "") -> RequestError:
    what = f"an image cannot be read: {reason}"
    return RequestError(what, hint=hint, parameter="messages", code="invalid_image")
