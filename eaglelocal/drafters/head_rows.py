"""Collect the rows of a head's decode, and draft after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels, PairBatch, State
from eaglelocal.core.ports import HeadContext
from eaglelocal.drafters.drafter import NOTHING, Continuation, Node, split_proposals


class DraftingSlot(Protocol):
    """A slot that is drafted for; `state` is that of the last row drafted, which the next one reads."""

    state: State


class HeadRows:
    """The rows of one head decode while they are collected."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.states: list[State] = []
        self.positions: list[int] = []
        self.sequences: list[int] = []
        self.outputs: list[int] = []

    def add(self, slot: int, position: int, token: int, state: State) -> None:
        self.tokens.append(token)
        self.states.append(state)
        self.positions.append(position)
        self.sequences.append(slot)

    def mark_output(self) -> None:
        """Make the last row an output row, whose proposal is returned."""
        self.outputs.append(len(self.tokens) - 1)

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
    slots: Mapping[int, DraftingSlot],
    *,
    branches: int,
    depth: int,
    extra_levels: ExtraLevels = NO_EXTRA_LEVELS,
) -> list[Continuation]:
    """Decode the rows, and return what the head proposes after each node; NOTHING where its slot has no output row."""
    output_slots = [rows.sequences[row] for row in rows.outputs]
    if not output_slots:
        return [NOTHING for _ in nodes]
    proposals = head.decode(rows.batch(), branches, confident=True, depth=depth, extra_levels=extra_levels)
    for slot, state in zip(output_slots, proposals.states, strict=True):
        slots[slot].state = state
    by_slot = dict(zip(output_slots, split_proposals(proposals, len(output_slots)), strict=True))
    return [by_slot.get(node.slot, NOTHING) for node in nodes]
