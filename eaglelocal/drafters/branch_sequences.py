"""The sequences of a drafter's cache in which the branches of a slot's tree are drafted.

A row attends to the cells of its own sequence, so every branch has one, which holds the path to it. It shares the cells
of the chain that it leaves; llama.cpp then only notes who has a cell. A branch keeps its share of the committed text
between drafts and extends it when it is used again, because sharing takes time for every cell of the cache.

    slot's own sequence   p0 p1 p2 | c1 c2 c3       | the root's pair is p2; what is drafted comes after it
    a branch at c2        p0 p1 p2 | c1 b2
"""

from __future__ import annotations

from eaglelocal.core.ports import Cache
from eaglelocal.drafters.drafter import Node


class BranchSequences:
    """The sequences of all slots' branches: num_branches for each slot, numbered after the slots' own."""

    def __init__(self, cache: Cache, num_slots: int = 0, num_branches: int = 0) -> None:
        self._cache, self._num_slots, self.num_branches = cache, num_slots, num_branches
        self._ends: dict[int, int] = {}  # of the committed cells that a branch shares, if it has any
        self._drafted: dict[int, list[int]] = {}  # branches with drafted cells, by slot

    def id_of(self, node: Node) -> int:
        """Return the sequence in which the node's chain is drafted."""
        return self._number(node.slot, node.chain)

    def _number(self, slot: int, chain: int) -> int:
        return self._num_slots + slot * self.num_branches + chain - 1 if chain else slot

    def open(self, node: Node, *, start: int, root_end: int, end: int) -> None:
        """Let the branch that begins with this node share cells start..end-1 of the chain that it leaves.

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
