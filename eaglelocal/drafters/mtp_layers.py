"""Draft by MTP layers that were trained for one position each (Step 3.5, MiMo-V2): layer k drafts the k-th token.

    pairs           (t1,h0) (t2,h1) (t3,h2)
    layer 0         (t4,h3) -> s4 -> child c5
    layer 1         (t4,h3) (c5,s4) -> s5 -> c6
    layer 2         (t4,h3) (c5,s4) (c6,s5) -> c7

Each layer has keys and values of its own. The pairs of the target's tokens and states, which eagle3.py collects, are
written for all layers in the call that drafts from them. Each layer computes the rows of all drafted tokens before its
own. Nothing is drafted after the last layer's token. Source: `chain_heads` of common/speculative.cpp, llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eaglelocal.core.batch import NO_EXTRA_LEVELS, ExtraLevels, State
from eaglelocal.core.ports import HeadContext
from eaglelocal.drafters.drafter import NOTHING, Committed, Continuation, DraftTraits, Node, skip_rows, split_proposals
from eaglelocal.drafters.eagle3 import Eagle3, EagleSlot
from eaglelocal.drafters.row_buffer import HeadRows, NewestStateDrafter, decode_rows


class MtpLayers(Eagle3):
    """A drafter over the head context of `num_layers` layers. Drafts chains."""

    def __init__(self, head: HeadContext, taps: tuple[int, ...], num_layers: int, *, num_choices: int = 1) -> None:
        super().__init__(head, taps, num_choices=num_choices, name="mtp")
        self.traits = replace(self.traits, max_depth=num_layers)
        self._rows_beside_pairs = num_layers
        self._drafted: dict[int, list[tuple[int, State]]] = {}  # by slot: tokens of its draft, and the states before

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        """Draft as Drafter.draft; slots whose drafts have different lengths take one call per length."""
        self._wake([node.slot for node in nodes if node.is_root])
        continuations: dict[int, Continuation] = {}  # by slot
        for layer in sorted({node.place + 1 for node in nodes}):
            if layer < self.traits.max_depth:
                group = [node for node in nodes if node.place + 1 == layer]
                continuations |= self._draft_from(layer, group, depth, extra_levels)
        return [continuations.get(node.slot, NOTHING) for node in nodes]

    def _draft_from(
        self, layer: int, nodes: Sequence[Node], depth: int, extra_levels: ExtraLevels
    ) -> dict[int, Continuation]:
        """Return what this layer and those after it propose, by slot; nothing where a state is missing."""
        rows = HeadRows()
        for node in nodes:
            self._add_rows(node, rows)
        if not rows.outputs:
            return {}
        proposals = self._head.decode(
            rows.batch(), self._num_choices, confident=True, depth=depth, extra_levels=extra_levels, layer=layer
        )
        num_rows = len(rows.outputs)
        drafts = split_proposals(proposals, num_rows)
        for row, (node, draft) in enumerate(zip(rows.nodes, drafts, strict=True)):
            drafted = list(zip(draft.tokens, proposals.states[row::num_rows], strict=True))
            before = self._drafted[node.slot][:layer] if layer else []
            self._drafted[node.slot] = [*before, *drafted]
        return {node.slot: draft for node, draft in zip(rows.nodes, drafts, strict=True)}

    def _add_drafted(self, node: Node, slot: EagleSlot, rows: HeadRows) -> None:
        """Add the rows of all drafted tokens: this layer has none of them yet."""
        drafted = self._drafted[node.slot][: node.place + 1]  # what was proposed may have been cut
        for position, (token, state) in enumerate(drafted, start=node.position - len(drafted)):
            rows.add(node.slot, position, token, state)
        rows.mark_output(node)


# ---- target cache: draft by MTP layers that read the target's cache and keep none (Gemma 4's "assistant")
#
#     target rows   0 1 2 3       h[3] waits for token 4
#     draft root    (t4,h3) -> s -> child c5;   draft c5: (c5, s) -> s' -> c6 ...
#
# All rows of a draft have the position of its root and attend to the target's cells before it; drafted tokens leave
# no cells. Each slot keeps only the state of its newest row, asleep or awake.
class TargetCacheDrafter(NewestStateDrafter[State]):
    """A drafter over one head context, whose sequences are the target's. Drafts chains."""

    def __init__(self, head: HeadContext, taps: tuple[int, ...]) -> None:
        super().__init__(head, DraftTraits(name="mtp", taps=taps))  # no margin: a prompt's last token is always decoded
        self._head = head
        self._ends: dict[
            int, tuple[int, State]
        ] = {}  # by slot: its draft's root, and the state of the last row drafted

    def draft(
        self, nodes: Sequence[Node], depth: int = 1, extra_levels: ExtraLevels = NO_EXTRA_LEVELS
    ) -> list[Continuation]:
        rows = HeadRows()
        for node in nodes:
            self._add_row(node, rows)
        drafts = decode_rows(self._head, rows, nodes, num_choices=1, depth=depth, extra_levels=extra_levels)
        for node, draft in zip(nodes, drafts, strict=True):
            if node.slot in self._ends:
                self._ends[node.slot] = self._ends[node.slot][0], draft.state
        return [draft.continuation for draft in drafts]

    def _add_row(self, node: Node, rows: HeadRows) -> None:
        """Add the row that proposes after the node, if there is a state for it."""
        if node.is_root:
            state = self.find_state(node)
            if state is None:
                return
            self._ends[node.slot] = node.position, state
        root, state = self._ends[node.slot]
        rows.add(node.slot, root, node.token, state)
        rows.mark_output(node)

    def read_states(self, committed: Sequence[Committed]) -> list[State]:
        return self._head.encode(
            [skip_rows(rows.features, len(rows.tokens) - 1) for rows in committed if rows.features is not None]
        )
