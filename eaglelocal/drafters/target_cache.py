"""Draft by MTP layers that read the target's cache and keep none (Gemma 4's "assistant").

    target rows   0   1   2   3          h[3] waits for token 4
    draft root   (t4,h3) -> s -> child c5;   draft c5: (c5, s) -> s' -> c6 ...

All rows of a draft have the position of its root and attend to the target's cells before it; drafted tokens leave no
cells. Each slot keeps only the state of its newest row, asleep or awake.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels, State
from eaglelocal.core.ports import HeadContext
from eaglelocal.core.records import dataclass
from eaglelocal.drafters.drafter import Committed, ContextDrafter, Continuation, DraftTraits, Node, Swapped, skip_rows
from eaglelocal.drafters.head_rows import HeadRows, decode_rows


@dataclass(slots=True)
class TargetCacheSlot:
    """The draft state of a slot: `tail` is the target's state at the newest committed row, at position end - 1."""

    tail: State | None = None
    end: int = 0
    root: int = 0  # position of the draft's root
    state: State = b""  # of the last row drafted


class TargetCacheDrafter(ContextDrafter):
    """A drafter (drafters.drafter.Drafter) over one head context, whose sequences are the target's. Drafts chains."""

    def __init__(self, head: HeadContext, taps: tuple[int, ...]) -> None:
        super().__init__(head, DraftTraits(name="mtp", taps=taps))  # no margin: a prompt's last token is always decoded
        self._head = head
        self._slots: defaultdict[int, TargetCacheSlot] = defaultdict(TargetCacheSlot)

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        rows = HeadRows()
        for node in nodes:
            self._add_row(node, rows)
        drafts = decode_rows(self._head, rows, nodes, branches=1, depth=depth, extra_levels=extra_levels)
        for node, draft in zip(nodes, drafts, strict=True):
            self._slots[node.slot].state = draft.state
        return [draft.continuation for draft in drafts]

    def _add_row(self, node: Node, rows: HeadRows) -> None:
        """Add the row that proposes after the node, if there is a state for it."""
        slot = self._slots[node.slot]
        if node.is_root:
            if slot.tail is None or node.position != slot.end:
                return
            slot.root, slot.state = node.position, slot.tail
        rows.add(node.slot, slot.root, node.token, slot.state)
        rows.mark_output(node)

    def commit(self, committed: Sequence[Committed]) -> None:
        states = self._head.encode(
            [skip_rows(rows.features, len(rows.tokens) - 1) for rows in committed if rows.features is not None]
        )
        for rows, state in zip(committed, states, strict=True):
            slot = self._slots[rows.slot]
            slot.tail, slot.end = state, rows.first_position + len(rows.tokens)

    def buffer(self, committed: Sequence[Committed]) -> None:
        self.commit(committed)

    def skip(self, image: Committed) -> None:
        """Forget the slot: drafting starts over after the image."""
        self.rollback(image.slot, 0)

    def rollback(self, slot: int, position: int) -> None:
        if position < self._slots[slot].end:
            self._slots[slot] = TargetCacheSlot()

    def copy_slot(self, source: int, target: int, position: int) -> None:
        self._slots[target] = replace(self._slots[source])
        self.rollback(target, position)

    def swapped_bytes(self, slot: int) -> int:
        return 0

    def swap_out(self, slot: int) -> Swapped[TargetCacheSlot]:
        return Swapped(replace(self._slots[slot]))

    def swap_in(self, slot: int, swapped: Swapped[TargetCacheSlot], tokens: Sequence[int]) -> None:
        self._slots[slot] = replace(swapped.state)
