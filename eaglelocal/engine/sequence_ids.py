"""Sequence ids for slots whose drafts are trees: a row's sequences, and the cells that stay after verification.

A row attends only to the cells of its first sequence in llama.cpp, so every leaf of a tree needs a sequence that
holds exactly the path to it. The trunk, which follows first children, uses the slot's own sequence; each other leaf
has a branch sequence, to which the root and the leaf's ancestors belong as well.

    root ── 0 ── 1 ── 2      rows   root      0        1     2     3     4
     │      └── 4            ids    s, a, b   s, b     s     s     a     b
     └── 3

Branches share the slot's cells. Sharing a long context again in each step would be expensive, because llama.cpp
updates every cell; so a branch keeps its shared cells between steps and is extended only when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from eaglelocal.core.draft import Draft
from eaglelocal.core.ports import Context
from eaglelocal.core.records import dataclass
from eaglelocal.scheduler.scheduler import Scheduler, StepPlan


class SequenceIds:
    """The branch sequences of all slots. Only this class removes target cells, from slots and branches alike."""

    def __init__(self, context: Context, num_slots: int) -> None:
        self._context = context
        per_slot = context.num_branches // num_slots
        self._ids = {
            slot: range(num_slots + slot * per_slot, num_slots + (slot + 1) * per_slot) for slot in range(num_slots)
        }
        self._shared = dict.fromkeys(range(num_slots, num_slots + per_slot * num_slots), 0)  # positions from 0 on

    def grow(self, slot: int, draft: Draft, position: int) -> list[tuple[int, ...]]:
        """Bring the branches up to date, and return the sequence ids of the root's row and of each node's row.

        position  of the root
        """
        leaves = draft.leaves
        ids = (slot, *self._ids[slot][: len(leaves) - 1])
        assert len(ids) == max(len(leaves), 1), f"a tree of {len(leaves)} leaves for {len(ids)} sequences"
        for branch in ids[1:]:
            if self._shared[branch] < position:
                self._context.share(slot, branch, self._shared[branch], position)
                self._shared[branch] = position
        return list_sequences(draft, leaves, ids)

    def keep(self, slot: int, draft: Draft, path: Sequence[int], position: int) -> None:
        """Remove rejected cells. The root at `position` and the accepted path stay, in the slot's own sequence."""
        if draft.is_chain:
            if len(path) < len(draft):
                self._context.remove(slot, position + 1 + len(path))
            return
        leaves = draft.leaves
        trunk = draft.path_to(leaves[0])
        on_trunk = len([node for node in path if node in trunk])
        if on_trunk < len(trunk):
            self._context.remove(slot, position + 1 + on_trunk)
        branches = self._ids[slot][: len(leaves) - 1]
        if on_trunk < len(path):
            accepted_branch = next(
                b for leaf, b in zip(leaves[1:], branches, strict=True) if path[-1] in draft.path_to(leaf)
            )
            self._context.share(accepted_branch, slot, position + 1 + on_trunk, position + 1 + len(path))
        for branch in branches:
            self._context.remove(branch, position + 1)
            self._shared[branch] = position + 1

    def cut(self, slot: int, position: int) -> None:
        """Remove the slot's cells from `position` on, in its branches too."""
        self._context.remove(slot, position)
        for branch in self._ids[slot]:
            if self._shared[branch] > position:
                self._context.remove(branch, position)
                self._shared[branch] = position

    def copy_slot(self, source: int, target: int, position: int) -> None:
        """Empty the target slot, then let it share the source slot's cells before `position`."""
        self.cut(target, 0)
        self._context.share(source, target, 0, position)

    def find_miscounted(self, slot: int, num_cached: int) -> list[int]:
        """Return the branches whose cells differ from those they should share, or that hold more than their slot."""
        num_cells = {branch: self._context.last_position(branch) + 1 for branch in self._ids[slot]}
        return [branch for branch, count in num_cells.items() if not self._shared[branch] == count <= num_cached]


def list_sequences(draft: Draft, leaves: Sequence[int], ids: Sequence[int]) -> list[tuple[int, ...]]:
    """Return, for the root's row and each node's row, the ids of all leaves at or below it."""
    sequences_by_row: list[list[int]] = [[ids[0]] if not leaves else [] for _ in range(1 + len(draft))]
    for leaf, sequence in zip(leaves, ids, strict=False):
        sequences_by_row[0].append(sequence)
        for node in draft.path_to(leaf):
            sequences_by_row[node + 1].append(sequence)
    return [tuple(sequences) for sequences in sequences_by_row]


# ---- padding rows: padding rows, added where a row costs less than another pass over the weights
# (speculation/costs/ubatch_split.py)
CountRows = Callable[[Mapping[int, int], Sequence[int], int], Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class PaddingRow:
    """Padding rows of one slot."""

    slot: int
    first: int  # position
    count: int
    token: int


def choose_padding(
    plan: StepPlan, drafts: Mapping[int, Draft], context: Context, scheduler: Scheduler, count_rows: CountRows
) -> list[PaddingRow]:
    """Return the padding rows of a step; none with prompt rows or in a single slot, where they would save no pass.

    count_rows  how many rows of which slots pay off: Controller.choose_padding_rows
    """
    prefixes = scheduler.prefix_cache
    if plan.prefill or context.is_unified or len(prefixes.slots) == 1:  # one cache is one pass
        return []
    decoding = {s.slot: 1 + len(drafts[s.slot]) for s in plan.decode}
    # padding is removed again, which decoding slots always allow, idle ones only if caches can be cut anywhere
    slots = range(len(prefixes.slots)) if prefixes.can_cut else ()
    idle = [slot for slot in slots if not scheduler.is_running(slot)]
    counts = count_rows(decoding, idle, context.undivided)
    if sum(decoding.values()) + sum(counts.values()) > context.n_batch:
        return []
    first = {slot: prefixes.num_cached(slot) + decoding.get(slot, 0) for slot in counts}
    n_ctx = context.n_ctx
    if any(first[s] + num > n_ctx or prefixes.slots[s].has_images for s, num in counts.items()):
        return []  # fewer padding rows would save no pass
    return [PaddingRow(slot, first[slot], count, token=0) for slot, count in counts.items()]
