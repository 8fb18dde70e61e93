"""Draft by heads that fill a block at a time (DFlash, DFlash2, DSpark): all tokens of a draft in one pass.

    target rows   0   1   2   3          features go into the head's cache as they are committed
    block         root at 4, masks at 5 6 7   ->  tokens for 5 6 7 8, or for 5 6 7 if the root's row predicts nothing

No row waits for the token after it. A sleeping slot keeps only its newest rows and wakes from them, as with EAGLE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels, FeatureRows, Floats, Roots, State
from eaglelocal.core.ports import BlockContext, HeadContext, MedusaContext
from eaglelocal.drafters.drafter import (
    NOTHING,
    Committed,
    Continuation,
    DraftTraits,
    Exchangeable,
    Node,
    skip_rows,
    split_proposals,
)
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.row_buffer import MAX_BUFFERED, HeadDrafter, HeadRows, HeadSlot, NewestStateDrafter
from eaglelocal.errors import EngineError


class BlockDrafter(HeadDrafter[HeadSlot]):
    """A drafter over one head context.

    block_size   tokens of a block
    num_choices  tokens that are proposed at each position; drafting goes on after the best
    """

    def __init__(self, head: BlockContext, taps: tuple[int, ...], *, block_size: int, num_choices: int = 1) -> None:
        # no margin: the features of a reused prefix are in the cache
        traits = DraftTraits(
            name="dflash", taps=taps, block_size=block_size, max_depth=block_size, max_unread=MAX_BUFFERED
        )
        super().__init__(head, traits, HeadSlot)
        self._head, self._num_choices = head, num_choices

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        """Return a block after each root, and nothing after other nodes: a block cannot be continued."""
        self._wake([node.slot for node in nodes if node.is_root])
        roots = [node for node in nodes if node.is_root and self._is_complete(node)]
        if not roots:
            return [NOTHING for _ in nodes]
        batch = Roots([n.token for n in roots], [n.position for n in roots], [n.slot for n in roots])
        proposed = split_proposals(
            self._head.fill(batch, min(depth, self.traits.block_size), self._num_choices), len(roots)
        )
        by_slot = dict(zip(batch.sequences, proposed, strict=True))
        return [by_slot.get(node.slot, NOTHING) for node in nodes]

    def _is_complete(self, root: Node) -> bool:
        """Return whether the cache holds everything before the root."""
        slot = self._slots[root.slot]
        return not slot.is_empty and slot.end == root.position

    def _encode_rows(self, committed: Sequence[Committed]) -> None:
        pieces = [piece for rows in committed if (piece := self._new_rows(rows)) is not None]
        if pieces:
            self._head.show(pieces)

    def _new_rows(self, rows: Committed) -> FeatureRows | None:
        slot, features = self._slots[rows.slot], rows.features
        if slot.is_empty:
            slot.start = slot.num_written = rows.first_position
        if rows.first_position > slot.end:
            raise EngineError(f"hole in the draft cache of slot {rows.slot} at position {slot.end}")
        num_cached = slot.end - rows.first_position
        if features is None or num_cached >= len(rows.tokens):
            return None
        slot.num_written = rows.first_position + len(rows.tokens)
        return FeatureRows(rows.slot, rows.first_position + num_cached, skip_rows(features, num_cached))


# ---- medusa: draft by Medusa heads (arXiv 2401.10774): several small heads, each of which drafts one token from the
# same state
#
# target rows 0 1 2 3 h3, the state of row 3 after the output norm, gave the root at 4 draft root head 1 of h3 ->
# token for 5, head 2 of h3 -> token for 6 ...
#
# A token does not depend on those drafted before it. There is no cache: a slot keeps the state of its newest row
# only, asleep or awake, so any target will do, and waking costs no step. Where a decode gives no such
# states, as with rows of a prompt, drafting waits for the next one.
class Medusa(NewestStateDrafter[Floats], Exchangeable):
    """A drafter over one head context. A slot's state is [n_embd].

    tap          the layer whose input is the state after the output norm
    block_size   heads: tokens of a draft
    num_choices  tokens that are proposed at each position
    """

    def __init__(self, head: MedusaContext, tap: int, *, block_size: int, num_choices: int = 1) -> None:
        # no margin: a prompt's last token is always decoded
        super().__init__(head, DraftTraits(name="medusa", taps=(tap,), block_size=block_size, max_depth=block_size))
        self._head, self._num_choices = head, num_choices

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        """Return a block after each root, and nothing after other nodes: a block cannot be continued."""
        roots = [node for node in nodes if node.is_root]
        states = {root.slot: state for root in roots if (state := self.find_state(root)) is not None}
        if not states:
            return [NOTHING for _ in nodes]
        depth = min(depth, self.traits.block_size, self._head.max_rows // len(states))
        proposals = self._head.propose(list(states.values()), depth, self._num_choices)
        by_slot = dict(zip(states, split_proposals(proposals, len(states)), strict=True))
        return [by_slot.get(node.slot, NOTHING) if node.is_root else NOTHING for node in nodes]

    def read_states(self, committed: Sequence[Committed]) -> list[Floats | None]:
        return [copy_state(rows) for rows in committed]

    def inherit(self, old: Medusa) -> None:
        """Take over the target's states, which every head of this kind reads."""
        self._slots = old._slots


