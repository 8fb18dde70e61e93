"""Rows of a head's decode while they are collected, and what the head drafts behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from eaglelocal.core.batch import NO_FURTHER, Further, PairBatch, State
from eaglelocal.core.ports import HeadContext
from eaglelocal.drafters.base import NOTHING, Continuation, Node, continuations


class Drafting(Protocol):
    """A slot that is drafted for; `state` is behind the last row drafted, which the next one reads."""

    state: State


class PairRows:
    """Rows of one head decode while they are collected."""

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

    def ask(self) -> None:
        """The last row's proposal is wanted."""
        self.outputs.append(len(self.tokens) - 1)

    def batch(self) -> PairBatch:
        return PairBatch(self.tokens, self.states, self.positions, self.sequences, self.outputs)

    def batches(self, size: int) -> list[PairBatch]:
        """Pieces of at most `size` rows, none of which asks for anything."""
        cuts = [slice(i, i + size) for i in range(0, len(self.tokens), size)]
        return [PairBatch(self.tokens[c], self.states[c], self.positions[c], self.sequences[c], []) for c in cuts]


def drafted(
    head: HeadContext,
    rows: PairRows,
    nodes: Sequence[Node],
    slots: Mapping[int, Drafting],
    *,
    branches: int,
    depth: int,
    further: Further = NO_FURTHER,
) -> list[Continuation]:
    """Behind each node; nothing for those whose slots had no row to ask at."""
    asked = [rows.sequences[row] for row in rows.outputs]
    if not asked:
        return [NOTHING for _ in nodes]
    said = head.decode(rows.batch(), branches, confident=True, depth=depth, further=further)
    for slot, state in zip(asked, said.states, strict=True):
        slots[slot].state = state
    found = dict(zip(asked, continuations(said, len(asked)), strict=True))
    return [found.get(node.slot, NOTHING) for node in nodes]
