"""Compare everything that was drafted with the text that came, whether it was sent to the target or not.

A drafted token would have been accepted if it is the token that the target's sampler drew there. So nodes that were not
sent are judged by the tokens that follow later, the chain of a drafter that was not chosen is judged beside the one
that was, and a drafter can be tried out for nothing but its draft steps.

Censoring: after the first token that differs nothing is known, and nothing is learned. A sibling (the drafter's second
choice) is judged where the first choice was wrong and everything before it right, under a name of its own. Works on
tokens and names of drafters, not on probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class JudgedDraft(NamedTuple):
    """A drafted token that was compared with the text; its parent was right."""

    drafter: str
    depth: int
    confidence: float
    accepted: bool
    is_repeat: bool  # a newer guess of the same drafter at the same token was judged before


SIBLING_SUFFIX = "/2"
Sibling = tuple[int, float]  # a sibling: the drafter's second choice of a token, and its confidence


def sibling_table(drafter: str) -> str:
    """Return the name under which a drafter's siblings are judged."""
    return drafter + SIBLING_SUFFIX


def is_sibling_table(drafter: str) -> bool:
    return drafter.endswith(SIBLING_SUFFIX)


@dataclass(slots=True)
class PendingDraft:
    """A drafted chain, of which the first `num_right` tokens have come."""

    drafter: str
    tokens: Sequence[int]
    confidences: Sequence[float]
    siblings: Sequence[Sibling] = ()  # the sibling of each token, or none
    num_right: int = 0

    def compare(self, text: Sequence[int], judged: list[JudgedDraft], told: set[tuple[str, int]]) -> bool:
        """Judge the chain's next tokens by the text, into `judged`. Return True if some of the chain is still to come.

        told  (drafter, index in the text) of tokens at which newer guesses were judged; grows
        """
        for place, token in enumerate(text):
            at = self.num_right
            if at == len(self.tokens):
                return False
            accepted = self.tokens[at] == token
            is_repeat = (self.drafter, place) in told
            told.add((self.drafter, place))
            judged.append(JudgedDraft(self.drafter, at + 1, self.confidences[at], accepted, is_repeat))
            if not accepted:
                if self.siblings:
                    second, confidence = self.siblings[at]
                    judged.append(
                        JudgedDraft(sibling_table(self.drafter), at + 1, confidence, second == token, is_repeat)
                    )
                return False
            self.num_right += 1
        return self.num_right < len(self.tokens)


class PendingDrafts:
    """The chains that later text will judge, by slot."""

    def __init__(self) -> None:
        self._open: dict[int, list[PendingDraft]] = {}

    def forget(self, slot: int) -> None:
        self._open.pop(slot, None)

    def judge(self, slot: int, new: Sequence[PendingDraft], text: Sequence[int]) -> list[JudgedDraft]:
        """Judge the slot's chains by `text`; `new` ones were drafted before it came."""
        judged: list[JudgedDraft] = []
        told: set[tuple[str, int]] = set()
        guesses = (*new, *self._open.get(slot, ()))
        self._open[slot] = [guess for guess in guesses if guess.compare(text, judged, told)]
        return judged
