"""The draft loop: ask the drafters for children, let the step's choice decide, until it has the drafts it wants."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass

from eaglelocal.core.draft import ROOT, Draft
from eaglelocal.core.sequence import Sequence
from eaglelocal.drafters.base import Drafter, Node
from eaglelocal.speculation.choice import StepChoice

EMPTY = Draft()


@dataclass(frozen=True, slots=True)
class Drafted:
    """What is to be verified, by slot, and what drafting it took: drafter, rows, seconds of each draft step."""

    drafts: Mapping[int, Draft]
    steps: Several[tuple[str, int, float]]


def grow(
    sequences: Several[Sequence], drafters: Several[Drafter], choice: StepChoice, is_end: Callable[[int], bool]
) -> Drafted:
    """Each drafter in turn, the cheapest first, a level of all its slots at a time.

    Drafting goes on behind the best child alone; a second choice is told to `choice` and stays a leaf.

    Behind a token that ends the answer nothing is of use; `is_end` tells which do.
    """
    goes_on = {s.slot for s in sequences if s.request.params.ignore_eos}
    roots = {s.slot: root_of(s) for s in sequences}
    steps: list[tuple[str, int, float]] = []
    for drafter in drafters:
        frontier = dict(roots)
        while slots := choice.growing(drafter.name):
            nodes = [frontier[slot] for slot in slots]
            started_at = time.perf_counter()
            proposed = drafter.expand(nodes)
            steps.append((drafter.name, len(nodes), time.perf_counter() - started_at))
            for node, children in zip(nodes, proposed, strict=True):
                if children:
                    child, *others = children
                    choice.add(node.slot, drafter.name, child.token, child.confidence)
                    if others:
                        choice.add_second(node.slot, drafter.name, others[0].token, others[0].confidence)
                    frontier[node.slot] = Node(node.slot, node.index + 1, node.index, child.token, node.position + 1)
                if not children or (is_end(children[0].token) and node.slot not in goes_on):
                    choice.end(node.slot, drafter.name)
    return Drafted(choice.chosen(), steps)


def root_of(sequence: Sequence) -> Node:
    return Node(sequence.slot, ROOT, ROOT, sequence.tokens[-1], len(sequence.tokens) - 1)
