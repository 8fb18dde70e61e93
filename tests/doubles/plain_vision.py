"""Answers about pictures by direct calls of llama.cpp and libmtmd: one conversation, one token at a time.

Independent of our backend on purpose: the engine's answers about a picture are compared with those of this file.
Pictures are read by libmtmd's own reader (stb_image), which is exact for PNG and BMP; the pixels of a JPEG may differ
from those of another reader.
"""

from __future__ import annotations

import ctypes as C
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import llama_cpp as L
import numpy as np
from llama_cpp import mtmd_cpp as M
from PIL import Image

MARKER = M.mtmd_default_marker().decode()
N_CTX, N_BATCH = 1024, 512


@dataclass(frozen=True)
class Answer:
    """A greedy answer of `n` tokens, or up to and including one that ends it."""

    tokens: list[int]
    logits: np.ndarray  # [tokens, vocab]: each token was drawn from its row
    num_tokens: int  # of the prompt, rows of pictures included
    num_positions: int  # of the prompt: fewer, where pictures take M-RoPE positions


def reference_answer(target: Path, projector: Path, text: str, images: Sequence[bytes], n: int) -> Answer:
    """Return the answer to a whole prompt, templates applied, with MARKER in place of each of the files `images`."""
    with loaded(target, projector) as (context, eyes):
        chunks = chunks_of(eyes, text, images)
        assert chunks, "libmtmd refuses the prompt or a picture"
        num_tokens, num_positions = M.mtmd_helper_get_n_tokens(chunks), M.mtmd_helper_get_n_pos(chunks)
        end = C.c_int32(0)
        assert M.mtmd_helper_eval_chunks(eyes, context, chunks, 0, 0, N_BATCH, True, C.byref(end)) == 0
        M.mtmd_input_chunks_free(chunks)
        assert end.value == num_positions
        tokens, logits = greedy(context, end.value, n)
        return Answer(tokens, logits, num_tokens, num_positions)


@contextmanager
def loaded(target: Path, projector: Path) -> Iterator[tuple[int, int]]:
    """Yield (llama_context, mtmd_context) with default parameters, on one thread of the CPU."""
    loading = L.llama_model_default_params()
    loading.use_extra_bufts = False  # AMX kernels trap on virtual machines that announce AMX without having it
    loading.n_gpu_layers = 0
    model = L.llama_model_load_from_file(str(target).encode(), loading)
    assert model, f"llama.cpp refuses {target}"
    params = L.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = N_CTX, N_BATCH, N_BATCH
    params.n_threads = params.n_threads_batch = 1
    context = L.llama_init_from_model(model, params)
    assert context, f"no context for {target}"
    seeing = M.mtmd_context_params_default()
    seeing.use_gpu, seeing.print_timings, seeing.n_threads, seeing.warmup = False, False, 1, False
    eyes = M.mtmd_init_from_file(str(projector).encode(), model, seeing)
    assert eyes, f"libmtmd refuses {projector}"
    try:
        yield context, eyes
    finally:
        M.mtmd_free(eyes)
        L.llama_free(context)
        L.llama_model_free(model)


def chunks_of(eyes: int, text: str, images: Sequence[bytes]) -> int | None:
    bitmaps = [_bitmap(eyes, image) for image in images]
    written = text.encode()
    asked = M.mtmd_input_text(written, len(written), True, True)
    chunks = M.mtmd_input_chunks_init()
    pointers = (C.c_void_p * len(bitmaps))(*bitmaps)
    refused = M.mtmd_tokenize(eyes, chunks, C.byref(asked), pointers, len(bitmaps))
    for bitmap in bitmaps:
        M.mtmd_bitmap_free(bitmap)
    if refused:
        M.mtmd_input_chunks_free(chunks)
    return None if refused else chunks


def _bitmap(eyes: int, image: bytes) -> int:
    held = (C.c_uint8 * len(image)).from_buffer_copy(image)
    bitmap = M.mtmd_helper_bitmap_init_from_buf(eyes, held, len(image), False)
    assert bitmap, "libmtmd cannot read the picture"
    return bitmap


def greedy(context: int, position: int, n: int) -> tuple[list[int], np.ndarray]:
    """Return the greedy tokens and their logits after the last decoded row; the first token has `position`."""
    vocab = L.llama_model_get_vocab(L.llama_get_model(context))
    tokens, logits = [], []
    batch = L.llama_batch_init(1, 0, 1)
    while True:
        row = np.ctypeslib.as_array(L.llama_get_logits_ith(context, -1), (L.llama_vocab_n_tokens(vocab),))
        logits.append(row.copy())
        tokens.append(int(row.argmax()))
        if len(tokens) == n or L.llama_vocab_is_eog(vocab, tokens[-1]):
            break
        batch.n_tokens, batch.token[0], batch.pos[0] = 1, tokens[-1], position + len(tokens) - 1
        batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1, 0, 1
        assert L.llama_decode(context, batch) == 0
    L.llama_batch_free(batch)
    return tokens, np.stack(logits)


def picture(colour: tuple[int, int, int] | int, width: int = 48, height: int = 32) -> bytes:
    """Return a PNG of one colour, or of noise from a seed."""
    if isinstance(colour, int):
        pixels = np.random.default_rng(colour).integers(0, 256, (height, width, 3), np.uint8)
    else:
        pixels = np.full((height, width, 3), colour, np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
