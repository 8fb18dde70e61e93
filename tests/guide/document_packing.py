"""Packing of documents: pieces of text to rows of tokens with loss flags, to batches of scored positions.

A row holds whole documents back to back (best fit, never cut in two). Pure: the same documents and seed give the same
batches. Files (token_shards.py), models and losses are elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt

from eaglelocal.core.records import dataclass
from guide.tokenizer import GuideTokenizer

IGNORED, PROMPT, ASSISTANT = 0, 1, 2
PROMPT_SHARE = (
    0.1  # prompts count a tenth: one position in ten is scored, at full weight, which also saves lm_head work
)
PACKING_BUFFER = 64  # documents among which the best fit is sought
Pieces = list[tuple[str, bool]]  # (text, is assistant)


@dataclass(frozen=True, slots=True)
class PackedDocument:
    """A document, or a packed row, as tokens with loss flags."""

    tokens: npt.NDArray[np.uint16]  # [length]
    flags: npt.NDArray[np.uint8]  # [length] IGNORED, PROMPT or ASSISTANT: what predicting this token counts as


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch of rows and their scored positions."""

    tokens: npt.NDArray[np.int64]  # [rows, row_length]
    scored: npt.NDArray[np.int64]  # [num_scored] flat positions whose next token is scored
    labels: npt.NDArray[np.int64]  # [num_scored] that next token
    is_assistant: npt.NDArray[np.bool_]  # [num_scored]


def encode_document(pieces: Pieces, tokenizer: GuideTokenizer) -> PackedDocument:
    """Encode pieces. Neighbours of one kind are encoded together; between kinds tokens end, as they do at run time."""
    tokens: list[int] = []
    flags: list[int] = []
    for text, is_assistant in _merge(pieces):
        ids = tokenizer.encode(text)
        tokens += ids
        flags += [ASSISTANT if is_assistant else PROMPT] * len(ids)
    if flags:
        flags[0] = IGNORED  # nothing precedes it, so it cannot be predicted
    return PackedDocument(np.array(tokens, np.uint16), np.array(flags, np.uint8))


def _merge(pieces: Pieces) -> Iterator[tuple[str, bool]]:
    run, run_kind = "", False
    for text, kind in pieces:
        if kind != run_kind and run:
            yield run, run_kind
            run = ""
        run, run_kind = run + text, kind
    if run:
        yield run, run_kind


def pack(documents: Iterator[PackedDocument], row_length: int, filler: int) -> Iterator[PackedDocument]:
    """Yield rows of exactly row_length: the longest waiting document that still fits is next, the rest is filler.

    Documents longer than a row are dropped: half an answer teaches the wrong ending.
    """
    fitting = (d for d in documents if 0 < len(d.tokens) <= row_length)
    waiting: list[PackedDocument] = []
    while True:
        row: list[PackedDocument] = []
        used = 0
        while True:
            waiting += islice(fitting, PACKING_BUFFER - len(waiting))
            candidates = [i for i, d in enumerate(waiting) if used + len(d.tokens) <= row_length]
            if not candidates:
                break
            # the oldest opens the row, so that no document waits forever
            chosen = candidates[0] if not row else max(candidates, key=lambda i: len(waiting[i].tokens))
            row.append(waiting.pop(chosen))
            used += len(row[-1].tokens)
        if not row:
            return
        yield _join(row, row_length, filler)


def _join(row: list[PackedDocument], row_length: int, filler: int) -> PackedDocument:
    tokens = np.full(row_length, filler, np.uint16)
    flags = np.full(row_length, IGNORED, np.uint8)
    used = sum(len(d.tokens) for d in row)
    tokens[:used] = np.concatenate([d.tokens for d in row])
    flags[:used] = np.concatenate([d.flags for d in row])
    return PackedDocument(tokens, flags)


def score(tokens: npt.NDArray[np.uint16], flags: npt.NDArray[np.uint8], seed: int) -> PackedBatch:
    """Make a batch of rows [rows, row_length], scoring assistant tokens and a seeded PROMPT_SHARE of prompt tokens."""
    drawn = np.random.default_rng(seed).random(flags.shape, np.float32) < PROMPT_SHARE
    counts = (flags == ASSISTANT) | ((flags == PROMPT) & drawn)
    counts[:, 0] = False  # no position predicts a row's first token
    targets = np.flatnonzero(counts)
    wide = tokens.astype(np.int64)
    return PackedBatch(wide, targets - 1, wide.ravel()[targets], flags.ravel()[targets] == ASSISTANT)
