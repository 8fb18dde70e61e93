"""Drafters without a model: one drafts nothing, one random tokens of random number. The text must not change."""

from __future__ import annotations

import random
from collections.abc import Sequence

from eaglelocal.core.batch import NO_FURTHER, ExtraLevels
from eaglelocal.drafters.drafter import NOTHING, Committed, Continuation, Node, Swapped


class NoDrafter:
    """A drafter that proposes nothing and needs nothing."""

    name = "none"
    taps: tuple[int, ...] = ()
    block_size = 1
    reuse_margin = 0
    native_s = 0.0

    def begin(self, slot: int, owner: str, num_prompt: int) -> None:
        pass

    def skip(self, image: Committed) -> None:
        pass

    def end(self, slot: int) -> None:
        pass

    def draft(self, nodes: Sequence[Node], depth: int = 1, further: ExtraLevels = NO_FURTHER) -> list[Continuation]:
        return [NOTHING for _ in nodes]

    def commit(self, committed: Sequence[Committed]) -> None:
        pass

    def buffer(self, committed: Sequence[Committed]) -> None:
        pass

    def drop(self, slot: int, position: int) -> None:
        pass

    def fork(self, source: int, target: int, position: int) -> None:
        pass

    def swapped_bytes(self, slot: int) -> int:
        return 0

    def swap_out(self, slot: int) -> Swapped[None]:
        return Swapped(None)

    def swap_in(self, slot: int, swapped: Swapped[None], tokens: Sequence[int]) -> None:
        pass

    def close(self) -> None:
        pass


class FlakyDrafter(NoDrafter):
    """A drafter of random tokens with a random sibling each, and often of none at all."""

    def __init__(self, n_vocab: int, seed: int = 0) -> None:
        self._random, self._n_vocab = random.Random(seed), n_vocab

    def draft(self, nodes: Sequence[Node], depth: int = 1, further: ExtraLevels = NO_FURTHER) -> list[Continuation]:
        return [self._continuation(depth) for _ in nodes]

    def _continuation(self, depth: int) -> Continuation:
        if self._random.random() < 0.3:
            return NOTHING
        length = self._random.randint(1, depth)
        seconds = list(zip(self._tokens(length), self._doubts(length), strict=True))
        return Continuation(self._tokens(length), self._doubts(length), seconds)

    def _tokens(self, length: int) -> list[int]:
        return [self._random.randrange(self._n_vocab) for _ in range(length)]

    def _doubts(self, length: int) -> list[float]:
        return [self._random.random() for _ in range(length)]
