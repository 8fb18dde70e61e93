"""Draft by Medusa heads (arXiv 2401.10774): several small heads, each of which drafts one token from the same state.

    target rows   0   1   2   3          h3, the state of row 3 after the output norm, gave the root at 4
    draft root    head 1 of h3 -> token for 5,  head 2 of h3 -> token for 6 ...

A token does not depend on those drafted before it. There is no cache: a slot keeps the state of its newest row only,
asleep or awake, so that any target will do, and no step is lost by waking. Where a decode gives no such states, as with
rows of a prompt, drafting waits for the next one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels, Features, Floats
from eaglelocal.core.ports import MedusaContext
from eaglelocal.core.records import dataclass
from eaglelocal.drafters.drafter import (
    NOTHING,
    Committed,
    ContextDrafter,
    Continuation,
    DraftTraits,
    Node,
    Swapped,
    skip_rows,
    split_proposals,
)


@dataclass(slots=True)
class MedusaSlot:
    """The draft state of a slot: `state` [n_embd] is the target's at the newest committed row, at position end - 1."""

    state: Floats | None = None
    end: int = 0


class Medusa(ContextDrafter):
    """A drafter (drafters.drafter.Drafter) over one head context.

    tap         the layer whose input is the state after the output norm
    block_size  heads: tokens of a draft
    branches    tokens that are proposed at each position
    """

    def __init__(self, head: MedusaContext, tap: int, *, block_size: int, branches: int = 1) -> None:
        # no margin: a prompt's last token is always decoded
        super().__init__(head, DraftTraits(name="medusa", taps=(tap,), block_size=block_size))
        self._head, self._branches = head, branches
        self._slots: defaultdict[int, MedusaSlot] = defaultdict(MedusaSlot)
        self.num_rows_to_wake = 0  # the newest state is taken over

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        """Return a block after each root, and nothing after other nodes: no pass continues a block."""
        states = {node.slot: state for node in nodes if (state := self._find_state(node)) is not None}
        if not states:
            return [NOTHING for _ in nodes]
        depth = min(depth, self.traits.block_size, self._head.max_rows // len(states))
        proposals = self._head.propose(list(states.values()), depth, self._branches)
        by_slot = dict(zip(states, split_proposals(proposals, len(states)), strict=True))
        return [by_slot.get(node.slot, NOTHING) if node.is_root else NOTHING for node in nodes]

    def _find_state(self, node: Node) -> Floats | None:
        """Return the state that gave the node; None where it is no root, or its state is not known."""
        slot = self._slots[node.slot]
        return slot.state if node.is_root and node.position == slot.end else None

    def commit(self, committed: Sequence[Committed]) -> None:
        for rows in committed:
            num_rows = len(rows.tokens)
            state = None if rows.features is None else copy_state(skip_rows(rows.features, num_rows - 1))
            self._slots[rows.slot] = MedusaSlot(state, rows.first_position + num_rows)

    def buffer(self, committed: Sequence[Committed]) -> None:
        self.commit(committed)

    def inherit(self, old: Medusa) -> None:
        """Take over the target's states, which every head of this kind reads."""
        self._slots = old._slots

    def attach(self) -> None:
        """Do nothing: the states are read from the slots."""

    def skip(self, image: Committed) -> None:
        """Forget the slot: drafting starts over after the image."""
        self.rollback(image.slot, 0)

    def rollback(self, slot: int, position: int) -> None:
        if position < self._slots[slot].end:
            self._slots[slot] = MedusaSlot()

    def copy_slot(self, source: int, target: int, position: int) -> None:
        self._slots[target] = replace(self._slots[source])
        self.rollback(target, position)

    def swapped_bytes(self, slot: int) -> int:
        return 0

    def swap_out(self, slot: int) -> Swapped[MedusaSlot]:
        return Swapped(replace(self._slots[slot]))

    def swap_in(self, slot: int, swapped: Swapped[MedusaSlot], tokens: Sequence[int]) -> None:
        self._slots[slot] = replace(swapped.state)


def copy_state(row: Features | Floats) -> Floats:
    """Return an owned copy [n_embd] of the one tap of one row."""
    copied: Floats = row.copy() if isinstance(row, np.ndarray) else row.copied()
    return copied.reshape(-1)
