"""Judge everything that was drafted by the text that follows, whether it was sent to the target or not.

A drafted token would have been accepted if the target's sampler drew the same token there. So nodes that were not sent
are judged by later tokens, the chain of a drafter that was not chosen is judged too, and trying out a drafter costs
nothing but its draft steps.

Censoring: after the first token that differs nothing is known, and nothing is learned. A sibling (the drafter's second
choice) is judged where the first choice was wrong and everything before it right, in a table of its own. Works on
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
    is_repeat: bool  # a newer chain of the same drafter was judged at the same token


SIBLING_SUFFIX = "/2"
Sibling = tuple[int, float]  # a sibling: the drafter's second choice of a token, and its confidence


def sibling_table(drafter: str) -> str:
    """Return the name of the acceptance table of a drafter's siblings."""
    return drafter + SIBLING_SUFFIX


def is_sibling_table(drafter: str) -> bool:
    return drafter.endswith(SIBLING_SUFFIX)


@dataclass(slots=True)
class PendingDraft:
    """A drafted chain, whose first `num_right` tokens the text confirmed."""

    drafter: str
    tokens: Sequence[int]
    confidences: Sequence[float]
    siblings: Sequence[Sibling] = ()  # the sibling of each token, or none
    num_right: int = 0

    def compare(self, text: Sequence[int], judged: list[JudgedDraft], judged_places: set[tuple[str, int]]) -> bool:
        """Judge the chain's next tokens by the text, into `judged`. Return True if some of the chain is still to come.

        judged_places  pairs (drafter, index in the text) at which newer chains were judged; this chain's are added
        """
        for index, token in enumerate(text):
            at = self.num_right
            if at == len(self.tokens):
                return False
            accepted = self.tokens[at] == token
            is_repeat = (self.drafter, index) in judged_places
            judged_places.add((self.drafter, index))
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
    """The chains that are still to be judged by later text, by slot."""

    def __init__(self) -> None:
        self._chains: dict[int, list[PendingDraft]] = {}

    def forget(self, slot: int) -> None:
        self._chains.pop(slot, None)

    def judge(self, slot: int, new: Sequence[PendingDraft], text: Sequence[int]) -> list[JudgedDraft]:
        """Judge the slot's chains by the text that followed; `new` ones were drafted in this step."""
        if not (new or self._chains.get(slot)):
            return []
        judged: list[JudgedDraft] = []
        judged_places: set[tuple[str, int]] = set()
        chains = (*new, *self._chains.get(slot, ()))
        self._chains[slot] = [chain for chain in chains if chain.compare(text, judged, judged_places)]
        return judged
