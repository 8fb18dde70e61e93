"""Chains of tokens of one scripted table: those of a right drafter, and those that a drafter drafts step by step."""

from __future__ import annotations

import numpy as np

from eaglelocal.core.draft import ROOT
from eaglelocal.drafters.drafter import Committed, Drafter, Node

from .scripted_context import START, Table, next_state

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


def state_after(tokens: list[int]) -> int:
    state = START
    for token in tokens:
        state = next_state(state, token)
    return state


def committed(slot: int, text: list[int], first: int) -> Committed:
    """Rows first.. of a text, with the features that ScriptedContext gives."""
    features = [(state_after(text[: i + 1]), i, text[i]) for i in range(first, len(text))]
    return Committed(slot, first, text[first:], np.array(features, np.float32)[:, None])
