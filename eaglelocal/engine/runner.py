"""Builds one batch from the step's plan, drafts and padding, submits and collects its decode.

Records which slot each row belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Several
from operator import attrgetter

from eaglelocal.core.batch import Batch, Features, Outputs
from eaglelocal.core.draft import FORCED, Draft
from eaglelocal.core.ports import Context
from eaglelocal.core.records import dataclass
from eaglelocal.core.sequence import Sequence
from eaglelocal.engine.sequence_ids import PaddingRow, SequenceIds
from eaglelocal.scheduler.scheduler import Chunk, StepPlan
from eaglelocal.speculation.costs.ubatch_split import split_rows

BY_SLOT = attrgetter("slot")


@dataclass(frozen=True, slots=True)
class SubmittedRows:
    """The rows of a target decode. `rows[slot]` are batch rows: the root's and its nodes', or a prompt chunk's."""

    rows: dict[int, list[int]]
    num_rows: int
    padding: Several[PaddingRow]
    num_passes: int  # over the weights

    @property
    def num_padding_rows(self) -> int:
        return sum([part.count for part in self.padding])


@dataclass(frozen=True, slots=True)
class Decoded(SubmittedRows):
    """The result of a target decode."""

    outputs: Outputs

    def features(self, rows: list[int]) -> Features | None:
        return self.outputs.features(rows)


class Runner:
    """Runs target decodes. Rows are ordered by slot: only in that order does llama.cpp join slots into one pass."""

    def __init__(self, context: Context, sequence_ids: SequenceIds) -> None:
        self._context, self._sequence_ids = context, sequence_ids

    def submit(self, plan: StepPlan, drafts: Mapping[int, Draft], padding: Several[PaddingRow] = ()) -> SubmittedRows:
        """Start to decode the rows of a step. Raises ResourceError."""
        self._context.use_adapters(plan.adapters)
        batch = Batch([], [], [], [])
        rows: dict[int, list[int]] = {}
        parts: list[Sequence | Chunk | PaddingRow] = [*plan.decode, *plan.prefill, *padding]
        for part in sorted(parts, key=BY_SLOT):  # the sort is stable: padding follows its slot's rows
            match part:
                case Sequence():
                    rows[part.slot] = self._add_draft(batch, part, drafts[part.slot])
                case Chunk():
                    rows[part.slot] = add_rows(batch, part.slot, part.first, part.tokens)
                    batch.outputs[-1] = part.is_last  # the answer begins after it
                case PaddingRow():
                    add_rows(batch, part.slot, part.first, [part.token] * part.count)
        self._context.submit(batch)
        counts = count_rows(rows, padding)
        num_passes = 1 if self._context.is_unified else len(split_rows(counts, self._context.undivided))
        return SubmittedRows(rows, len(batch.tokens), padding, num_passes)

    def collect(self, submitted: SubmittedRows) -> Decoded:
        """Wait until the rows are decoded, and return the result. Raises ResourceError."""
        outputs = self._context.collect()
        for part in submitted.padding:
            self._context.remove(part.slot, part.first)
        return Decoded(submitted.rows, submitted.num_rows, submitted.padding, submitted.num_passes, outputs)

    def _add_draft(self, batch: Batch, sequence: Sequence, draft: Draft) -> list[int]:
        """Add the rows of the root and of every node, positioned by depth; return their indices."""
        first, position, slot = len(batch.tokens), len(sequence.tokens) - 1, sequence.slot
        rows = add_rows(batch, slot, position, [sequence.tokens[-1], *draft.tokens])
        batch.outputs[first:] = [draft.drafter != FORCED] * len(draft) + [True]
        if not draft.is_chain:
            batch.positions[first + 1 :] = [position + depth for depth in draft.depths]
            batch.sequences[first:] = self._sequence_ids.grow(slot, draft, position)
        return rows


def count_rows(rows: Mapping[int, list[int]], padding: Several[PaddingRow]) -> dict[int, int]:
    """Return the number of batch rows of each slot, padding included."""
    counts = {slot: len(own) for slot, own in rows.items()}
    for part in padding:
        counts[part.slot] = counts.get(part.slot, 0) + part.count
    return counts


def add_rows(batch: Batch, slot: int, first_position: int, tokens: list[int]) -> list[int]:
    """Add rows of consecutive positions in one slot, without outputs; return their indices."""
    first, n = len(batch), len(tokens)
    batch.tokens.extend(tokens)
    batch.positions.extend(range(first_position, first_position + n))
    batch.sequences.extend([(slot,)] * n)
    batch.outputs.extend([False] * n)
    return list(range(first, first + n))
