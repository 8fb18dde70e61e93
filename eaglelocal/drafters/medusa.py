"""Draft by Medusa heads (arXiv 2401.10774): several small heads, each of which drafts one token from the same state.

    target rows   0   1   2   3          h3, the state of row 3 after the output norm, gave the root at 4
    draft root    head 1 of h3 -> token for 5,  head 2 of h3 -> token for 6 ...

A token does not depend on those drafted before it. There is no cache: a slot keeps the state of its newest row only,
asleep or awake, so that any target will do, and no step is lost by waking. Where a decode gives no such states, as with
rows of a prompt, drafting waits for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels, Floats
from eaglelocal.core.ports import MedusaContext
from eaglelocal.drafters.drafter import (
    NOTHING,
    Committed,
    Continuation,
    DraftTraits,
    Node,
    skip_rows,
    split_proposals,
)
from eaglelocal.drafters.newest_state import NewestStateDrafter


class Medusa(NewestStateDrafter[Floats]):
    """A drafter (drafters.drafter.Drafter) over one head context. A slot's state is [n_embd].

    tap         the layer whose input is the state after the output norm
    block_size  heads: tokens of a draft
    branches    tokens that are proposed at each position
    """

    def __init__(self, head: MedusaContext, tap: int, *, block_size: int, branches: int = 1) -> None:
        # no margin: a prompt's last token is always decoded
        super().__init__(head, DraftTraits(name="medusa", taps=(tap,), block_size=block_size, max_depth=block_size))
        self._head, self._branches = head, branches
        self.num_rows_to_wake = 0  # the newest state is taken over

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        """Return a block after each root, and nothing after other nodes: no pass continues a block."""
        roots = [node for node in nodes if node.is_root]
        states = {root.slot: state for root in roots if (state := self.find_state(root)) is not None}
        if not states:
            return [NOTHING for _ in nodes]
        depth = min(depth, self.traits.block_size, self._head.max_rows // len(states))
        proposals = self._head.propose(list(states.values()), depth, self._branches)
        by_slot = dict(zip(states, split_proposals(proposals, len(states)), strict=True))
        return [by_slot.get(node.slot, NOTHING) if node.is_root else NOTHING for node in nodes]

    def read_states(self, committed: Sequence[Committed]) -> list[Floats | None]:
        return [copy_state(rows) for rows in committed]

    def inherit(self, old: Medusa) -> None:
        """Take over the target's states, which every head of this kind reads."""
        self._slots = old._slots

    def attach(self) -> None:
        """Do nothing: the states are read from the slots."""


def copy_state(rows: Committed) -> Floats | None:
    """Return an owned copy [n_embd] of the one tap of the last row; None: the decode gave no states."""
    if rows.features is None:
        return None
    row = skip_rows(rows.features, len(rows.tokens) - 1)
    copied: Floats = row.copy() if isinstance(row, np.ndarray) else row.copied()
    return copied.reshape(-1)
