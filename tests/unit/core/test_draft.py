"""Drafts as trees: depths, children, chains."""

from __future__ import annotations

import pytest
from doubles.drafts import chain
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.draft import ROOT, Draft

#  root ── 0 ── 1 ── 3
#           └── 2
TREE = Draft((7, 8, 9, 8), (-1, 0, 0, 1), (0.9, 0.5, 0.3, 0.2))


def test_depths_of_a_tree() -> None:
    assert TREE.depths == (1, 2, 2, 3)


def test_a_tree_is_no_chain_and_a_chain_is() -> None:
    assert not TREE.is_chain
    assert chain(4, 5, 6).is_chain
    assert Draft().is_chain
    assert not Draft((1, 2), (-1, -1), (1.0, 1.0)).is_chain


@pytest.mark.parametrize(
    ("parent", "token", "child"), [(ROOT, 7, 0), (0, 8, 1), (0, 9, 2), (1, 8, 3), (2, 8, None), (ROOT, 8, None)]
)
def test_child_with_a_token(parent: int, token: int, child: int | None) -> None:
    assert TREE.child_with(parent, token) == child


@given(st.lists(st.integers(0, 100), max_size=20))
def test_a_chain_is_as_deep_as_it_is_long(tokens: list[int]) -> None:
    draft = chain(*tokens)
    assert draft.depths == tuple(range(1, len(tokens) + 1))
    assert draft.tokens == tuple(tokens)
