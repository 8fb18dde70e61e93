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
from eaglelocal.speculation.controller import DraftCall

EMPTY = Draft()


@dataclass(frozen=True, slots=True)
class Drafted:
    """What is to be verified, by slot, and what drafting it took."""

    drafts: Mapping[int, Draft]
    calls: Several[DraftCall]


def grow(
    sequences: Several[Sequence], drafters: Several[Drafter], choice: StepChoice, is_end: Callable[[int], bool]
) -> Drafted:
    """Each drafter in turn, the cheapest first, at a time as many levels of all its slots as are wanted anyway, or
    as long as it is sure.

    Behind a token that ends the answer nothing is of use; `is_end` tells which do.
    """
    goes_on = {s.slot for s in sequences if s.request.goes_on_behind_end}
    roots = {s.slot: root_of(s) for s in sequences}
    calls: list[DraftCall] = []
    for drafter in drafters:
        name, frontier = drafter.name, dict(roots)
        while slots := choice.growing(name):
            nodes = [frontier[slot] for slot in slots]
            depth, further = choice.levels(name, slots)
            started_at = time.perf_counter()
            proposed = drafter.expand(nodes, depth, further)
            levels = max([len(more.tokens) for more in proposed])
            calls.append(DraftCall(name, len(nodes), time.perf_counter() - started_at, max(levels, 1)))
            for node, more in zip(nodes, proposed, strict=True):
                slot, tokens = node.slot, more.tokens
                ends = [] if slot in goes_on else [n for n, token in enumerate(tokens, start=1) if is_end(token)]
                if ends:
                    tokens = tokens[: ends[0]]
                choice.add(slot, name, tokens, more.confidences, more.seconds)
                if ends or not tokens or drafter.at_once > 1:
                    choice.end(slot, name)
                else:
                    frontier[slot] = behind(node, tokens)
    return Drafted(choice.chosen(), calls)


def behind(node: Node, tokens: Several[int]) -> Node:
    """The last of the tokens that came of a node."""
    place = node.place + len(tokens)
    return Node(node.slot, place, tokens[-1], node.position + len(tokens))


def root_of(sequence: Sequence) -> Node:
    return Node(sequence.slot, ROOT, sequence.tokens[-1], len(sequence.tokens) - 1)
