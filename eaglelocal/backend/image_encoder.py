"""Encode images for a target: llama.cpp's libmtmd with the target's projector file.

A projector converts pixels to rows as wide as the target's embeddings, which the target then decodes like tokens.
libmtmd knows what each family needs around and between them (marker tokens, slices, rows at two-dimensional positions,
bidirectional attention), so it tokenizes prompts with images as a whole, as in llama-server. Its module is imported
with the first projector; a text model never loads the library.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import functools
import hashlib
import os
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from eaglelocal.backend.image_decoder import ImageDecoder, Pixels, image_error
from eaglelocal.backend.llama_library import CACHE_FULL, LlamaLibrary
from eaglelocal.backend.model import LlamaModel, device_array
from eaglelocal.core.batch import Floats
from eaglelocal.core.image import ImageRows
from eaglelocal.core.ports import TextPart
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import suggest_ctx
from eaglelocal.errors import EagleLocalError, IncompatibleError, LibraryError, ModelFileError, ResourceError

GREY = Pixels(64, 64, b"\x80" * 64 * 64 * 3)
BAD_IMAGE = 2  # returned by mtmd_tokenize for an image that it cannot prepare
DEBUG = 1  # ggml_log_level
HINT = "--mmproj none"


@dataclass(frozen=True, slots=True)
class ReaderParams:
    """Settings of an image reader.

    threads     of the encoder
    on_gpu      run the encoder on the GPU
    n_batch     most rows of one pass of the target
    max_tokens  of an image, see gguf/projector.py; None: llama.cpp's default
    device      the target's, the first of several; None: llama.cpp chooses
    row_end     for Pixtral: the embedding that ends each row of an image; see `replace_broken_rows`
    """

    threads: int
    on_gpu: bool
    n_batch: int
    max_tokens: int | None = None
    device: str | None = None
    row_end: Floats | None = None


class Bitmap:
    """A native copy of an image's pixels, with a name that identifies the file they come from."""

    def __init__(self, mtmd: ModuleType, pixels: Pixels, name: bytes) -> None:
        width, height, data = pixels
        self.handle = mtmd.mtmd_bitmap_init(width, height, C.cast(C.c_char_p(data), C.POINTER(C.c_uint8)))
        weakref.finalize(self, mtmd.mtmd_bitmap_free, self.handle)
        mtmd.mtmd_bitmap_set_id(self.handle, name)


