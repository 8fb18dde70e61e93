"""Images for a target: llama.cpp's libmtmd over the projector file that belongs to it.

A projector reads pixels and gives rows as wide as the target's embeddings, which the target then decodes as it does
tokens. libmtmd knows what each family wants around and between them (marker tokens, slices, rows at two-dimensional
positions, attention in both directions), so prompts with images are tokenized by it as a whole, as llama-server does.
Its module is imported with the first projector; a text model never loads the library.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import hashlib
import os
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from eaglelocal.backend.library import NO_ROOM, Library
from eaglelocal.backend.model import Model, device_array
from eaglelocal.backend.pictures import pixels_of, unreadable
from eaglelocal.core.image import ImageRows
from eaglelocal.core.ports import TextPart
from eaglelocal.errors import LibraryError, ModelFileError, ResourceError

BAD_IMAGE = 2  # what mtmd_tokenize gives when it cannot prepare one


@dataclass(frozen=True, slots=True)
class ReaderParams:
    """threads     of the encoder
    on_gpu      it is computed there
    n_batch     rows that one pass of the target takes
    max_tokens  of an image, see gguf/image_limits.py; None: as llama.cpp has it
    device      the target's, of several the first; None: llama.cpp chooses
    """

    threads: int
    on_gpu: bool
    n_batch: int
    max_tokens: int | None = None
    device: str | None = None


class LlamaImageReader:
    """Implements core.ports.ImageReader. To be closed before its model."""

    def __init__(self, library: Library, model: Model, projector: Path, params: ReaderParams) -> None:
        self._mtmd, self._params = load_mtmd(library), params
        native = self._mtmd.mtmd_context_params_default()
        native.use_gpu, native.n_threads = params.on_gpu, params.threads
        native.print_timings = False
        native.warmup = True  # takes its memory now, not in the middle of an answer
        if params.device is not None and params.on_gpu:
            native.device = device_array(library, params.device)[0]
        if params.max_tokens is not None:
            native.image_max_tokens = params.max_tokens
        library.log.begin()
        self._handle = self._mtmd.mtmd_init_from_file(os.fsencode(projector), model.handle, native)
        if not self._handle:
            raise ModelFileError(
                f"llama.cpp cannot load the projector {projector}: {library.log.reason()}",
                hint="the projector of this very model, or `--mmproj none`",
            )
        if not self._mtmd.mtmd_support_vision(self._handle):
            self.close()
            raise ModelFileError(f"the projector {projector} reads no images", hint="`--mmproj none`")

    def tokenize(self, parts: Sequence[TextPart | bytes], *, add_special: bool) -> list[int | ImageRows]:
        mtmd = self._mtmd
        with native_parts(mtmd, parts) as native, contextlib.ExitStack() as owned:
            chunks = mtmd.mtmd_input_chunks_init()
            owned.callback(mtmd.mtmd_input_chunks_free, chunks)
            code = mtmd.mtmd_tokenize_from_parts(self._handle, chunks, native, len(native), add_special)
            if code:
                raise unreadable("llama.cpp cannot prepare it for this model" if code == BAD_IMAGE else f"code {code}")
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
        """A copy, which outlives the prompt's chunks."""
        mtmd = self._mtmd
        is_whole = bool(mtmd.mtmd_decode_use_non_causal(self._handle, chunk))
        image = ImageChunk(mtmd, self._handle, mtmd.mtmd_input_chunk_copy(chunk), key)
        if is_whole and image.num_rows > self._params.n_batch:
            what = f"it takes {image.num_rows} rows of one pass, and a pass of this engine has {self._params.n_batch}"
            raise unreadable(what, hint="a smaller image")
        return image

    def close(self) -> None:
        if self._handle:
            self._mtmd.mtmd_free(self._handle)
            self._handle = None


class ImageChunk:
    """Implements core.image.ImageRows: an image, or a slice of one, made ready for the projector. Owns its pixels."""

    def __init__(self, mtmd: ModuleType, reader: object, handle: object, key: bytes) -> None:
        self._mtmd, self._reader, self._handle = mtmd, reader, handle
        weakref.finalize(self, mtmd.mtmd_input_chunk_free, handle)
        self.num_rows: int = mtmd.mtmd_input_chunk_get_n_tokens(handle)
        self.num_positions: int = mtmd.mtmd_input_chunk_get_n_pos(handle)
        self.key = b"%b/%d" % (key, self.num_rows)

    def decode(self, context: object, sequence: int, position: int, n_batch: int) -> None:
        """Let the projector read it, and a llama_context take what that says. Raises ResourceError."""
        mtmd = self._mtmd
        if mtmd.mtmd_encode_chunk(self._reader, self._handle):
            raise ResourceError("an image could not be encoded", hint="a smaller image")
        rows, end = mtmd.mtmd_get_output_embd(self._reader), C.c_int32()
        none = mtmd.mtmd_helper_post_decode_callback()
        target = (context, self._handle, rows, position, sequence, n_batch, C.byref(end), none, None)
        if code := mtmd.mtmd_helper_decode_image_chunk(self._reader, *target):
            raise failure(code, self.num_rows)


@contextlib.contextmanager
def native_parts(mtmd: ModuleType, parts: Sequence[TextPart | bytes]) -> Iterator[C.Array[Any]]:
    """An array of pointers to mtmd_input_part. Raises RequestError."""
    kept: list[object] = []
    with contextlib.ExitStack() as owned:
        natives = []
        for part in parts:
            native = mtmd.mtmd_input_part()
            if isinstance(part, bytes):
                native.bitmap = bitmap_of(mtmd, part)
                owned.callback(mtmd.mtmd_bitmap_free, native.bitmap)
            else:
                raw = part.text.encode("utf-8", "replace")
                text = mtmd.mtmd_input_text(raw, len(raw), False, part.parse_special)
                native.text = C.pointer(text)
                kept += [raw, text]
            natives.append(native)
        yield (C.POINTER(mtmd.mtmd_input_part) * len(natives))(*map(C.pointer, natives))


def bitmap_of(mtmd: ModuleType, data: bytes) -> object:
    """A picture file for libmtmd, which copies the pixels. Raises RequestError."""
    pixels = pixels_of(data)
    copied = (C.c_uint8 * len(pixels.data)).from_buffer_copy(pixels.data)
    bitmap = mtmd.mtmd_bitmap_init(pixels.width, pixels.height, copied)
    mtmd.mtmd_bitmap_set_id(bitmap, hashlib.sha256(data).hexdigest().encode())
    return bitmap


def failure(code: int, num_rows: int) -> ResourceError:
    if code == NO_ROOM:
        return ResourceError(f"no room in the cache for the {num_rows} rows of an image", hint="a larger --ctx")
    return ResourceError(f"an image of {num_rows} rows could not be decoded: llama.cpp says {code}")


def load_mtmd(library: Library) -> ModuleType:
    """Its log goes where llama.cpp's does."""
    try:
        from llama_cpp import mtmd_cpp
    except (ImportError, OSError, RuntimeError, AttributeError) as error:  # built without it, or another build
        raise LibraryError(f"this llama.cpp was built without images: {error}", hint="`--mmproj none`") from None
    mtmd_cpp.mtmd_helper_log_set(library.log_callback, C.c_void_p(0))
    return mtmd_cpp
