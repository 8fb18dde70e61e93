"""Image files that callers send, and files that are not images."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from doubles.image_files import deep_image, empty_webp, image_with_false_size
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from eaglelocal.backend import image_decoder
from eaglelocal.backend.image_decoder import (
    FORMATS,
    LIMITS,
    MAX_OUTPUT_PIXELS,
    MAX_SIDE,
    ImageDecoder,
    decode_pixels,
)
from eaglelocal.errors import RequestError, ResourceError

RED = (255, 0, 0)
NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 60, 3), np.uint8))


def file_of(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)  # type: ignore[arg-type]
    return file.getvalue()


def colours(data: bytes) -> np.ndarray:
    """[height, width, 3]"""
    pixels = decode_pixels(data)
    return np.frombuffer(pixels.data, np.uint8).reshape(pixels.height, pixels.width, 3)


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_is_read(kind: str) -> None:
    shown = colours(file_of(Image.new("RGB", (40, 30), RED), kind))
    assert shown.shape == (30, 40, 3)
    assert np.abs(shown.astype(int) - RED).max() < 6


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        (Image.new("L", (8, 8), 200), (200, 200, 200)),
        (Image.new("1", (8, 8), 1), (255, 255, 255)),
        (Image.new("P", (8, 8), 0), (0, 0, 0)),
        (Image.new("I;16", (8, 8), 0x8000), (128, 128, 128)),
        (Image.new("I;16", (3000, 2000), 0x8000), (128, 128, 128)),  # which is scaled down
        (Image.new("RGBA", (8, 8), (255, 0, 0, 0)), (255, 255, 255)),  # seen through: white paper
        (Image.new("RGBA", (8, 8), (255, 0, 0, 255)), RED),
        (Image.new("LA", (8, 8), (0, 0)), (255, 255, 255)),
    ],
)
def test_all_kinds_of_pixels_become_colours(image: Image.Image, wanted: tuple[int, int, int]) -> None:
    assert (colours(file_of(image)) == wanted).all()


def test_colours_of_print_become_those_of_a_screen() -> None:
    shown = colours(file_of(Image.new("CMYK", (16, 16), (0, 0, 0, 0)), "JPEG"))
    assert shown.min() > 250


def test_a_photograph_taken_sideways_stands_upright() -> None:
    image = Image.new("RGB", (40, 20), "blue")
    image.paste(RED, (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    shown = colours(file_of(image, "JPEG", exif=exif, quality=95))
    assert shown.shape == (40, 20, 3)
    assert shown[5, 10, 0] > 200 > 60 > shown[35, 10, 0]


def test_of_a_moving_picture_the_first_is_shown() -> None:
    frames = [Image.new("P", (8, 8), 0), Image.new("P", (8, 8), 1)]
    for frame in frames:
        frame.putpalette([255, 0, 0, 0, 0, 255])
    data = file_of(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert (colours(data) == RED).all()


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        ((MAX_SIDE + 1000, 100), (MAX_SIDE, round(100 * MAX_SIDE / (MAX_SIDE + 1000)))),
        ((3000, 3000), (2048, 2048)),  # 64 of a request are unpacked at once
        ((1500, 2500), (1500, 2500)),
        ((2500, 4000), (1619, 2590)),
    ],
)
def test_a_large_one_is_made_smaller(size: tuple[int, int], shown: tuple[int, int]) -> None:
    for kind in ("PNG", "JPEG"):
        pixels = decode_pixels(file_of(Image.new("L", size), kind))
        assert (pixels.width, pixels.height) == shown
        assert pixels.width * pixels.height <= MAX_OUTPUT_PIXELS


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA"])
def test_thin_lines_become_grey_where_it_is_made_smaller(mode: str) -> None:
    """Rather than be left out or kept whole, in whatever way the file has its colours."""
    lines = np.zeros((3000, 3000), np.uint8)
    lines[:, ::2] = 255
    shown = colours(file_of(Image.fromarray(lines).convert(mode)))
    assert shown.shape == (2048, 2048, 3)
    assert ((shown > 30) & (shown < 225)).mean() > 0.6


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "damaged, or no PNG"),
        (b"hello", "damaged, or no PNG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "damaged, or no PNG"),
        (b"II*\0" + bytes(100), "damaged, or no PNG"),  # TIFF, of which there are too many kinds
        (image_with_false_size(100_000, 100_000), "too many pixels"),
        (image_with_false_size(9_000, 9_000), "9000 x 9000 are more than 40 million pixels"),
        (image_with_false_size(1_000, 1_000), "cannot be read: image file is truncated"),  # and has them not
        (file_of(Image.new("RGB", (400, 3))), "more than 100 times"),
        (file_of(NOISE, "JPEG")[:-400], "cannot be read"),
    ],
)
def test_a_file_that_is_not_an_image_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words) as raised:
        decode_pixels(data)
    assert raised.value.code == "invalid_image"


@examples(300)
@given(st.data())
def test_damaged_files_are_refused_or_read(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(FORMATS))
    whole = bytearray(file_of(NOISE, kind))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        pixels = decode_pixels(bytes(whole[: data.draw(st.integers(1, len(whole)))]))
    except RequestError:
        return
    assert len(pixels.data) == 3 * pixels.width * pixels.height


# ---- in a process with limits
@pytest.fixture(scope="module")
def decoder() -> Iterator[ImageDecoder]:
    made = ImageDecoder()
    yield made
    made.close()


GOOD = file_of(Image.new("RGB", (40, 30), RED))
LARGE = image_with_false_size(6_000, 6_000)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([empty_webp(16_383, 4_800)], "the image cannot be read: 16383 x 4800 are more than 40 million pixels"),
        ([GOOD, empty_webp(16_383, 16_383)], "image 2 of 2 cannot be read: 16383 x 16383 are more than 40 million"),
        ([GOOD, image_with_false_size(30_000, 30_000), GOOD], "image 2 of 3 cannot be read: 30000 x 30000 are more"),
        ([GOOD, b"hello"], "image 2 of 2 cannot be read: it is damaged, or no PNG"),
        (
            [LARGE] * 5 + [image_with_false_size(5_000, 5_000)],
            "the images have 205 million pixels together, and at most 200 million are allowed in a request; "
            "image 5 of 6 has 6000 x 6000",
        ),
    ],
)
def test_too_many_pixels_are_refused_before_any_is_decoded(
    decoder: ImageDecoder, files: list[bytes], words: str
) -> None:
    with pytest.raises(RequestError, match=re.escape(words)) as raised:
        decoder.measure(files)
    assert (raised.value.code, raised.value.parameter) == ("invalid_image", "messages")


def test_what_is_allowed_is_decoded_elsewhere(decoder: ImageDecoder) -> None:
    assert decoder.measure([GOOD, LARGE]) == 40 * 30 + 6_000**2
    assert decoder.decode(GOOD, "it") == decode_pixels(GOOD)
    photo = file_of(NOISE.resize((9_000, 8_500)), "JPEG")  # more than other formats may have
    assert decoder.measure([photo]) == 9_000 * 8_500
    assert decoder.decode(photo, "it") == decode_pixels(photo)
    with pytest.raises(RequestError, match="image 3 of 5 cannot be read: image file is truncated"):
        decoder.decode(LARGE, "image 3 of 5")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cpu_s": 0.05}, "image 1 of 2 cannot be read: it ran for 0.05 s"),
        ({"memory_bytes": 64 * 2**20}, "image 1 of 2 cannot be read: it takes more than"),
    ],
)
def test_what_takes_too_long_or_too_much_is_refused_and_the_next_is_read(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, float], words: str
) -> None:
    """However often: a file must not keep those of others from being read."""
    monkeypatch.setattr(image_decoder, "LIMITS", replace(LIMITS, **changes))
    decoder = ImageDecoder()
    large = deep_image(6_000, 6_000)
    for _ in range(4):
        with pytest.raises(RequestError, match=words):
            decoder.decode(large, "image 1 of 2")
        assert decoder.decode(GOOD, "it").width == 40
    decoder.close()
    with pytest.raises(ResourceError, match="it was closed"):
        decoder.decode(GOOD, "it")


def test_an_image_waits_for_one_of_the_others_and_not_for_both() -> None:
    """Two are decoded at once, in two processes, of which the second starts when it is needed."""
    decoder = ImageDecoder()
    decoder.decode(GOOD, "it")
    decoder.decode(GOOD, "it")
    assert sum(process.pid is not None for process in decoder._processes) == 1
    with ThreadPoolExecutor(3) as threads:
        sizes = [found.width for found in threads.map(decoder.decode, [deep_image(2_000, 2_000)] * 3, "abc")]
    assert sizes == [2_000] * 3 and all(process.pid is not None for process in decoder._processes)
    decoder.close()