class LlamaImageReader:
    """A target's image reader over libmtmd. Implements core.ports.ImageReader; must be closed before its model.

    Raises ModelFileError for a file that cannot be loaded, IncompatibleError for another model's projector.
    """

    def __init__(self, library: LlamaLibrary, model: LlamaModel, projector: Path, params: ReaderParams) -> None:
        self._decoder = ImageDecoder()
        self._mtmd, self._params, self._vocabulary = load_mtmd(library), params, model.vocabulary
        self._width: int = library.api.llama_model_n_embd_inp(model.handle)
        native = self._mtmd.mtmd_context_params_default()
        native.use_gpu, native.n_threads = params.on_gpu, params.threads
        native.print_timings = False
        native.warmup = True  # allocate memory now, not in the middle of an answer
        if params.device is not None and params.on_gpu:
            native.device = device_array(library, params.device)[0]
        if params.max_tokens is not None:
            native.image_max_tokens = params.max_tokens
        library.log.begin()
        self._handle = self._mtmd.mtmd_init_from_file(os.fsencode(projector), model.handle, native)
        if not self._handle:
            raise ModelFileError(f"llama.cpp cannot load the projector {projector}: {library.log.reason()}", hint=HINT)
        try:
            if problem := self._problem():
                raise IncompatibleError(f"the projector {projector} {problem}", hint=HINT)
        except EagleLocalError:  # free its memory: the caller may go on without images
            self.close()
            raise
        self._decoder.start()

    def _problem(self) -> str:
        """Return why the projector is unsuitable, or "". A projector of equal width loads with any model."""
        if not self._mtmd.mtmd_support_vision(self._handle):
            return "does not read images"
        marks = [piece for piece in self._tokenize([Bitmap(self._mtmd, GREY, b"grey")]) if isinstance(piece, int)]
        is_foreign = any(mark < 0 for mark in marks)
        return "is another model's: it puts tokens around an image that the target does not have" if is_foreign else ""

    def measure(self, files: Sequence[bytes]) -> int:
        return self._decoder.measure(files)

    def read(self, file: bytes, name: str) -> Bitmap:
        return Bitmap(self._mtmd, self._decoder.decode(file, name), hashlib.sha256(file).hexdigest().encode())

    def stop(self) -> None:
        self._decoder.close()

    def tokenize(self, parts: Sequence[TextPart | object], *, add_special: bool) -> list[int | ImageRows]:
        """Tokenize a prompt with images, as libmtmd does, which may be called from any thread."""
        return self._tokenize([piece for part in parts for piece in self._split(part)], add_special)

    def _split(self, part: TextPart | object) -> Iterator[TextPart | Bitmap]:
        """Yield an image as it is, and a text in the parts that its vocabulary splits it into."""
        if isinstance(part, Bitmap):
            yield part
            return
        assert isinstance(part, TextPart)
        text, parse_special = part
        yield from (TextPart(one, parse_special) for one in self._vocabulary.parts(text, parse_special=parse_special))

    def _tokenize(self, parts: Sequence[TextPart | Bitmap], add_special: bool = False) -> list[int | ImageRows]:
        mtmd, native = self._mtmd, make_native_parts(self._mtmd, parts)
        with contextlib.ExitStack() as owned:
            chunks = mtmd.mtmd_input_chunks_init()
            owned.callback(mtmd.mtmd_input_chunks_free, chunks)
            code = mtmd.mtmd_tokenize_from_parts(self._handle, chunks, native, len(native), add_special)
            if code:
                what = "llama.cpp cannot prepare it for this model" if code == BAD_IMAGE else f"code {code}"
                raise image_error("an image", what)
            return list(self._pieces(chunks))

    def _pieces(self, chunks: object) -> Iterator[int | ImageRows]:
        mtmd, num_parts = self._mtmd, Counter[bytes]()
        for index in range(mtmd.mtmd_input_chunks_size(chunks)):
            chunk = mtmd.mtmd_input_chunks_get(chunks, index)
            if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
                count = C.c_size_t()
                tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, C.byref(count))
                yield from tokens[: count.value]
                continue
            name: bytes = mtmd.mtmd_input_chunk_get_id(chunk)
            yield self._image(chunk, b"%b/%d" % (name, num_parts[name]))
            num_parts[name] += 1

    def _image(self, chunk: object, key: bytes) -> ImageChunk:
        """Return a copy of the chunk, which outlives the prompt's chunks.

        Raises RequestError if it cannot fit a pass.
        """
        mtmd, most = self._mtmd, self._params.n_batch
        image = ImageChunk(self, mtmd, mtmd.mtmd_input_chunk_copy(chunk), key)
        if image.num_rows > most and mtmd.mtmd_decode_use_non_causal(self._handle, chunk):
            reason = f"it takes {image.num_rows} rows of one pass, and a pass of this engine has {most}"
            raise image_error("an image", reason, hint="use a smaller image")
        return image

    def decode(self, image: object, num_rows: int, target: tuple[object, int, int, int]) -> None:
        """Encode a chunk and decode its rows in the target: its llama_context, sequence, position, most rows of a pass.

        Raises ResourceError.
        """
        mtmd, (context, sequence, position, n_batch) = self._mtmd, target
        if mtmd.mtmd_encode_chunk(self._handle, image):
            raise ResourceError("an image could not be encoded", hint="use a smaller image")
        rows, end = mtmd.mtmd_get_output_embd(self._handle), C.c_int32()
        replace_broken_rows(np.ctypeslib.as_array(rows, (num_rows, self._width)), self._params.row_end)
        arguments = (rows, position, sequence, n_batch, C.byref(end), mtmd.mtmd_helper_post_decode_callback(), None)
        if code := mtmd.mtmd_helper_decode_image_chunk(self._handle, context, image, *arguments):
            if code != CACHE_FULL:
                raise ResourceError(f"an image of {num_rows} rows could not be decoded: llama.cpp returned {code}")
            message = f"the cache is full: the {num_rows} rows of an image do not fit behind {position}"
            raise ResourceError(message, hint=suggest_ctx(position + num_rows))

    def close(self) -> None:
        self.stop()
        if self._handle:
            self._mtmd.mtmd_free(self._handle)
            self._handle = None


