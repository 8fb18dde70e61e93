"""Verification: the path follows the samples, nothing follows an end token, and the limit is never exceeded."""

from __future__ import annotations

import pytest
from doubles.drafts import chain, plus
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.draft import ROOT, Draft, Verdict
from eaglelocal.core.sampling import Sampled
from eaglelocal.speculation.verify import verify

END = 0
#  root ── 0:a ── 1:b        └── 2:x below a
TREE = Draft((1, 2, 3), (-1, 0, 0), (1.0, 1.0, 1.0))


class Script:
    """Draws scripted tokens in order, and remembers at which rows."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens, self.rows = list(tokens), list[int]()

    def sample(self, row: int) -> Sampled:
        self.rows.append(row)
        return Sampled(self._tokens[len(self.rows) - 1])


def judge(draft: Draft, script: Script, limit: int = 100) -> Verdict:
    rows = list(range(10, 11 + len(draft)))
    return verify(draft, rows, sample=script.sample, is_end=lambda token: token == END, limit=limit)


@pytest.mark.parametrize(
    ("draft", "draws", "limit", "path", "rows"),
    [
        (Draft(), [5], 9, (), [10]),
        (Draft(), [5], 1, (), [10]),
        (Draft(), [END], 9, (), [10]),
        (chain(1, 2), [1, 2, 7], 9, (0, 1), [10, 11, 12]),  # all accepted, one bonus token
        (chain(1, 2), [1, 7], 9, (0,), [10, 11]),
        (chain(1, 2), [2], 9, (), [10]),
        (chain(1, 2), [1, 2], 2, (0, 1), [10, 11]),  # the limit leaves no bonus token
        (chain(1, 2), [1], 1, (0,), [10]),
        (chain(1, END, 2), [1, END], 9, (0, 1), [10, 11]),  # a drafted end is accepted and ends
        (chain(1, 2), [1, END], 9, (0,), [10, 11]),  # an end that was not drafted
        (TREE, [1, 2, 7], 9, (0, 1), [10, 11, 12]),
        (TREE, [1, 3, 7], 9, (0, 2), [10, 11, 13]),  # the second child
        (TREE, [1, 4], 9, (0,), [10, 11]),
        (TREE, [3], 9, (), [10]),  # 3 is drafted, but not behind the root
    ],
)
def test_walks(draft: Draft, draws: list[int], limit: int, path: tuple[int, ...], rows: list[int]) -> None:
    script = Script(draws)
    verdict = judge(draft, script, limit)
    assert [s.token for s in verdict.samples] == draws
    assert (verdict.path, script.rows) == (path, rows)
    assert verdict.num_accepted == len(path)


@st.composite
def trees(pick: st.DrawFn) -> Draft:
    """Random trees whose siblings differ, as a drafter's children do."""
    draft = Draft()
    for _ in range(pick(st.integers(0, 12))):
        parent = pick(st.integers(ROOT, len(draft) - 1))
        token = pick(st.integers(0, 5))
        if draft.child_with(parent, token) is None:
            draft = plus(draft, parent, token)
    return draft


@given(trees(), st.lists(st.integers(0, 5), min_size=13, max_size=13), st.integers(1, 15))
def test_the_verdict_is_what_plain_sampling_would_emit(draft: Draft, draws: list[int], limit: int) -> None:
    script = Script(draws)
    verdict = judge(draft, script, limit)
    tokens = [s.token for s in verdict.samples]
    assert tokens == draws[: len(tokens)]
    assert 1 <= len(tokens) <= limit
    assert END not in tokens[:-1]
    assert [draft.tokens[node] for node in verdict.path] == tokens[: len(verdict.path)]
    assert [draft.parents[node] for node in verdict.path] == [ROOT, *verdict.path][: len(verdict.path)]
    assert script.rows == [10 + node + 1 for node in (ROOT, *verdict.path)][: len(tokens)]
    if tokens[-1] != END and len(tokens) < limit:  # it stopped because the last draw was no drafted child
        last = verdict.path[-1] if verdict.path else ROOT
        assert len(tokens) == len(verdict.path) + 1
        assert draft.child_with(last, tokens[-1]) is None
