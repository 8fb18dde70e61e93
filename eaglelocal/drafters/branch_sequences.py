"""The sequences of a drafter's cache in which the branches of a slot's tree are drafted.

A row attends to the cells of its own sequence, so every branch has one, which holds the path to it. It shares the cells
of the chain that it leaves; llama.cpp then only notes who has a cell. A branch keeps its share of the committed text
between drafts and extends it when it is used again, because sharing takes time for every cell of the cache.

    slot's own sequence   p0 p1 p2 | c1 c2 c3       | the root's pair is p2; what is drafted comes after it
    a branch at c2        p0 p1 p2 | c1 b2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels, State
from eaglelocal.core.ports import HeadContext
from eaglelocal.drafters.drafter import Committed, Continuation, DraftTraits, Node, skip_rows
from eaglelocal.drafters.row_buffer import HeadRows, NewestStateDrafter, decode_rows


class SharingCache(Protocol):
    """A cache in which a cell can belong to several sequences."""

    def remove(self, sequence: int, first_position: int) -> None: ...

    def share(self, source: int, target: int, first: int, end: int) -> None: ...


class BranchSequences:
    """The sequences of all slots' branches: num_branches for each slot, numbered after the slots' own."""

    def __init__(self, cache: SharingCache, num_slots: int = 0, num_branches: int = 0) -> None:
        self._cache, self._num_slots, self.num_branches = cache, num_slots, num_branches
        self._ends: dict[int, int] = {}  # of the committed cells that a branch shares, if it has any
        self._drafted: dict[int, list[int]] = {}  # branches with drafted cells, by slot

    def id_of(self, node: Node) -> int:
        """Return the sequence in which the node's chain is drafted."""
        return self._number(node.slot, node.chain)

    def _number(self, slot: int, chain: int) -> int:
        return self._num_slots + slot * self.num_branches + chain - 1 if chain else slot

    def open(self, node: Node, *, start: int, root_end: int, end: int) -> None:
        """Let the branch that begins with this node share the path to it: the cells start..end-1 of the chain it
        leaves.

        root_end  position after the last cell that stays, however verification ends
        """
        sequence = self.id_of(node)
        self._cache.share(self._number(node.slot, node.parent), sequence, self._ends.get(sequence, start), end)
        self._ends[sequence] = root_end
        self._drafted.setdefault(node.slot, []).append(sequence)

    def drop_drafted(self, slot: int) -> None:
        """Remove the last draft's cells from the slot's branches."""
        for sequence in self._drafted.pop(slot, ()):
            self._cache.remove(sequence, self._ends[sequence])

    def cut(self, slot: int, position: int) -> None:
        """Remove the cells of the slot's branches from a position on."""
        self._drafted.pop(slot, None)
        first = self._number(slot, 1)
        for sequence in range(first, first + self.num_branches):
            if sequence in self._ends:
                self._cache.remove(sequence, min(position, self._ends[sequence]))
                self._ends[sequence] = min(position, self._ends[sequence])

    def clear(self, slot: int) -> None:
        """Empty the slot's branches."""
        self.cut(slot, 0)
        first = self._number(slot, 1)
        for sequence in range(first, first + self.num_branches):
            self._ends.pop(sequence, None)


# ---- target cache: draft by MTP layers that read the target's cache and keep none (Gemma 4's "assistant")
#
# target rows 0 1 2 3 h[3] waits for token 4 draft root (t4,h3) -> s -> child c5; draft c5: (c5, s) -> s' -> c6 ...
#
# All rows of a draft have the position of its root and attend to the target's cells before it; drafted tokens leave
# no cells. Each slot keeps only the state of its newest row, asleep or awake.
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
        drafts = decode_rows(self._head, rows, nodes, num_choices=1, depth=depth, extra_levels=extra_levels)
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
