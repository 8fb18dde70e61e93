"""Notices an answer that repeats itself without end: the same short passage, over and over, letter by letter.

Honest repetition differs somewhere: rows of tables and numbered lists in their words or numbers, code in its names.
"""

from __future__ import annotations

from collections import deque

NUM_TOKENS = 512  # so many last tokens must be one passage
MIN_REPEATS = 8
CHECKED_EVERY = 32  # tokens


class LoopGuard:
    """The last text of one answer."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque(maxlen=NUM_TOKENS)
        self._num_unchecked = 0
        self.is_looping = False

    def push(self, text: str) -> bool:
        """Add the text of a token; return whether this shows that the answer repeats itself."""
        if self.is_looping:
            return False
        self._texts.append(text)
        self._num_unchecked += 1
        if self._num_unchecked < CHECKED_EVERY or len(self._texts) < NUM_TOKENS:
            return False
        self._num_unchecked = 0
        last = "".join(self._texts)
        self.is_looping = bool(last.strip()) and find_period(last) * MIN_REPEATS <= len(last)
        return self.is_looping


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
