"""Draft from the target's own hidden states, by EAGLE-3 and EAGLE-3.1 heads and MTP layers.

A sleeping slot keeps only its newest rows, and wakes from them in one encode call.

The head's cache holds at position P the pair (token[P+1], g[P]), where g[P] is the fused feature of the target at P.
The pair of the newest row waits until the next token is known, and is written by the call that drafts from it: a cycle
costs one encode, and one decode per drafted token.

    target rows   0   1   2   3          g[3] waits for token 4
    pairs         (t1,g0) (t2,g1) (t3,g2)
    draft root    (t4,g3) -> s3 -> child c5;   draft c5: (c5, s3) -> s4 -> c6 ...

An EAGLE head gets only the last rows of a long prompt: more rows hardly improve its drafts (docs/measured.md) and slow
down the prefill. Its pairs begin there.

For a head that was trained with a sliding window, pairs that have left the window are removed before each draft. The
window stays in place during a draft, so later rows see a few more cells.

backend/head_context.py applies the two norms that EAGLE-3.1 adds to EAGLE-3; an MTP layer gets the target's final state
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels, State
from eaglelocal.core.ports import HeadContext
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import MAX_DRAFT_TOKENS
from eaglelocal.drafters.branch_sequences import BranchSequences
from eaglelocal.drafters.drafter import Committed, Continuation, DraftTraits, Exchangeable, Node, skip_rows
from eaglelocal.drafters.row_buffer import MAX_BUFFERED, HeadDrafter, HeadRows, HeadSlot, RowBuffer, decode_rows
from eaglelocal.errors import EngineError

FEW_PAIRS = MAX_DRAFT_TOKENS + 1  # pairs that a step may leave; they are decoded together with the next draft
MAX_WAITING_PAIRS = 24  # beyond this, pairs are written without waiting for a draft


@dataclass(slots=True)
class EagleSlot(HeadSlot):
    """The draft state of a slot; positions are the target's. The cache holds pairs of committed tokens."""

    waiting_tokens: list[int] = field(default_factory=list)
    waiting_states: list[State] = field(default_factory=list)
    tail: State | None = None  # g of the newest committed row, whose next token is not known yet
    states: dict[tuple[int, int], State] = field(default_factory=dict)  # of rows drafted, by chain and position

    @property
    def end(self) -> int:
        return self.num_written + len(self.waiting_tokens)

    @property
    def num_bytes(self) -> int:
        """Bytes of states and buffered features."""
        buffered = 0 if self.buffered is None else self.buffered.num_bytes
        return sum(map(len, self.waiting_states)) + buffered

    def continues_with(self, rows: Committed) -> bool:
        """Return whether these rows follow the pairs without a hole. The first pair needs the state of the tail."""
        return not self.is_empty and rows.first_position <= self.end + (self.tail is not None)

    def cut(self, end: int) -> None:
        if self.end >= end:  # otherwise the cut is within the buffered rows, and the tail stays
            self.tail = None
        kept = max(end - self.num_written, 0)
        self.waiting_tokens, self.waiting_states = self.waiting_tokens[:kept], self.waiting_states[:kept]
        self.num_written = min(self.num_written, end)

    def copy(self) -> EagleSlot:
        tokens, states = list(self.waiting_tokens), list(self.waiting_states)
        return replace(HeadSlot.copy(self), waiting_tokens=tokens, waiting_states=states, states={})


