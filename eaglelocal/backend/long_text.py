"""Split texts that llama.cpp's pre-tokenizers cannot take as a whole.

Those that are regular expressions recurse for every character of a match, and overflow a stack of 8 MiB after some
26 000: a prompt with so many letters in a row would kill the process. So runs are cut much earlier. Each cut costs
about one more token, and the text means the same. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import pairwise

WINDOW = 2000  # characters; a run between two cuts is shorter than two of these
# What one match may span: in C++ four control characters are no space, and punctuation may end in lines and slashes.
LONG_RUN = re.compile("|".join(rf"{kind}{{{WINDOW}}}" for kind in (r"[\S\x1c-\x1f]", r"\s", r"[\r\n/]")))
# Pre-tokenizers (tokenizer.ggml.pre) that llama.cpp implements by hand, without recursion.
WITHOUT_RECURSION = frozenset({
    "a.x-4.0", "chatglm-bpe", "command-r", "dbrx", "deepseek-r1-qwen", "exaone4", "falcon-h1", "falcon3", "gemma4",
    "glm4", "gpt-2", "hunyuan", "kimi-k2", "lfm2", "llama-bpe", "llama-v3", "llama3", "megrez", "midm-2.0", "olmo",
    "phi-2", "pixtral", "qwen2", "qwen35", "refact", "smaug-bpe", "smollm", "stablelm2", "starcoder",
})  # fmt: skip


def split_long_runs(text: str, whole_words: Collection[str] = ()) -> list[str]:
    """Return the text in parts without long runs; no string of `whole_words` is split."""
    cuts = (at for at in range(WINDOW, len(text), WINDOW) if LONG_RUN.match(text, at))
    places = sorted({0, len(text), *(move_before(whole_words, text, at) for at in cuts)})
    return [text[first:end] for first, end in pairwise(places)] or [text]


def move_before(whole_words: Collection[str], text: str, at: int) -> int:
    """Return the place, or the beginning of the string that a cut there would split."""
    starts = (start for word in whole_words for start in _across(word, text, at))
    return min(starts, default=at)


def _across(word: str, text: str, at: int) -> Iterator[int]:
    """Yield where the word begins, if it lies across the place."""
    start = text.find(word, max(at - len(word) + 1, 0), at + len(word) - 1)
    if 0 <= start < at:
        yield start
