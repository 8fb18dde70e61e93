"""Decode untrusted image files to pixels. Knows Pillow, and no model.

Sizes are checked before anything is decoded: a file of a few kilobytes may declare a gigabyte of pixels.
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
MAX_SIDE = 4096  # larger images are scaled down: no model uses more detail
MAX_OUTPUT_PIXELS = 2048 * 2048  # pixels: 12 MB for each image of a request


class Pixels(NamedTuple):
    """An RGB image, row by row."""

    width: int
    height: int
    data: bytes


def decode_pixels(data: bytes) -> Pixels:
    """Return the file's first image, upright, on white where it is transparent. Raises RequestError."""
    from PIL import Image, ImageOps, UnidentifiedImageError  # imported with the first image

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            if problem := size_problem(*opened.size):
                raise image_error(problem, hint=SIZE_HINT)
            side = longest_side(*opened.size)
            opened.draft("RGB", (side, side))  # decodes a large JPEG at reduced size
            image = to_blendable_mode(opened)
            image.thumbnail((side, side))
            image = to_opaque_rgb(ImageOps.exif_transpose(image))
    except UnidentifiedImageError:
        raise image_error(f"it is damaged, or no {NAMES}") from None
    except Image.DecompressionBombError:
        raise image_error(f"it has more than {MAX_PIXELS // 10**6} million pixels", hint=SIZE_HINT) from None
    except RequestError:
        raise
    except Exception as error:  # damaged files may raise anything
        raise image_error(f"{error or type(error).__name__}"[:200]) from error
    return Pixels(image.width, image.height, image.tobytes())


def to_blendable_mode(image: Image) -> Image:
    """Return the image in a mode that can be scaled: palette indices and single bits cannot be averaged."""
    if image.mode not in ("1", "P"):
        return image
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def to_opaque_rgb(image: Image) -> Image:
    """Return the image in RGB, on a white background."""
    from PIL import Image

    if image.mode.startswith("I;16"):  # 16-bit grey: Pillow would clip it at 255
        image = image.point(lambda grey: grey / 256).convert("L")
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")


def longest_side(width: int, height: int) -> int:
    """Return the limit of the longer side for an image of these proportions."""
    return min(MAX_SIDE, math.isqrt(MAX_OUTPUT_PIXELS * max(width, height) // min(width, height)))


def image_error(reason: str, hint: str = "") -> RequestError:
    message = f"an image cannot be read: {reason}"
    return RequestError(message, hint=hint, parameter="messages", code="invalid_image")
