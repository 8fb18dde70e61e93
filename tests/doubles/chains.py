"""Chains of tokens of one scripted table: those of a right drafter, and those that a drafter drafts step by step."""

from __future__ import annotations

from doubles.scripted_context import Table

from eaglelocal.core.draft import ROOT
from eaglelocal.drafters.drafter import Drafter, Node

TABLE = Table(seed=3)


def root(slot: int, text: list[int]) -> Node:
    return Node(slot, ROOT, text[-1], len(text) - 1)


def best(text: list[int]) -> int:
    return int(TABLE.after(text).argmax())


def draft_chain(drafter: Drafter, slot: int, text: list[int], length: int) -> list[int]:
    """Return `length` tokens that the drafter drafts after `text`, one call for each."""
    node, drafted = root(slot, text), list[int]()
    for _ in range(length):
        (more,) = drafter.draft([node])
        drafted += more.tokens
        node = Node(slot, len(drafted) - 1, drafted[-1], node.position + 1)
    return drafted


def true_chain(text: list[int], length: int) -> list[int]:
    grown = list(text)
    for _ in range(length):
        grown.append(best(grown))
    return grown[len(text) :]
