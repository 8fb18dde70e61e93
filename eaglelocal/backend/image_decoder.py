"""Decode untrusted image files to pixels, in processes with limits. Knows Pillow, and no model.

Sizes are checked before anything is decoded: a file of a few bytes may declare a gigabyte of pixels. The processes
run `open_decoder`; a file on which one takes too long, or dies, is refused like a damaged one.
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from queue import LifoQueue
from typing import TYPE_CHECKING, NamedTuple, cast

from eaglelocal.core.image import MAX_REQUEST_PIXELS, NAMES, SIZE_HINT, media_type, name_image, size_problem
from eaglelocal.errors import RequestError, ResourceError
from eaglelocal.processes.limited_process import CannotStart, LimitedProcess, LimitedProcessError, ProcessLimits

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
MAX_SIDE = 4096  # larger images are scaled down: no model uses more detail
MAX_OUTPUT_PIXELS = 2048 * 2048  # pixels: 12 MB for each image of a request
OPENER = f"{__name__}:open_decoder"
# The largest image of the most expensive format takes 2 s and 640 MB; `wall_s` is for a machine that answers by all its
# cores meanwhile. However many processes die, the images of other owners never wait for `rest_s`.
LIMITS = ProcessLimits(cpu_s=10.0, memory_bytes=768 * 2**20, wall_s=600.0, max_reply_bytes=16 * 2**20, max_deaths=2**31)
NUM_PROCESSES = 2  # the second one starts when two files are decoded at once
SIZE = struct.Struct("<II")
INVALID = "invalid_image"


class Pixels(NamedTuple):
    """An RGB image, row by row."""

    width: int
    height: int
    data: bytes


class ImageDecoder:
    """Processes that decode images, as many at once. Safe from any thread."""

    def __init__(self) -> None:
        self._processes = [LimitedProcess(OPENER, limits=LIMITS) for _ in range(NUM_PROCESSES)]
        self._free = LifoQueue[LimitedProcess]()  # so that a single process serves while one is enough
        for process in self._processes:
            self._free.put(process)

    def start(self) -> None:
        """Start the process that decodes the first file, in the background."""
        self._processes[-1].start()

    def measure(self, files: Sequence[bytes]) -> int:
        """Return the pixels that the headers of a request's files declare. Raises RequestError, ResourceError."""
        return cast(int, self._call(name_image(0, len(files)), tuple(files)))

    def decode(self, file: bytes, name: str) -> Pixels:
        """Return the pixels of the file that errors call `name`. Raises RequestError, ResourceError."""
        reply = cast(bytes, self._call(name, file, name))
        width, height = SIZE.unpack_from(reply)
        return Pixels(width, height, reply[SIZE.size :])

    def close(self) -> None:
        """End the processes, even while they decode."""
        for process in self._processes:
            process.close()

    def _call(self, name: str, *args: object) -> object:
        process = self._free.get()
        try:
            return process.call(*args)
        except CannotStart as error:
            raise ResourceError(f"{name} cannot be read: {error}") from error
        except LimitedProcessError as error:
            raise image_error(name, f"{error}", hint=SIZE_HINT) from error
        finally:
            self._free.put(process)


def open_decoder() -> Callable[..., object]:
    """Return the function of a process: it measures a tuple of files, or decodes one file, called by a name."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # Pillow checks before us, and its error lacks the size

    def serve(given: tuple[bytes, ...] | bytes, name: str = "") -> int | bytes:
        if isinstance(given, tuple):
            return measure_files(given)
        width, height, data = decode_pixels(given, name)
        return SIZE.pack(width, height) + data

    return serve


def measure_files(files: Sequence[bytes]) -> int:
    """Return the sum of the pixels that files declare. Raises RequestError if one is too large, or all together."""
    total, largest = 0, (0, "")
    for i, file in enumerate(files):
        with open_image(file, name := name_image(i, len(files))) as image:
            num_pixels = image.width * image.height
            largest = max(largest, (num_pixels, f"{name} has {image.width} x {image.height}"))
        total += num_pixels
    if total > MAX_REQUEST_PIXELS:
        most = f"at most {MAX_REQUEST_PIXELS // 10**6} million are allowed in a request"
        what = f"the images have {total // 10**6} million pixels together, and {most}; {largest[1]}"
        raise RequestError(what, hint="send fewer images, or smaller copies", parameter="messages", code=INVALID)
    return total


def decode_pixels(data: bytes, name: str = "the image") -> Pixels:
    """Return the file's first image, upright, on white where it is transparent. Raises RequestError."""
    from PIL import ImageOps

    with open_image(data, name) as opened:
        side = longest_side(*opened.size)
        scale = side / max(opened.size)
        opened.draft("RGB", (int(opened.width * scale), int(opened.height * scale)))  # a large JPEG, at reduced size
        image = to_blendable_mode(opened)
        image.thumbnail((side, side))
        image = to_opaque_rgb(ImageOps.exif_transpose(image))
    return Pixels(image.width, image.height, image.tobytes())


@contextlib.contextmanager
def open_image(data: bytes, name: str) -> Iterator[Image]:
    """Open a file and check its size. Raises RequestError, also for what fails in the `with` block."""
    from PIL import Image, UnidentifiedImageError

    kind = media_type(data)
    try:
        if kind == "image/webp":
            check_size(webp_size(data), kind, name)  # libwebp allocates all pixels when a file is opened
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            check_size(opened.size, kind, name)
            yield opened
    except UnidentifiedImageError:
        raise image_error(name, f"it is damaged, or no {NAMES}") from None
    except Image.DecompressionBombError:
        raise image_error(name, "it has too many pixels", hint=SIZE_HINT) from None
    except MemoryError:
        raise image_error(name, f"it takes more than {LIMITS.memory_bytes // 2**20} MiB", hint=SIZE_HINT) from None
    except RequestError:
        raise
    except Exception as error:  # damaged files may raise anything
        raise image_error(name, f"{error or type(error).__name__}"[:200]) from error


def check_size(size: tuple[int, int], kind: str, name: str) -> None:
    if problem := size_problem(*size, kind):
        raise image_error(name, problem, hint=SIZE_HINT)


def webp_size(data: bytes) -> tuple[int, int]:
    """Return the size in a WebP file's header (RFC 9649); (1, 1) if there is none: opening the file then reports it."""
    head = data[:30].ljust(30, b"\0")
    match head[12:16]:
        case b"VP8X":
            return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            return tuple(int.from_bytes(head[i : i + 2], "little") & 0x3FFF or 1 for i in (26, 28))  # type: ignore[return-value]
    return 1, 1


def to_blendable_mode(image: Image) -> Image:
    """Return the image in a mode that can be scaled: palette indices, bits and 16-bit grey cannot be averaged."""
    if image.mode.startswith("I;16"):
        return image.point(lambda grey: grey / 256).convert("L")  # else Pillow would clip it at 255
    if image.mode not in ("1", "P"):
        return image
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def to_opaque_rgb(image: Image) -> Image:
    """Return the image in RGB, on a white background."""
    from PIL import Image

    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")


def longest_side(width: int, height: int) -> int:
    """Return the limit of the longer side for an image of these proportions."""
    return min(MAX_SIDE, math.isqrt(MAX_OUTPUT_PIXELS * max(width, height) // min(width, height)))


def image_error(name: str, reason: str, hint: str = "") -> RequestError:
    return RequestError(f"{name} cannot be read: {reason}", hint=hint, parameter="messages", code=INVALID)
