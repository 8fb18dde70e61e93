"""Everything that was drafted is compared with the text that came, whether it was sent to the target or not.

A drafted token would have been accepted if it is the token that the target's sampler drew there. So nodes that were
cut are judged by the token behind the last accepted one and by the steps that follow, the chain of a drafter that
was not chosen is judged beside the one that was, and a drafter can be tried out for nothing but its draft steps.

Censoring: behind the first token that differs nothing is known, and nothing is learned. A second choice is judged
where the first was wrong and what is before it right, under a name of its own.
Knows tokens and names of drafters, nothing of probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Judged(NamedTuple):
    """A token whose parent was right was compared with the text."""

    drafter: str
    depth: int
    confidence: float
    accepted: bool
    is_again: bool  # a newer guess of the same drafter at the same token was judged before


SECOND = "/2"
Second = tuple[int, float]  # what a drafter would say if its first choice were wrong, and how surely


def second_of(drafter: str) -> str:
    """Under which name second choices are judged."""
    return drafter + SECOND


def is_second(drafter: str) -> bool:
    return drafter.endswith(SECOND)


@dataclass(slots=True)
class Guess:
    """A chain, of which the first `num_right` tokens have come."""

    drafter: str
    tokens: Sequence[int]
    confidences: Sequence[float]
    seconds: Sequence[Second] = ()  # beside each token, or none
    num_right: int = 0

    def compare(self, text: Sequence[int], judged: list[Judged], told: set[tuple[str, int]]) -> bool:
        """Go on with the text. True: some of the chain is still to come.

        told  drafters and places of the text that newer guesses were judged at; grows
        """
        for place, token in enumerate(text):
            at = self.num_right
            if at == len(self.tokens):
                return False
            accepted = self.tokens[at] == token
            is_again = (self.drafter, place) in told
            told.add((self.drafter, place))
            judged.append(Judged(self.drafter, at + 1, self.confidences[at], accepted, is_again))
            if not accepted:
                if self.seconds:
                    second, confidence = self.seconds[at]
                    judged.append(Judged(second_of(self.drafter), at + 1, confidence, second == token, is_again))
                return False
            self.num_right += 1
        return self.num_right < len(self.tokens)


class Guesses:
    """What is still to come, by slot."""

    def __init__(self) -> None:
        self._open: dict[int, list[Guess]] = {}

    def forget(self, slot: int) -> None:
        self._open.pop(slot, None)

    def judge(self, slot: int, new: Sequence[Guess], text: Sequence[int]) -> list[Judged]:
        """`new` was drafted before `text` came."""
        judged: list[Judged] = []
        told: set[tuple[str, int]] = set()
        guesses = (*new, *self._open.get(slot, ()))
        self._open[slot] = [guess for guess in guesses if guess.compare(text, judged, told)]
        return judged
