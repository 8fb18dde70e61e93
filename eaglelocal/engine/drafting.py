"""The draft loop: ask the drafter for children, let the policy choose, until it has the draft it wants."""

from __future__ import annotations

from collections.abc import Sequence as Several

from eaglelocal.core.draft import ROOT, Draft
from eaglelocal.core.sequence import Sequence
from eaglelocal.drafters.base import Child, Drafter, Node
from eaglelocal.speculation.policy import Policy

EMPTY = Draft()


def grow(sequences: Several[Sequence], drafter: Drafter, *, policy: Policy, max_draft: int) -> dict[int, Draft]:
    """A draft for each decoding sequence, by slot; empty where the policy or the drafter wants none.

    `max_draft` is what the batch has room for, whatever the policy wants.
    """
    drafts = {s.slot: EMPTY for s in sequences}
    room = {s.slot: min(s.draft_room, max_draft) for s in sequences}
    frontier = [root_of(s) for s in sequences]
    while frontier := [n for n in frontier if policy.extend(drafts[n.slot], room[n.slot])]:
        depth = min(policy.extend(drafts[n.slot], room[n.slot]) for n in frontier)
        for levels_left in range(depth, 0, -1):
            frontier = grow_level(frontier, drafter.expand(frontier, levels_left), drafts)
    return drafts


def grow_level(frontier: Several[Node], proposed: Several[Several[Child]], drafts: dict[int, Draft]) -> list[Node]:
    """Add the children to the drafts; they are the next frontier."""
    grown: list[Node] = []
    for node, children in zip(frontier, proposed, strict=True):
        for child in children:
            draft = drafts[node.slot]
            drafts[node.slot] = draft.plus(node.index, child.token, child.confidence)
            grown.append(Node(node.slot, len(draft), node.index, child.token, node.position + 1))
    return grown


def root_of(sequence: Sequence) -> Node:
    return Node(sequence.slot, ROOT, ROOT, sequence.tokens[-1], len(sequence.tokens) - 1)
