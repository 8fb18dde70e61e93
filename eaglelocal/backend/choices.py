"""The most likely tokens of a row of logits, and how sure the row is of them, as the C part ranks them.

A softmax over a large vocabulary costs more than the drafting it is for, so confidence is told among the best few: of
MIN_RANKED, or one more than are asked for. It ranks drafts as well as the whole softmax does, and what it is worth is
learned (speculation/acceptance.py). So the second choice is known anyway, and costs nothing.

A second choice matters where the first is wrong, so its confidence is its share beside the third. Its share beside the
first says nothing: half of all were right whatever it was; by that beside the third it is one in four to nine in ten.

    logits  a 5.0   b 3.0   c 1.0   d -4.0     one branch or two: among a, b, c
            a: 0.87         b: 0.88
"""

from __future__ import annotations

import ctypes as C
import math

from eaglelocal.core.batch import Proposals

MIN_RANKED = 3
UNKNOWN = math.nan


def num_ranked(branches: int, n_vocab: int, *, confident: bool) -> int:
    return min(max(branches + 1, MIN_RANKED) if confident else branches, n_vocab)


class Choices:
    """The memory into which C ranks the tokens of several rows, and how it is read."""

    def __init__(self) -> None:
        self._resize(64)

    def _resize(self, count: int) -> None:
        self._tokens, self._shares = (C.c_int32 * count)(), (C.c_float * count)()
        self.tokens_at, self.shares_at = C.addressof(self._tokens), C.addressof(self._shares)

    def make_room(self, count: int) -> None:
        if count > len(self._tokens):
            self._resize(count)

    def read(self, num_rows: int, ranked: int, branches: int, *, confident: bool) -> Proposals:
        """The best tokens of each row, best first, and how sure each is; NaN if that is not asked for."""
        n = num_rows * ranked
        tokens = self._tokens[:n]
        best = [tokens[i : i + ranked][:branches] for i in range(0, n, ranked)]
        if not confident:
            return Proposals(best, [[UNKNOWN] * branches] * num_rows)
        shares = self._shares[:n]
        return Proposals(best, [shares[i : i + ranked][:branches] for i in range(0, n, ranked)])
