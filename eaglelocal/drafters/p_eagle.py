"""Draft by P-EAGLE heads (vLLM blog, 2026-03-13): EAGLE heads that were trained to draft several tokens in one pass.

Rows of tokens that are not known yet hold a mask token, and one learned state in place of the target's:

    pairs         (t1,g0) (t2,g1) (t3,g2)
    draft root    (t4,g3)       -> token for 5
                  (mask,gm) x 2 -> tokens for 6 and 7

The root's pair is a true one and stays. The masks' cells come after it, where the next call writes: it replaces them,
as it does those of an EAGLE head's rejected draft. Everything else is as with EAGLE (eagle3.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels, State
from eaglelocal.core.ports import HeadContext
from eaglelocal.drafters.drafter import NOTHING, Continuation, Node, split_proposals
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.head_rows import HeadRows


class Mask(NamedTuple):
    """The rows of unknown tokens: their token, their state, and how many tokens a pass was trained to draft."""

    token: int
    state: State
    num_depths: int


class PEagle(Eagle3):
    """A drafter (drafters.drafter.Drafter) over one head context."""

    def __init__(
        self,
        head: HeadContext,
        taps: tuple[int, ...],
        mask: Mask,
        *,
        branches: int = 1,
        window: int | None = None,
        max_prompt_rows: int | None = None,
    ) -> None:
        super().__init__(head, taps, branches=branches, window=window, max_prompt_rows=max_prompt_rows)
        self.traits = replace(self.traits, name="p-eagle", block_size=mask.num_depths, max_depth=mask.num_depths)
        self._mask, self._rows_beside_pairs = mask, mask.num_depths

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        """Return a block after each root, and nothing after other nodes: no pass continues a block."""
        self._wake([node.slot for node in nodes if node.is_root])
        roots = [node for node in nodes if node.is_root and self._has_pairs(node)]
        if not roots:
            return [NOTHING for _ in nodes]
        num_waiting = sum([len(self._slots[root.slot].waiting_tokens) for root in roots])
        room = (self._head.n_batch - num_waiting) // len(roots)
        rows = self._make_rows(roots, min(depth, self._mask.num_depths, room))
        proposals = self._head.decode(rows.batch(), self._branches, confident=True)
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
