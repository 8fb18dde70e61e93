"""Drafters without a model, and one whose slots cannot be copied. The text must not change, whatever they draft."""

from __future__ import annotations

import random
from collections.abc import Sequence

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels
from eaglelocal.drafters.drafter import NOTHING, Committed, Continuation, Drafter, DraftTraits, Node
from eaglelocal.drafters.ngram import Ngram


class NoDrafter(Drafter):
    """A drafter that proposes nothing, needs nothing, and keeps no state that could be copied."""

    traits = DraftTraits(name="none")

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        return [NOTHING for _ in nodes]

    def commit(self, committed: Sequence[Committed]) -> None:
        pass

    def rollback(self, slot: int, position: int) -> None:
        pass


class FlakyDrafter(NoDrafter):
    """A drafter of random tokens with two random siblings each, and often of none at all."""

    def __init__(self, n_vocab: int, seed: int = 0, num_branches: int = 0) -> None:
        self.traits = DraftTraits(name="none", num_branches=num_branches)
        self._random, self._n_vocab = random.Random(seed), n_vocab

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        return [self._continuation(depth) for _ in nodes]

    def _continuation(self, depth: int) -> Continuation:
        if self._random.random() < 0.3:
            return NOTHING
        length = self._random.randint(1, depth)
        siblings = [list(zip(self._tokens(2), self._doubts(2), strict=True)) for _ in range(length)]
        return Continuation(self._tokens(length), self._doubts(length), siblings)

    def _tokens(self, length: int) -> list[int]:
        return [self._random.randrange(self._n_vocab) for _ in range(length)]

    def _doubts(self, length: int) -> list[float]:
        return [self._random.random() for _ in range(length)]


class DrafterOnly(Drafter):
    """A drafter whose slots cannot be copied or swapped; all else is another's."""

    def __init__(self, drafter: Drafter) -> None:
        self.traits, self._drafter = drafter.traits, drafter
        for name in ("begin", "draft", "commit", "rollback", "end", "buffer", "skip", "catch_up", "close"):
            setattr(self, name, getattr(drafter, name))

    @property
    def native_s(self) -> float:
        return self._drafter.native_s


def count_indexed(drafter: Ngram) -> int:
    """Return the number of tokens in all indexes."""
    own = [slot.own for slot in drafter._slots.values() if slot.own]
    return sum(map(len, [*own, *drafter._pools.values()]))
