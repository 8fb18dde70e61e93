"""The most likely tokens of a row of logits with their confidences, as the native code ranks them.

A softmax over a large vocabulary costs more than the drafting itself, so confidence is computed among the best few: of
MIN_RANKED, or one more than requested. It ranks drafts as well as the full softmax does, and is mapped to acceptance
by learning (speculation/acceptance/acceptance_model.py). Siblings are ranked anyway, so they cost nothing.

A sibling matters when every better token is wrong, so its confidence is its share among itself and the worse tokens,
without the better ones.

    logits  a 5.0   b 3.0   c 1.0   d -4.0     one to three choices: among a, b, c, d
            a: 0.87         b: 0.88         c: 0.99
"""

from __future__ import annotations

import ctypes as C
import math

from eaglelocal.core.batch import Proposals

MIN_RANKED = 4
UNKNOWN = math.nan


def num_ranked(num_choices: int, n_vocab: int, *, confident: bool) -> int:
    """Return how many tokens of a row are ranked to propose `num_choices` of them, with or without confidences."""
    return min(max(num_choices + 1, MIN_RANKED) if confident else num_choices, n_vocab)


class TopTokens:
    """The buffers into which native code ranks the tokens of several rows."""

    def __init__(self) -> None:
        self._resize(64)

    def _resize(self, count: int) -> None:
        self._tokens, self._shares = (C.c_int32 * count)(), (C.c_float * count)()
        self.tokens_at, self.shares_at = C.addressof(self._tokens), C.addressof(self._shares)

    def reserve(self, count: int) -> None:
        if count > len(self._tokens):
            self._resize(count)

    def read(self, num_rows: int, ranked: int, num_choices: int, *, confident: bool) -> Proposals:
        """Return the best tokens of each row, best first, with confidences; NaN if `confident` is false."""
        n = num_rows * ranked
        tokens = self._tokens[:n]
        best = [tokens[i : i + ranked][:num_choices] for i in range(0, n, ranked)]
        if not confident:
            return Proposals(best, [[UNKNOWN] * num_choices] * num_rows)
        shares = self._shares[:n]
        return Proposals(best, [shares[i : i + ranked][:num_choices] for i in range(0, n, ranked)])