class Eagle3(HeadDrafter[EagleSlot], Exchangeable):
    """A drafter over one head context, which holds a tree for each slot.

    num_choices      children of a node that are proposed
    sequences        of the head's cache, for chains besides the trunk; None: drafts are combs
    window           positions that a row attends to, its own included; None: all
    max_prompt_rows  newest rows of a prompt that the head gets; None: all
    """

    def __init__(
        self,
        head: HeadContext,
        taps: tuple[int, ...],
        *,
        num_choices: int = 1,
        sequences: BranchSequences | None = None,
        window: int | None = None,
        max_prompt_rows: int | None = None,
        name: str = "eagle3",
    ) -> None:
        # margin 1: the pair at the end of a reused prefix needs a feature that is not cached
        num_branches = 0 if sequences is None else sequences.num_branches
        traits = DraftTraits(name=name, taps=taps, reuse_margin=1, num_branches=num_branches, max_unread=MAX_BUFFERED)
        super().__init__(head, traits, EagleSlot, sequences)
        self._head, self._num_choices, self._window = head, num_choices, window
        self._max_prompt_rows = max_prompt_rows
        self._first_needed: dict[int, int] = {}  # position in the prompt, by slot
        self._rows_beside_pairs = traits.block_size  # of one slot in a call, besides the waiting pairs

    def begin(self, slot: int, owner: str, num_prompt: int) -> None:
        self._first_needed[slot] = 0 if self._max_prompt_rows is None else num_prompt - self._max_prompt_rows

    def end(self, slot: int) -> None:
        self._sequences.drop_drafted(slot)

    def catch_up(self, slots: Sequence[int]) -> int:
        return self._wake(slots) + self._write_queues(slots, FEW_PAIRS)

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        self._wake([node.slot for node in nodes if node.is_root])
        rows = HeadRows()
        for node in nodes:
            self._add_rows(node, rows)
        drafts = decode_rows(
            self._head, rows, nodes, num_choices=self._num_choices, depth=depth, extra_levels=extra_levels
        )
        for node, draft in zip(nodes, drafts, strict=True):
            last = node.position + len(draft.continuation.tokens) - 1  # the last token has no row yet
            self._slots[node.slot].states[node.chain, last] = draft.state
        return [draft.continuation for draft in drafts]

    def _add_rows(self, node: Node, rows: HeadRows) -> None:
        """Add the rows whose last one proposes the node's children; none if its state is missing."""
        slot = self._slots[node.slot]
        if not node.is_root:
            self._add_drafted(node, slot, rows)
            return
        slot.states = {}
        self._sequences.drop_drafted(node.slot)
        if slot.tail is None or not self._has_pairs(node):
            return
        self._drop_outside_window(node.slot, slot, node.position)
        self._flush_waiting(node.slot, slot, rows)
        rows.add(node.slot, node.position - 1, node.token, slot.tail)
        rows.mark_output(node)
        slot.num_written = node.position

    def _add_drafted(self, node: Node, slot: EagleSlot, rows: HeadRows) -> None:
        """Add the row of a drafted token, with the state of the preceding token of its path."""
        begins_branch = node.place == 0 and node.chain > 0
        if begins_branch:
            root_end, end = slot.num_written, node.position - 1
            self._sequences.open(node, start=slot.start, root_end=root_end, end=end)
        before = slot.states[node.parent if begins_branch else node.chain, node.position - 1]
        rows.add(self._sequences.id_of(node), node.position - 1, node.token, before)
        rows.mark_output(node)

    def _has_pairs(self, root: Node) -> bool:
        """Return whether all pairs before the root exist, and the state for the root's own pair."""
        slot = self._slots[root.slot]
        return slot.tail is not None and root.position == slot.end + 1

    def _drop_outside_window(self, index: int, slot: EagleSlot, position: int) -> None:
        """Remove the pairs before the window of the row at position - 1, written or waiting."""
        first = slot.start if self._window is None else position - self._window
        if first <= slot.start:
            return
        self._sequences.clear(index)
        self._head.forget(index, first)
        unwritten = max(first - slot.num_written, 0)
        del slot.waiting_tokens[:unwritten], slot.waiting_states[:unwritten]
        slot.start, slot.num_written = first, max(first, slot.num_written)

    def _flush_waiting(self, index: int, slot: EagleSlot, rows: HeadRows) -> None:
        """Move the waiting pairs into the batch; they replace the cells of a rejected draft."""
        for token, state in zip(slot.waiting_tokens, slot.waiting_states, strict=True):
            rows.add(index, slot.num_written, token, state)
            slot.num_written += 1
        slot.waiting_tokens, slot.waiting_states = [], []

    def commit(self, committed: Sequence[Committed]) -> None:
        committed = [rows for each in committed if (rows := self._drop_unneeded(each)) is not None]
        if committed:
            super().commit(committed)

    def _drop_unneeded(self, rows: Committed) -> Committed | None:
        """Drop the rows at a long prompt's beginning; None if no row is left."""
        unneeded = self._first_needed.get(rows.slot, 0) - rows.first_position
        if unneeded <= 0:
            return rows
        self._slots[rows.slot].buffered = None
        self._restart_at(rows.slot, rows.first_position + min(unneeded, len(rows.tokens)))
        if unneeded >= len(rows.tokens) or rows.features is None:
            return None
        features = skip_rows(rows.features, unneeded)
        return Committed(rows.slot, rows.first_position + unneeded, rows.tokens[unneeded:], features)

    def _encode_rows(self, committed: Sequence[Committed]) -> None:
        fused = self._head.encode([c.features for c in committed if c.features is not None])
        start = 0
        for rows in committed:
            self._queue_pairs(rows, fused[start : start + len(rows.tokens)])
            start += len(rows.tokens)
        self._write_long_queues()

    def _queue_pairs(self, rows: Committed, fused: list[State]) -> None:
        """Pair token i with the state before it, and skip pairs that the cache already holds."""
        slot = self._slots[rows.slot]
        for i, token in enumerate(rows.tokens):
            position = rows.first_position + i - 1
            if position < slot.end:
                continue
            state = slot.tail if i == 0 else fused[i - 1]
            if state is None and slot.is_empty:  # nothing precedes the first row of a text
                slot.start = slot.num_written = position + 1
                continue
            if state is None or position != slot.end:
                raise EngineError(f"hole in the draft cache of slot {rows.slot} at position {slot.end}")
            slot.waiting_tokens.append(token)
            slot.waiting_states.append(state)
        slot.tail = fused[-1]

    def _write_long_queues(self) -> None:
        """Decode long queues of pairs, so that the next drafts of all slots fit in one batch."""
        most = min(MAX_WAITING_PAIRS, max(self._head.n_batch // len(self._slots) - self._rows_beside_pairs, 0))
        self._write_queues(self._slots, most)

    def _write_queues(self, slots: Iterable[int], most: int) -> int:
        """Decode the queues of those slots that have more than `most` pairs, and return how many pairs that was."""
        num_written = 0
        for index in slots:
            slot = self._slots[index]
            if len(slot.waiting_tokens) <= most:
                continue
            num_written += len(slot.waiting_tokens)
            rows = HeadRows()
            self._flush_waiting(index, slot, rows)
            for batch in rows.batches(self._head.n_batch):
                self._head.decode(batch, 1, confident=False)
        return num_written

    def inherit(self, old: Eagle3) -> None:
        """Take over the rows of the target that `old` kept for sleeping slots; its states are of another encoder."""
        self._first_needed = old._first_needed
        for index, slot in old._slots.items():
            self._slots[index] = EagleSlot(buffered=slot.buffered and RowBuffer(slot.buffered))

    def attach(self) -> None:
        self._head.attach()
