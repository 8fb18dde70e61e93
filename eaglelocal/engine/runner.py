"""From what was decided to one target decode: rows out, and which row belongs to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eaglelocal.core.batch import Batch, Features, Outputs
from eaglelocal.core.draft import Draft
from eaglelocal.core.ports import Context
from eaglelocal.core.sequence import Sequence
from eaglelocal.scheduler.scheduler import StepPlan


@dataclass(frozen=True, slots=True)
class Decoded:
    """One target decode. `rows[slot]` are batch rows: the root's and its nodes', or a prompt chunk's."""

    outputs: Outputs
    rows: dict[int, list[int]]
    num_rows: int

    def features(self, rows: list[int]) -> Features | None:
        return self.outputs.features(rows)


class Runner:
    """Owns the order of rows: drafts first, slot by slot, then prompt chunks."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def run(self, plan: StepPlan, drafts: Mapping[int, Draft]) -> Decoded:
        batch = Batch([], [], [], [])
        rows: dict[int, list[int]] = {}
        for sequence in plan.decode:
            rows[sequence.slot] = add_draft(batch, sequence, drafts[sequence.slot])
        for chunk in plan.prefill:
            first = len(batch)
            add_rows(batch, chunk.sequence.slot, chunk.first, chunk.tokens)
            rows[chunk.sequence.slot] = list(range(first, len(batch)))
            batch.outputs[-1] = chunk.is_last
        return Decoded(self._context.decode(batch), rows, len(batch))


def add_draft(batch: Batch, sequence: Sequence, draft: Draft) -> list[int]:
    """Rows of the root and of every node; a node's position follows from its depth."""
    assert draft.is_chain, "trees need sequences for their branches"
    first = len(batch)
    add_rows(batch, sequence.slot, len(sequence.tokens) - 1, [sequence.tokens[-1], *draft.tokens])
    batch.outputs[first:] = [True] * (1 + len(draft))
    return list(range(first, len(batch)))


def add_rows(batch: Batch, slot: int, first_position: int, tokens: list[int]) -> None:
    n = len(tokens)
    batch.tokens.extend(tokens)
    batch.positions.extend(range(first_position, first_position + n))
    batch.sequences.extend([(slot,)] * n)
    batch.outputs.extend([False] * n)
