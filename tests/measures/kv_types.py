"""What a cache of other types costs: python tests/measures/kv_types.py TARGET.gguf [--texts N] [--tokens N]

Each pair of types reads the same texts (pages of this documentation) in pieces. Prints the bits of a value, the mean
KLD of the next token against a cache in f16 and its 99th percentile, and milliseconds of decodes of one and four rows
after the text, medians of rounds in which the pairs take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.context_params import ContextParams
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel
from eaglelocal.core.batch import Batch, Floats
from eaglelocal.memory.cache_bytes import bits_per_value
from eaglelocal.planning.quality import estimate_kv_loss
from eaglelocal.probe.cpuinfo import count_usable_threads

PLAIN = "f16"
PAIRS = (
    *("q8_0,f16", "f16,q8_0", "q8_0", "q8_0,q5_1", "q5_1,q8_0", "q5_1", "q5_0", "q8_0,q4_0", "q4_0,q8_0", "q4_1"),
    *("iq4_nl", "q4_0"),
)
PIECE, SIZES, ROUNDS = 64, (1, 4), 15
DOCS = Path(__file__).parents[2] / "docs"


def read_texts(model: LlamaModel, num_texts: int, num_tokens: int) -> list[list[int]]:
    pages = sorted(DOCS.glob("*.md"), key=lambda page: -page.stat().st_size)[:num_texts]
    return [
        list(model.vocabulary.tokenize(page.read_text(), add_special=True, parse_special=False))[:num_tokens]
        for page in pages
    ]


def log_softmax(logits: Floats) -> Floats:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def decode_along(context: LlamaContext, tokens: list[int]) -> Iterator[Floats]:
    """Read a text, and yield the log-probabilities of each piece [rows, vocab]."""
    context.remove(0, 0)
    for first in range(0, len(tokens), PIECE):
        part = tokens[first : first + PIECE]
        n = len(part)
        context.decode(Batch(part, list(range(first, first + n)), [(0,)] * n, [True] * n))
        yield log_softmax(np.stack([context.logits(row) for row in range(n)]))


def measure_kld(plain: LlamaContext, other: LlamaContext, texts: list[list[int]]) -> Floats:
    found = [
        (np.exp(expected) * (expected - here)).sum(axis=-1)
        for tokens in texts
        for expected, here in zip(decode_along(plain, tokens), decode_along(other, tokens), strict=True)
    ]
    return np.concatenate(found)


def decode_ms(context: LlamaContext, num_rows: int, first: int) -> float:
    began_s = time.perf_counter()
    positions = list(range(first, first + num_rows))
    context.decode(Batch([7] * num_rows, positions, [(0,)] * num_rows, [True] * num_rows))
    took_ms = (time.perf_counter() - began_s) * 1000
    context.remove(0, first)
    return took_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024)
    asked = parser.parse_args()
    model = LlamaModel(load_library(), asked.target)
    with contextlib.ExitStack() as around:
        around.callback(model.close)
        texts = read_texts(model, asked.texts, asked.tokens)
        contexts = {}
        for kv_type in (PLAIN, *PAIRS):
            params = ContextParams(
                n_ctx=asked.tokens + 64, threads=count_usable_threads(), kv_type=kv_type, flash_attn="on"
            )
            contexts[kv_type] = LlamaContext(model, params)
            around.callback(contexts[kv_type].close)
        klds = {kv_type: measure_kld(contexts[PLAIN], contexts[kv_type], texts) for kv_type in PAIRS}
        rounds = [
            {
                (kv_type, n): decode_ms(context, n, len(texts[-1]))
                for kv_type, context in contexts.items()
                for n in SIZES
            }
            for _ in range(ROUNDS)
        ]
        print(f"{sum(map(len, texts))} tokens of {len(texts)} texts")
        for kv_type in contexts:
            kld = klds.get(kv_type, np.zeros(1))
            took = [statistics.median(each[kv_type, n] for each in rounds) for n in SIZES]
            size = f"{kv_type:10} {bits_per_value(kv_type):5.2f} bits  as planned {estimate_kv_loss(kv_type):.3f}"
            found = f"KLD {kld.mean():.5f}, 99 % below {np.quantile(kld, 0.99):.4f}"
            print(f"{size}  {found}  {' '.join(f'{ms:6.1f} ms' for ms in took)}")


if __name__ == "__main__":
    main()
