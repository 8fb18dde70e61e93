"""What a drafter proposes for a slot, as a comb: a chain, and at each depth the second choice, which stays a leaf.

A second choice is reached where the chain is right as far as its parent and wrong at its sibling, and is then right
itself: reach(parent) * (1 - p_first) * p_second. So it is worth a row where rows cost next to nothing, or where the
chain is unsure early and its further tokens are hardly ever reached.

    gains   0.60 0.36 0.22      the chain; 0.6 each
    seconds 0.20 0.12 0.07      beside each of its tokens; right every other time where the first was wrong
    best five nodes             0.60 0.36 0.22 0.20 0.12

Pure: plain numbers in, nodes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from eaglelocal.core.draft import Draft
from eaglelocal.core.request import MAX_DRAFT_TOKENS
from eaglelocal.speculation.guesses import Second

MIN_REACH = 0.02  # a token less likely to be reached is not worth a draft step or a row on any machine
EMPTY = Draft()
CHAIN_PARENTS = [tuple(range(-1, length - 1)) for length in range(MAX_DRAFT_TOKENS + 1)]


@dataclass(slots=True)
class Chain:
    """What one drafter proposes for one slot."""

    drafter: str
    tokens: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)  # probability that the answer gets as far as each token
    seconds: list[Second] = field(default_factory=list)  # beside each token; none where drafts must be chains
    ended: bool = False  # the drafter has no more to say

    def misses(self) -> list[tuple[float, int]]:
        """How likely a second choice is asked for, and its depth, wherever there is one."""
        found, reach = [], 1.0
        for depth, gain in enumerate(self.gains, start=1):
            if reach - gain > MIN_REACH and depth <= len(self.seconds):
                found.append((reach - gain, depth))
            reach = gain
        return found

    def draft(self, length: int, second_depths: Sequence[int] = ()) -> Draft:
        """The first tokens, and second choices as leaves behind them."""
        if length == 0 and not second_depths:
            return EMPTY
        tokens, confidences = tuple(self.tokens[:length]), tuple(self.confidences[:length])
        parents = CHAIN_PARENTS[length]
        for depth in second_depths:
            token, confidence = self.seconds[depth - 1]
            tokens += (token,)
            confidences += (confidence,)
            parents += (depth - 2,)  # the chain's nodes are numbered by depth - 1
        return Draft(tokens, parents, confidences, self.drafter)


@dataclass(frozen=True, slots=True)
class Seconds:
    """Second choices beside a chain, the likeliest first."""

    gains: Sequence[float] = ()
    depths: Sequence[int] = ()


NO_SECONDS = Seconds()


def likeliest(chain: Chain, hit: Callable[[int, float], float], most: int) -> Seconds:
    """At most so many; `hit`: how likely one is right if the first is wrong, by depth and confidence.

    No gain exceeds that of the parent, so that the likeliest nodes of chain and seconds always hang together.
    """
    losses = [(-missed * hit(depth, chain.seconds[depth - 1][1]), depth) for missed, depth in chain.misses()]
    found = sorted(losses)[:most]
    return Seconds([-loss for loss, _ in found], [depth for _, depth in found])