def copy_state(rows: Committed) -> Floats | None:
    """Return an owned copy [n_embd] of the one tap of the last row; None: the decode gave no states."""
    if rows.features is None:
        return None
    row = skip_rows(rows.features, len(rows.tokens) - 1)
    copied: Floats = row.copy() if isinstance(row, np.ndarray) else row.copied()
    return copied.reshape(-1)


# ---- p eagle: draft by P-EAGLE heads (vLLM blog, 2026-03-13): EAGLE heads that were trained to draft several tokens
# in one pass
#
# Rows of tokens that are not known yet hold a mask token, and one learned state in place of the target's:
#
# pairs (t1,g0) (t2,g1) (t3,g2) draft root (t4,g3) -> token for 5 (mask,gm) x 2 -> tokens for 6 and 7
#
# The root's pair is a true one and stays. The masks' cells come after it, where the next call writes: it replaces
# them, as it does those of an EAGLE head's rejected draft. Everything else is as with EAGLE (eagle3.py).
class Mask(NamedTuple):
    """The rows of unknown tokens: their token, their state, and how many tokens a pass was trained to draft."""

    token: int
    state: State
    num_depths: int


class PEagle(Eagle3):
    """A drafter over one head context."""

    def __init__(
        self,
        head: HeadContext,
        taps: tuple[int, ...],
        mask: Mask,
        *,
        num_choices: int = 1,
        window: int | None = None,
        max_prompt_rows: int | None = None,
    ) -> None:
        super().__init__(head, taps, num_choices=num_choices, window=window, max_prompt_rows=max_prompt_rows)
        self.traits = replace(self.traits, name="p-eagle", block_size=mask.num_depths, max_depth=mask.num_depths)
        self._mask, self._rows_beside_pairs = mask, mask.num_depths

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        """Return a block after each root, and nothing after other nodes: a block cannot be continued."""
        self._wake([node.slot for node in nodes if node.is_root])
        roots = [node for node in nodes if node.is_root and self._has_pairs(node)]
        if not roots:
            return [NOTHING for _ in nodes]
        num_waiting = sum([len(self._slots[root.slot].waiting_tokens) for root in roots])
        room = (self._head.n_batch - num_waiting) // len(roots)
        rows = self._make_rows(roots, min(depth, self._mask.num_depths, room))
        proposals = self._head.decode(rows.batch(), self._num_choices, confident=True)
        by_slot = dict(zip([root.slot for root in roots], split_proposals(proposals, len(roots)), strict=True))
        return [by_slot.get(node.slot, NOTHING) for node in nodes]

    def _make_rows(self, roots: Sequence[Node], depth: int) -> HeadRows:
        """Return the rows that propose `depth` tokens after each root; output rows are listed level by level."""
        rows = HeadRows()
        for root in roots:
            self._add_rows(root, rows)
            for position in range(root.position, root.position + depth - 1):
                rows.add(root.slot, position, self._mask.token, self._mask.state)
        firsts = rows.outputs
        rows.outputs = [first + level for level in range(depth) for first in firsts]
        return rows
