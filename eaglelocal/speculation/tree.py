"""Build a slot's draft as a tree of chains: a trunk of first choices, and branches that leave the trunk or another
branch.

Beside each token of a chain stand its siblings, the drafter's second and third choice. A sibling is accepted if the
chain is right up to their parent and every better choice is wrong. So its gain is the remaining part of the parent's
reach, times its own chance. It may stay a leaf, or begin a branch, which grows as the trunk does. So a tree may branch
anywhere.

    gains     0.60 0.36 0.22    the trunk; 0.6 each
    siblings  0.20 0.12 0.07    of its tokens; right every other time where the chain is wrong
    branch         0.12 0.07    after the first sibling
    best six nodes              0.60 0.36 0.22 0.20 0.12 0.12

No gain exceeds that of the parent, so the likeliest nodes always form a tree (EAGLE-2, arXiv 2406.16858, ranks them
like this). Pure: plain numbers in, nodes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import NamedTuple

from eaglelocal.core.draft import ROOT, Draft
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import MAX_DRAFT_TOKENS
from eaglelocal.speculation.policy.pending_drafts import PendingDraft, Sibling, sibling_table

MIN_REACH = 0.02  # a token less likely to be reached is not worth a draft step or a row on any machine
EMPTY = Draft()
CHAIN_PARENTS = [tuple(range(-1, length - 1)) for length in range(MAX_DRAFT_TOKENS + 1)]
Probability = Callable[[str, int, float], float]  # of a token, by table, depth and confidence, if its turn comes


@dataclass(slots=True)
class DraftChain:
    """A chain that grows during a step: tokens that one drafter proposes for one slot, each after the one before. The
    trunk also holds its branches.

    A branch begins with a sibling of a token of another chain; `depth` tokens stand before its first.
    """

    drafter: str
    number: int = 0  # in the tree; 0: the trunk
    parent: int = 0  # number of the chain that a branch leaves
    depth: int = 0
    reach: float = 1.0  # probability that the answer gets as far as the token before the first
    tokens: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)  # probability that the answer gets as far as each token
    siblings: list[Sequence[Sibling]] = field(default_factory=list)  # of each token; empty where drafts must be chains
    sibling_gains: list[list[float]] = field(default_factory=list)  # of the first tokens' siblings, as far as asked for
    ends: list[int] = field(default_factory=list)  # last tokens of calls: there branches may leave
    ended: bool = False  # the drafter has nothing more to propose
    branches: list[DraftChain] = field(default_factory=list)
    places: dict[Place, DraftChain] = field(default_factory=dict)  # of the branches, by where they leave

    def add(
        self,
        tokens: Sequence[int],
        confidences: Sequence[float],
        siblings: Sequence[Sequence[Sibling]],
        *,
        may_branch: bool = True,
    ) -> None:
        """Append tokens, with as many of the confidences and siblings.

        may_branch  the drafter can go on from a sibling of the last of them
        """
        self.tokens += tokens
        self.confidences += confidences[: len(tokens)]
        self.siblings += siblings[: len(tokens)]
        if may_branch and tokens:
            self.ends.append(len(self.tokens) - 1)

    def end(self) -> None:
        """Record that the drafter has nothing more to propose."""
        self.ended = True

    @property
    def chains(self) -> list[DraftChain]:
        """The trunk and its branches, by number."""
        return [self, *self.branches]

    @property
    def node_gains(self) -> list[float]:
        """The gains of the chain's tokens and of its branches', the largest first."""
        if not self.branches:
            return self.gains
        return sorted((gain for chain in self.chains for gain in chain.gains), reverse=True)

    def sibling_odds(self) -> list[float]:
        """Return the probabilities that the answer leaves the chain at each token, leaving out those
        below MIN_REACH.
        """
        odds, reach = [], self.reach
        for gain, _ in zip(self.gains, self.siblings, strict=False):
            if reach - gain > MIN_REACH:
                odds.append(reach - gain)
            reach = gain
        return odds

    def weigh_siblings(self, probability: Probability) -> None:
        """Compute the gains of siblings that have none yet, in all chains."""
        for chain in self.chains:
            for index in range(len(chain.sibling_gains), min(len(chain.siblings), len(chain.gains))):
                chain.sibling_gains.append(chain._weigh(index, probability))

    def _weigh(self, index: int, probability: Probability) -> list[float]:
        left = (self.gains[index - 1] if index else self.reach) - self.gains[index]
        gains: list[float] = []
        for rank, (_, confidence) in enumerate(self.siblings[index], start=2):
            if left <= MIN_REACH:
                break
            gains.append(left * probability(sibling_table(self.drafter, rank), self.depth + index + 1, confidence))
            left -= gains[-1]
        return gains

    def open_branch(self, place: Place) -> DraftChain:
        """Let a branch begin with the sibling at a place of the trunk's tree, whose gain is known."""
        left = self.chains[place.chain]
        token, confidence = left.siblings[place.at][place.rank]
        branch = DraftChain(self.drafter, len(self.branches) + 1, place.chain, left.depth + place.at)
        branch.add([token], [confidence], [()], may_branch=False)
        branch.gains, branch.sibling_gains = [left.sibling_gains[place.at][place.rank]], [[]]
        self.branches.append(branch)
        self.places[place] = branch
        return branch

    def list_tips(self, most: int, *, max_branches: int) -> list[Tip]:
        """Return the leaves of the tree that can grow, the likeliest first, for tokens up to depth `most`.

        max_branches  chains besides the trunk that there may be: a drafter has a sequence for each
        """
        tips = [
            Tip(chain.gains[-1], chain.number)
            for chain in self.chains
            if not chain.ended and chain.depth + len(chain.tokens) < most
        ]
        new = [
            Tip(gain, chain.number, place)
            for chain in self.chains
            for index in chain.ends
            for rank, gain in enumerate(chain.sibling_gains[index])
            if chain.depth + index + 1 < most and (place := Place(chain.number, index, rank)) not in self.places
        ]
        new = sorted(new, key=by_gain)[: max_branches - len(self.branches)]
        return sorted([tip for tip in (*tips, *new) if tip.gain >= MIN_REACH], key=by_gain)

    def draft(self, length: int) -> Draft:
        """Return a draft of the chain's first `length` tokens alone."""
        if length == 0:
            return EMPTY
        tokens, confidences = tuple(self.tokens[:length]), tuple(self.confidences[:length])
        return Draft(tokens, CHAIN_PARENTS[length], confidences, self.drafter)

    def pending(self) -> PendingDraft:
        """Return the tree as it is judged by the text that follows."""
        pending = [PendingDraft(c.drafter, c.tokens, c.confidences, c.siblings, depth=c.depth) for c in self.chains]
        for place, branch in self.places.items():
            pending[place.chain].branches[place.at, place.rank] = pending[branch.number]
        return pending[0]


