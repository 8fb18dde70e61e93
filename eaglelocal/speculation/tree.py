"""Build a slot's draft as a comb: a chain, and beside each token its sibling (the second choice), which stays a leaf.

A sibling is accepted where the chain is right up to their parent, the chain's token is wrong, and the sibling right:
reach(parent) * (1 - p_first) * p_sibling. So it is worth a row where rows cost next to nothing, or where the chain is
uncertain early and its later tokens are rarely reached.

    gains     0.60 0.36 0.22    the chain; 0.6 each
    siblings  0.20 0.12 0.07    of its tokens; right every other time where the chain is wrong
    best five nodes             0.60 0.36 0.22 0.20 0.12

Pure: plain numbers in, nodes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from eaglelocal.core.draft import Draft
from eaglelocal.core.request import MAX_DRAFT_TOKENS
from eaglelocal.speculation.policy.pending_drafts import Sibling

MIN_REACH = 0.02  # a token less likely to be reached is not worth a draft step or a row on any machine
EMPTY = Draft()
CHAIN_PARENTS = [tuple(range(-1, length - 1)) for length in range(MAX_DRAFT_TOKENS + 1)]


@dataclass(slots=True)
class DraftChain:
    """The tokens that one drafter proposes for one slot."""

    drafter: str
    tokens: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)  # probability that the answer gets as far as each token
    siblings: list[Sibling] = field(default_factory=list)  # sibling of each token; empty where drafts must be chains
    ended: bool = False  # the drafter has nothing more to propose

    def add(self, tokens: Sequence[int], confidences: Sequence[float], siblings: Sequence[Sibling]) -> None:
        """Append tokens, with as many of the confidences and siblings."""
        self.tokens += tokens
        self.confidences += confidences[: len(tokens)]
        self.siblings += siblings[: len(tokens)]

    def end(self) -> None:
        """Record that the drafter has nothing more to propose."""
        self.ended = True

    def sibling_odds(self) -> list[tuple[float, int]]:
        """Return pairs (probability that the answer leaves the chain there, depth), without those below MIN_REACH."""
        odds, reach = [], 1.0
        for depth, gain in enumerate(self.gains, start=1):
            if reach - gain > MIN_REACH and depth <= len(self.siblings):
                odds.append((reach - gain, depth))
            reach = gain
        return odds

    def draft(self, length: int, sibling_depths: Sequence[int] = ()) -> Draft:
        """Return a draft of the first `length` tokens, with the siblings at these depths as leaves, numbered last."""
        if length == 0 and not sibling_depths:
            return EMPTY
        tokens, confidences = tuple(self.tokens[:length]), tuple(self.confidences[:length])
        parents = CHAIN_PARENTS[length]
        for depth in sibling_depths:
            token, confidence = self.siblings[depth - 1]
            tokens += (token,)
            confidences += (confidence,)
            parents += (depth - 2,)  # the chain's token at a depth is node depth - 1
        return Draft(tokens, parents, confidences, self.drafter)


@dataclass(frozen=True, slots=True)
class Siblings:
    """The siblings of a chain's tokens, the likeliest first."""

    gains: Sequence[float] = ()
    depths: Sequence[int] = ()


NO_SIBLINGS = Siblings()


def pick_siblings(chain: DraftChain, probability: Callable[[int, float], float], most: int) -> Siblings:
    """Return the `most` likeliest siblings.

    probability  that a sibling is right if the chain's token is wrong, by depth and confidence

    No gain exceeds that of the parent, so that the likeliest nodes of chain and siblings always form a tree.
    """
    ranked = sorted(
        (-odds * probability(depth, chain.siblings[depth - 1][1]), depth) for odds, depth in chain.sibling_odds()
    )[:most]
    return Siblings([-negative for negative, _ in ranked], [depth for _, depth in ranked])
