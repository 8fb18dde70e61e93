"""Draft by MTP layers that read the target's cache and keep none (Gemma 4's "assistant").

    target rows   0   1   2   3          h[3] waits for token 4
    draft root   (t4,h3) -> s -> child c5;   draft c5: (c5, s) -> s' -> c6 ...

All rows of a draft have the position of its root and attend to the target's cells before it; drafted tokens leave no
cells. Each slot keeps only the state of its newest row, asleep or awake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels, State
from eaglelocal.core.ports import HeadContext
from eaglelocal.drafters.drafter import Committed, Continuation, DraftTraits, Node, skip_rows
from eaglelocal.drafters.head_rows import HeadRows, decode_rows
from eaglelocal.drafters.newest_state import NewestStateDrafter


class DraftEnd(NamedTuple):
    """Position of a draft's root, and the state of the last row drafted."""

    root: int
    state: State


class TargetCacheDrafter(NewestStateDrafter[State]):
    """A drafter (drafters.drafter.Drafter) over one head context, whose sequences are the target's. Drafts chains."""

    def __init__(self, head: HeadContext, taps: tuple[int, ...]) -> None:
        super().__init__(head, DraftTraits(name="mtp", taps=taps))  # no margin: a prompt's last token is always decoded
        self._head = head
        self._ends: dict[int, DraftEnd] = {}  # by slot

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        rows = HeadRows()
        for node in nodes:
            self._add_row(node, rows)
        drafts = decode_rows(self._head, rows, nodes, branches=1, depth=depth, extra_levels=extra_levels)
        for node, draft in zip(nodes, drafts, strict=True):
            if node.slot in self._ends:
                self._ends[node.slot] = self._ends[node.slot]._replace(state=draft.state)
        return [draft.continuation for draft in drafts]

    def _add_row(self, node: Node, rows: HeadRows) -> None:
        """Add the row that proposes after the node, if there is a state for it."""
        if node.is_root:
            state = self.find_state(node)
            if state is None:
                return
            self._ends[node.slot] = DraftEnd(node.position, state)
        end = self._ends[node.slot]
        rows.add(node.slot, end.root, node.token, end.state)
        rows.mark_output(node)

    def read_states(self, committed: Sequence[Committed]) -> list[State]:
        return self._head.encode(
            [skip_rows(rows.features, len(rows.tokens) - 1) for rows in committed if rows.features is not None]
        )
