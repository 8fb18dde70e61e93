"""Drafts as tests write them down."""

from __future__ import annotations

from eaglelocal.core.draft import Draft


def chain(*tokens: int) -> Draft:
    return Draft(tuple(tokens), tuple(range(-1, len(tokens) - 1)), (1.0,) * len(tokens))


def plus(draft: Draft, parent: int, token: int) -> Draft:
    """Return a copy with another node, after all others."""
    return Draft((*draft.tokens, token), (*draft.parents, parent), (*draft.confidences, 0.5), draft.drafter)