class ImageChunk:
    """An image, or a slice of one, prepared for the projector. Owns its pixels. Implements core.image.ImageRows."""

    def __init__(self, reader: LlamaImageReader, mtmd: ModuleType, handle: object, key: bytes) -> None:
        self._reader, self._handle = reader, handle
        weakref.finalize(self, mtmd.mtmd_input_chunk_free, handle)
        self.num_rows: int = mtmd.mtmd_input_chunk_get_n_tokens(handle)
        self.num_positions: int = mtmd.mtmd_input_chunk_get_n_pos(handle)
        self.key = b"%b/%d" % (key, self.num_rows)

    def decode(self, context: object, sequence: int, position: int, n_batch: int) -> None:
        """Decode the image into a llama_context. Raises ResourceError."""
        self._reader.decode(self._handle, self.num_rows, (context, sequence, position, n_batch))


def replace_broken_rows(rows: Floats, row_end: Floats | None) -> None:
    """Replace rows [width] that are not finite, in place. Raises ResourceError if there is no `row_end` to put there.

    Each of Pixtral's rows of an image ends with a token that llama.cpp (models/pixtral.cpp) adds to memory that it
    multiplies by zero instead of clearing it. Values that are not finite there stay so until the projector is unloaded.
    """
    broken = ~np.isfinite(rows).all(axis=1)
    if broken.any():
        if row_end is None:
            raise ResourceError("the projector produced NaN or infinite values for an image", hint=HINT)
        rows[broken] = row_end


def make_native_parts(mtmd: ModuleType, parts: Iterable[TextPart | Bitmap]) -> C.Array[Any]:
    """Return an array of pointers to mtmd_input_part; the images must outlive it."""
    natives = []
    for part in parts:
        native = mtmd.mtmd_input_part()
        if isinstance(part, Bitmap):
            native.bitmap = part.handle
        else:
            text = part.text.encode("utf-8", "replace")
            native.text = C.pointer(mtmd.mtmd_input_text(text, len(text), False, part.parse_special))
        natives.append(native)
    array: C.Array[Any] = (C.POINTER(mtmd.mtmd_input_part) * len(natives))(*map(C.pointer, natives))
    return array


def load_mtmd(library: LlamaLibrary) -> ModuleType:
    """Return libmtmd's module, logging as llama.cpp does. Raises LibraryError if images cannot be read with it."""
    if find_spec("PIL") is None:
        raise LibraryError("Pillow, which reads images, is not installed", hint="`pip install pillow`")
    try:
        from llama_cpp import mtmd_cpp
    except (ImportError, OSError, RuntimeError, AttributeError) as error:  # built without libmtmd, or another build
        raise LibraryError(f"this llama.cpp was built without images: {error}", hint="`--mmproj none`") from None
    mtmd_cpp.mtmd_helper_log_set(quiet_log(library), C.c_void_p(0))
    return mtmd_cpp


@functools.cache  # llama.cpp holds only its address
def quiet_log(library: LlamaLibrary) -> Any:
    """Return a log callback without debug messages, which contain users' texts."""

    def write(level: int, text: bytes, user_data: object) -> None:
        if level != DEBUG:
            library.log_callback(level, text, user_data)

    return library.api.llama_log_callback(write)
