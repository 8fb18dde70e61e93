"""The draft loop: ask the drafters for children of each root until the step's choice needs no more drafts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass

from eaglelocal.core.draft import ROOT, Draft
from eaglelocal.core.sequence import Sequence
from eaglelocal.drafters.drafter import Drafter, Node
from eaglelocal.speculation.policy.step_policy import StepPolicy
from eaglelocal.speculation.policy.step_report import DraftCall

EMPTY = Draft()


@dataclass(frozen=True, slots=True)
class Drafted:
    """The draft of each slot, and what each call of a drafter cost."""

    drafts: Mapping[int, Draft]
    calls: Several[DraftCall]


def grow(
    sequences: Several[Sequence], drafters: Several[Drafter], choice: StepPolicy, is_end: Callable[[int], bool]
) -> Drafted:
    """Draft for all sequences: each drafter in turn, cheapest first, several levels and slots per call.

    A call asks for as many levels as the choice wants in any case, and for more while the drafter is confident enough.
    `is_end` tells end-of-generation tokens: nothing is drafted behind them unless the request ignores them.
    """
    goes_on = {s.slot for s in sequences if s.request.continues_after_eos}
    roots = {s.slot: root_of(s) for s in sequences}
    calls: list[DraftCall] = []
    for drafter in drafters:
        name, frontier = drafter.name, dict(roots)
        while slots := choice.select_slots(name):
            nodes = [frontier[slot] for slot in slots]
            depth, further = choice.select_levels(name, slots)
            started_at = time.perf_counter()
            proposed = drafter.draft(nodes, depth, further)
            levels = max([len(more.tokens) for more in proposed])
            calls.append(DraftCall(name, len(nodes), time.perf_counter() - started_at, max(levels, 1)))
            for node, more in zip(nodes, proposed, strict=True):
                slot, tokens = node.slot, more.tokens
                ends = [] if slot in goes_on else [n for n, token in enumerate(tokens, start=1) if is_end(token)]
                if ends:
                    tokens = tokens[: ends[0]]
                choice.add(slot, name, tokens, more.confidences, more.siblings)
                if ends or not tokens or drafter.block_size > 1:
                    choice.end(slot, name)
                else:
                    frontier[slot] = behind(node, tokens)
    return Drafted(choice.select_drafts(), calls)


def behind(node: Node, tokens: Several[int]) -> Node:
    """Return the node of the last of the tokens drafted behind `node`."""
    place = node.place + len(tokens)
    return Node(node.slot, place, tokens[-1], node.position + len(tokens))


def root_of(sequence: Sequence) -> Node:
    return Node(sequence.slot, ROOT, sequence.tokens[-1], len(sequence.tokens) - 1)