class Tip(NamedTuple):
    """A leaf of the tree, to draft after: the end of the branch that begins at `place`, or of a chain if
    that is None.
    """

    gain: float
    chain: int
    place: Place | None = None


def by_gain(tip: Tip) -> float:
    return -tip.gain


class Place(NamedTuple):
    """The place of a sibling in a tree: beside the token `at` of a chain; rank 0 is the second choice."""

    chain: int
    at: int
    rank: int


class TreeNode(NamedTuple):
    """A token of a chain (rank ROOT), or a sibling of it that begins no branch."""

    gain: float
    chain: int
    at: int
    rank: int = ROOT


def list_nodes(trunk: DraftChain, *, max_branches: int, room: int) -> list[TreeNode]:
    """Return the likeliest nodes of a tree, best first and parents before their children, at most `room`.

    max_branches  siblings that may be among them, whether or not they begin a branch: each needs a sequence of its own
    """
    chosen: list[TreeNode] = []
    begun, num_branches = {0}, 0
    for node in sorted(_iter_nodes(trunk), key=lambda node: (-node.gain, node.chain, node.at)):
        is_leaf = node.rank != ROOT
        if is_leaf or node.chain not in begun:
            left = node.chain if is_leaf else trunk.branches[node.chain - 1].parent
            if num_branches == max_branches or left not in begun:
                continue
            num_branches += 1
            begun.add(left if is_leaf else node.chain)
        chosen.append(node)
    return chosen[:room]


def _iter_nodes(trunk: DraftChain) -> Iterator[TreeNode]:
    for chain in trunk.chains:
        for index, gain in enumerate(chain.gains):
            yield TreeNode(gain, chain.number, index)
        for index, gains in enumerate(chain.sibling_gains):
            for rank, gain in enumerate(gains):
                if Place(chain.number, index, rank) not in trunk.places:
                    yield TreeNode(gain, chain.number, index, rank)


def make_draft(trunk: DraftChain, nodes: Sequence[TreeNode]) -> Draft:
    """Return the draft of these nodes, with the trunk's first, then those of the branches, then the other siblings."""
    if not nodes:
        return EMPTY
    chains, nodes = trunk.chains, sorted(nodes, key=_by_chain)
    numbers = {(node.chain, node.at): number for number, node in enumerate(nodes) if node.rank == ROOT}
    tokens, parents, confidences = [], [], []
    for node in nodes:
        chain = chains[node.chain]
        before = (node.chain, node.at - 1)
        if node.rank != ROOT:
            token, confidence = chain.siblings[node.at][node.rank]
        else:
            token, confidence = chain.tokens[node.at], chain.confidences[node.at]
            if node.at == 0:
                before = (chain.parent, chain.depth - chains[chain.parent].depth - 1)
        tokens.append(token)
        confidences.append(confidence)
        parents.append(numbers.get(before, ROOT))
    return Draft(tuple(tokens), tuple(parents), tuple(confidences), trunk.drafter)


def _by_chain(node: TreeNode) -> tuple[bool, int, int, int]:
    return node.rank != ROOT, node.chain, node.at, node.rank
