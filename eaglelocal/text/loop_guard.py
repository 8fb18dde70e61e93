"""Notices an answer that repeats itself without end: the same short passage, over and over, letter by letter.

Honest repetition differs somewhere: rows of tables and numbered lists in their words or numbers, code in its names.
Data need not, such as a matrix of zeros; so of code blocks, and of passages without letters, more is needed.
"""

from __future__ import annotations

import re
from collections import deque

NUM_TOKENS = 512  # so many last tokens must be one passage
NUM_DATA_TOKENS = 4096
MIN_REPEATS = 8
CHECKED_EVERY = 32  # tokens
MAX_SILENT = 3  # tokens before the one that completes a character
FENCE = "```"
_DATA = re.compile(r"[\x00-\x40\x5b-\x60\x7b-\x7f]*")  # ASCII without letters


class LoopGuard:
    """Checks one answer for repetition: its thoughts, and then its text by itself.

    budget  tokens of thoughts that are not judged, because a limit of thinking ends them; thoughts go on after it
            where a server ignores the limit
    """

    def __init__(self, budget: int = 0) -> None:
        self._num_unjudged, self._has_text, self.is_looping = budget, False, False
        self._begin()

    def _begin(self) -> None:
        self._texts: deque[str] = deque(maxlen=NUM_TOKENS)
        self._num_silent = self._num_unchecked = self._num_repeated = 0
        self._end, self._is_code = "", False  # the last characters, which may begin a fence

    def push(self, text: str, thought: str = "") -> bool:
        """Add a token; return whether this shows that the answer repeats itself."""
        if self.is_looping:
            return False
        if thought and not text and self._num_unjudged:
            self._num_unjudged -= 1
            return False
        if text and not self._has_text:
            self._has_text = True
            self._begin()
        else:
            text = thought + text
        if not text:
            self._num_silent = min(self._num_silent + 1, MAX_SILENT)
            return False
        self._texts.extend([*[""] * self._num_silent, text])
        self._num_unchecked += 1 + self._num_silent
        self._num_silent = 0
        self._note_fences(text)
        if self._num_unchecked < CHECKED_EVERY or len(self._texts) < NUM_TOKENS:
            return False
        self.is_looping = self._check()
        return self.is_looping

    def _note_fences(self, text: str) -> None:
        self._is_code ^= (self._end + text).count(FENCE) % 2 == 1
        self._end = (self._end + text)[-2:] if not (self._end + text).endswith(FENCE) else ""

    def _check(self) -> bool:
        last = "".join(self._texts)
        num_new, self._num_unchecked = self._num_unchecked, 0
        period = find_period(last)
        if period * MIN_REPEATS > len(last):
            self._num_repeated = 0
            return False
        self._num_repeated = self._num_repeated + num_new if self._num_repeated else NUM_TOKENS
        is_data = self._is_code or (_DATA.fullmatch(last[-period:]) is not None and not last[-period:].isspace())
        return self._num_repeated >= (NUM_DATA_TOKENS if is_data else NUM_TOKENS)


def find_period(text: str) -> int:
    """Return the length of the shortest passage whose repetition is the text; the last one may be cut.

    By the prefix function of Knuth, Morris and Pratt (1977): a text with a border of k characters has the period n - k.
    """
    borders = [0] * len(text)
    border = 0
    for end in range(1, len(text)):
        while border and text[end] != text[border]:
            border = borders[border - 1]
        border += text[end] == text[border]
        borders[end] = border
    return len(text) - border
