"""Marks such as `[312 lines, ~3 100 tokens]` or `[notes.md, 40 lines, ~520 tokens]` that stand for long texts.

A mark is edited as a whole: an edit that cuts into it covers all of it, an insertion inside it goes after it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from eaglelocal.conversation.conversation import TOKENS_PER_CHAR
from eaglelocal.tui.panel.panel_text import format_count

MAX_LINES, MAX_CHARS = 8, 1000  # a longer paste is folded
MAX_TOKENS_PER_LETTER = 0.5  # whatever was counted of a conversation in Chinese
TOKENS_PER_BYTE = 0.6  # of other scripts: what small vocabularies need of Chinese, and more than large ones do
_LETTERS = re.compile(r"[A-Za-z]|\s+")
_SIGNS = re.compile(r"[0-9]|[!-/:-@[-`{-~]+")
_CODED = re.compile(r"[A-Za-z0-9+/=_-]{60,}")  # base64 and the like, of which each character counts as a token
_ASCII = re.compile(r"[\x00-\x7f]+")


def estimate_tokens(text: str, tokens_per_char: float = TOKENS_PER_CHAR) -> int:
    """Return the approximate number of tokens of a text, rather too many than too few.

    tokens_per_char  of ASCII letters and blanks, of which other scripts tell little; each digit, and each run of
        signs, counts as a token
    """
    num_letters, num_signs, num_other_bytes = _count_kinds(text)
    return round(
        num_letters * min(tokens_per_char, MAX_TOKENS_PER_LETTER) + num_signs + num_other_bytes * TOKENS_PER_BYTE
    )


@lru_cache(maxsize=2)  # a long question is counted with every frame
def _count_kinds(text: str) -> tuple[int, int, int]:
    """Return the numbers of letters and blanks, of digits and signs, and of the bytes of what is not ASCII."""
    plain = _CODED.sub("", text)
    num_signs = len(_SIGNS.findall(plain)) + len(text) - len(plain)
    num_other_bytes = len(_ASCII.sub("", text).encode(errors="replace"))
    return len(_LETTERS.findall(plain)), num_signs, num_other_bytes


class TextMarks:
    """The texts of a session by their marks, all kept because a deleted mark may be restored."""

    def __init__(self, count_tokens: Callable[[str], int] = estimate_tokens) -> None:
        """count_tokens: estimates the tokens of a text for the model that runs."""
        self._count_tokens = count_tokens
        self._texts: dict[str, str] = {}  # by mark

    def fold(self, text: str) -> str:
        """Return the mark for a pasted text, or the text itself if it is short."""
        num_lines = text.rstrip("\n").count("\n") + 1
        if num_lines <= MAX_LINES and len(text) <= MAX_CHARS:
            return text
        return self.mark(text, f"[{num_lines} lines]" if num_lines > 1 else f"[{len(text)} characters]")

    def mark(self, text: str, label: str) -> str:
        """Return the mark for a text: its label and tokens, with a number if that stands for another text."""
        label = f"{label[:-1]}, ~{format_count(self._count_tokens(text))} tokens]"
        numbered = (f"{label[:-1]}, {number}]" for number in itertools.count(2))
        mark = next(mark for mark in itertools.chain([label], numbered) if self._texts.get(mark, text) == text)
        self._texts[mark] = text
        return mark

    def unfold(self, text: str) -> str:
        """Return the text with its marks replaced by what they stand for."""
        parts, done = [], 0
        for begin, end in self._spans(text):
            parts += [text[done:begin], self._texts[text[begin:end]]]
            done = end
        return "".join([*parts, text[done:]])

    def fold_known(self, text: str) -> str:
        """Return a whole text with known ones folded again."""
        text += "\n"  # a known text may end with it, and sending strips it
        for mark, known in sorted(self._texts.items(), key=lambda each: -len(each[1])):
            text = text.replace(known, mark)
        return text.removesuffix("\n")

    def widen(self, text: str, begin: int, end: int) -> tuple[int, int]:
        """Return the range `begin:end` widened to whole marks; an empty range inside a mark moves to its end."""
        for first, last in self._spans(text):
            if begin == end and first < begin < last:
                return last, last
            if first < end and begin < last:
                begin, end = min(begin, first), max(end, last)
        return begin, end

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        done = 0
        while found := [(begin, mark) for mark in self._texts if (begin := text.find(mark, done)) >= 0]:
            begin, mark = min(found)
            done = begin + len(mark)
            yield begin, done
