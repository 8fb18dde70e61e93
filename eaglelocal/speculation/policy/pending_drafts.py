"""Judge all drafted tokens by the text that follows, whether or not they were sent to the target.

A drafted token would have been accepted if the target's sampler drew the same token there. So nodes that were not sent
are judged by later tokens, the chain of a drafter that was not chosen is judged too, and trying out a drafter costs
nothing but its draft steps.

Censoring: after the first token that differs nothing is known, and nothing is learned. A sibling (the drafter's second
or third choice) is judged where every better choice was wrong and everything before it right, in a table of its own. If
it is right and begins a branch, that is judged further. Works on tokens and names of drafters, not on probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import NamedTuple

from eaglelocal.core.records import dataclass


class JudgedDraft(NamedTuple):
    """A drafted token that was compared with the text; its parent was right."""

    drafter: str
    depth: int
    confidence: float
    accepted: bool
    is_repeat: bool  # a newer chain of the same drafter was judged at the same token


Sibling = tuple[int, float]  # a token in the place of another one, the drafter's second or third choice; confidence
RANK_MARK, KEPT_MARK = "/", "+"


def kept_name(drafter: str) -> str:
    """Return the name under which the rest of a drafter's earlier draft is proposed again."""
    return drafter + KEPT_MARK


def is_kept(name: str) -> bool:
    return name.endswith(KEPT_MARK)


def sibling_table(drafter: str, rank: int) -> str:
    """Return the name of the acceptance table of a drafter's choices of a rank, 2 or more."""
    return f"{drafter}{RANK_MARK}{rank}"


def is_sibling_table(drafter: str) -> bool:
    return RANK_MARK in drafter


@dataclass(slots=True)
class PendingDraft:
    """A draft of an earlier step that the text has not yet refuted; it has confirmed the first `num_right` tokens.

    depth     tokens of the draft before its first
    branches  chains that begin with a sibling, by the index of the token beside it, and by its own rank from 0
    """

    drafter: str
    tokens: Sequence[int]
    confidences: Sequence[float]
    siblings: Sequence[Sequence[Sibling]] = ()  # of each token, best first; or none
    num_right: int = 0
    depth: int = 0
    branches: dict[tuple[int, int], PendingDraft] = field(default_factory=dict)

    def compare(
        self, text: Sequence[int], judged: list[JudgedDraft], judged_places: set[tuple[str, int]]
    ) -> PendingDraft | None:
        """Judge the chain's next tokens by the text, and append the results to `judged`. Return the part of the tree
        that later text has yet to judge, or None.

        judged_places  pairs (drafter, index in the text) at which newer chains were judged; this chain's are added
        """
        chain = self
        for index, token in enumerate(text):
            at = chain.num_right
            if at == len(chain.tokens):
                return None
            accepted = chain.tokens[at] == token
            is_repeat = (chain.drafter, index) in judged_places
            judged_places.add((chain.drafter, index))
            depth = chain.depth + at + 1
            judged.append(JudgedDraft(chain.drafter, depth, chain.confidences[at], accepted, is_repeat))
            if accepted:
                chain.num_right += 1
                continue
            branch = chain._judge_siblings(token, judged, is_repeat=is_repeat)
            if branch is None:
                return None
            chain = branch
        return chain if chain.num_right < len(chain.tokens) else None

    def _judge_siblings(self, token: int, judged: list[JudgedDraft], *, is_repeat: bool) -> PendingDraft | None:
        """Judge the siblings of the next token, which was wrong. Return the branch that goes on, if there is one."""
        at = self.num_right
        for rank, (sibling, confidence) in enumerate(self.siblings[at] if self.siblings else ()):
            table, depth = sibling_table(self.drafter, rank + 2), self.depth + at + 1
            judged.append(JudgedDraft(table, depth, confidence, sibling == token, is_repeat))
            if sibling == token:
                branch = self.branches.get((at, rank))
                if branch is not None:
                    branch.num_right = 1
                return branch
        return None


class PendingDrafts:
    """The chains that later text has yet to judge, by slot."""

    def __init__(self) -> None:
        self._chains: dict[int, list[PendingDraft]] = {}

    def __contains__(self, slot: int) -> bool:
        """Return whether any chain of the slot is still to be judged."""
        return bool(self._chains.get(slot))

    def forget(self, slot: int) -> None:
        self._chains.pop(slot, None)

    def find_rest(self, slot: int, drafter: str) -> PendingDraft | None:
        """Return the drafter's newest chain that the slot's text has followed so far and that has tokens left."""
        chains = self._chains.get(slot, ())
        return next((chain for chain in chains if chain.drafter == drafter and chain.num_right), None)

    def judge(self, slot: int, new: Sequence[PendingDraft], text: Sequence[int]) -> list[JudgedDraft]:
        """Judge the slot's chains by the text that followed; `new` chains were drafted in this step."""
        if not (new or slot in self):
            return []
        judged: list[JudgedDraft] = []
        judged_places: set[tuple[str, int]] = set()
        chains = (*new, *self._chains.get(slot, ()))
        left = [chain.compare(text, judged, judged_places) for chain in chains]
        # the rest of an earlier draft is already among these, and is proposed again as long as it is right
        self._chains[slot] = [chain for chain in left if chain is not None and not is_kept(chain.drafter)]
        return judged
