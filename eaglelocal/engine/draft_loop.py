"""The draft loop: ask the drafters for tokens after each root until the step's policy needs no more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from typing import cast

from eaglelocal.core.draft import ROOT, Draft
from eaglelocal.core.records import dataclass
from eaglelocal.core.sequence import Sequence
from eaglelocal.drafters.drafter import CatchesUp, Drafter, Node
from eaglelocal.speculation.policy.slot_policy import DraftCall
from eaglelocal.speculation.policy.step_policy import StepPolicy
from eaglelocal.speculation.tree import DraftChain

EMPTY = Draft()


@dataclass(frozen=True, slots=True)
class Drafted:
    """The draft of each slot, and what each call of a drafter cost that proposed or read something."""

    drafts: Mapping[int, Draft]
    calls: Several[DraftCall]


def grow(
    sequences: Several[Sequence], drafters: Several[Drafter], policy: StepPolicy | None, is_end: Callable[[int], bool]
) -> Drafted:
    """Draft for all sequences: each drafter in turn, cheapest first, several levels and slots per call.

    A call asks for as many levels as the policy wants in any case, and for more while the drafter is confident enough.

    policy  None: nothing is drafted
    is_end  recognizes end-of-generation tokens; nothing is drafted after one unless the request ignores them
    """
    if policy is None:
        return Drafted({s.slot: EMPTY for s in sequences}, ())
    ignores_end = {s.slot for s in sequences if s.request.continues_after_eos}
    roots = {s.slot: make_root(s) for s in sequences}
    calls: list[DraftCall] = []
    for drafter in drafters:
        name, is_block = drafter.traits.name, drafter.traits.block_size > 1
        while tips := policy.select_tips(name):
            nodes = [make_node(roots[tip.slot], policy.drafts.chain(tip.slot, name, tip.chain)) for tip in tips]
            ended = [n for n in nodes if n.chain and n.slot not in ignores_end and is_end(n.token)]
            if ended:  # a branch begins with any sibling
                for node in ended:
                    policy.drafts.end(node.slot, name, node.chain)
                continue
            depth, extra_levels = policy.select_levels(name, [tip.slot for tip in tips])
            calls += catch_up(drafter, nodes)
            started_at = time.perf_counter()
            continuations = drafter.draft(nodes, depth, extra_levels)
            if levels := max([len(each.tokens) for each in continuations]):
                calls.append(DraftCall(name, len(nodes), time.perf_counter() - started_at, levels))
            for node, (tokens, confidences, siblings) in zip(nodes, continuations, strict=True):
                slot = node.slot
                ends = [] if slot in ignores_end else [n for n, token in enumerate(tokens, start=1) if is_end(token)]
                kept = tokens[: ends[0]] if ends else tokens
                is_cut = len(kept) < len(tokens)
                policy.drafts.add(slot, name, kept, confidences, siblings, branch=node.chain, is_cut=is_cut)
                if ends or not tokens or is_block:
                    policy.drafts.end(slot, name, node.chain)
    return Drafted(policy.select_drafts(), calls)


def catch_up(drafter: Drafter, nodes: Several[Node]) -> list[DraftCall]:
    """Let the drafter read what it has put off, before it drafts after roots; return that as a call of no levels."""
    slots = [node.slot for node in nodes if node.is_root]
    if not (slots and drafter.traits.catches_up):
        return []
    started_at = time.perf_counter()
    num_read = cast(CatchesUp, drafter).catch_up(slots)
    return [DraftCall(drafter.traits.name, num_read, time.perf_counter() - started_at, 0)] if num_read else []


def make_node(root: Node, chain: DraftChain | None) -> Node:
    """Return the last token of the chain as a node; the root if nothing is drafted yet."""
    if chain is None or not chain.tokens:
        return root
    num_before, num_tokens = chain.depth, len(chain.tokens)
    position = root.position + num_before + num_tokens
    return Node(root.slot, num_tokens - 1, chain.tokens[-1], position, chain.number, chain.parent)


def make_root(sequence: Sequence) -> Node:
    return Node(sequence.slot, ROOT, sequence.tokens[-1], len(sequence.tokens) - 1)
