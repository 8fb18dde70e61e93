"""A drafter that is random in what and how much it proposes: whatever it says, the text must not change."""

from __future__ import annotations

import random
from collections.abc import Sequence

from eaglelocal.drafters.base import Child, Node, NoDrafter


class FlakyDrafter(NoDrafter):
    """Random tokens, and often none at all; sometimes a second choice."""

    def __init__(self, n_vocab: int, seed: int = 0) -> None:
        self._random, self._n_vocab = random.Random(seed), n_vocab

    def expand(self, nodes: Sequence[Node]) -> list[list[Child]]:
        return [self._children() for _ in nodes]

    def _children(self) -> list[Child]:
        if self._random.random() < 0.3:
            return []
        tokens = self._random.sample(range(self._n_vocab), self._random.randint(1, 2))
        return [Child(token, self._random.random()) for token in tokens]
