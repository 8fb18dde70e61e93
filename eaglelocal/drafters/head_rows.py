"""Collect the rows of a head's decode, and draft after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels, PairBatch, State
from eaglelocal.core.ports import HeadContext
from eaglelocal.drafters.drafter import NOTHING, Continuation, Node, split_proposals


class HeadDraft(NamedTuple):
    """A head's proposal after a node, and the state of the last row, which the next one reads."""

    continuation: Continuation
    state: State = b""


class HeadRows:
    """The rows of one head decode while they are collected."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.states: list[State] = []
        self.positions: list[int] = []
        self.sequences: list[int] = []
        self.outputs: list[int] = []
        self.nodes: list[Node] = []  # of the output rows

    def add(self, sequence: int, position: int, token: int, state: State) -> None:
        self.tokens.append(token)
        self.states.append(state)
        self.positions.append(position)
        self.sequences.append(sequence)

    def mark_output(self, node: Node) -> None:
        """Make the last row an output row, whose proposal is returned: that of this node."""
        self.outputs.append(len(self.tokens) - 1)
        self.nodes.append(node)

    def batch(self) -> PairBatch:
        return PairBatch(self.tokens, self.states, self.positions, self.sequences, self.outputs)

    def batches(self, size: int) -> list[PairBatch]:
        """Return the rows in batches of at most `size`, without output rows."""
        cuts = [slice(i, i + size) for i in range(0, len(self.tokens), size)]
        return [PairBatch(self.tokens[c], self.states[c], self.positions[c], self.sequences[c], []) for c in cuts]


def decode_rows(
    head: HeadContext,
    rows: HeadRows,
    nodes: Sequence[Node],
    *,
    branches: int,
    depth: int,
    extra_levels: ExtraLevels = NO_EXTRA_LEVELS,
) -> list[HeadDraft]:
    """Decode the rows, and return what the head proposes after each node; NOTHING where it has no output row."""
    if not rows.outputs:
        return [HeadDraft(NOTHING) for _ in nodes]
    proposals = head.decode(rows.batch(), branches, confident=True, depth=depth, extra_levels=extra_levels)
    proposed = map(HeadDraft, split_proposals(proposals, len(rows.outputs)), proposals.states)
    by_node = dict(zip(rows.nodes, proposed, strict=True))
    return [by_node.get(node, HeadDraft(NOTHING)) for node in nodes]
