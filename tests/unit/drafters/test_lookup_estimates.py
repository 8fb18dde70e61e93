"""The cheap estimate before a lookup's search: if it is zero, the search finds nothing."""

from __future__ import annotations

from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.draft import ROOT
from eaglelocal.drafters.drafter import Committed, Node
from eaglelocal.drafters.ngram import Ngram, estimate_confidence
from eaglelocal.drafters.text_index import MATCH_LENGTHS


def find_longest(text: list[int], earlier: list[int]) -> int:
    """Return how many of the text's last tokens stand together somewhere in `earlier`."""
    runs = {tuple(earlier[i:j]) for i in range(len(earlier)) for j in range(i + 1, len(earlier) + 1)}
    return max((n for n in range(1, len(text) + 1) if tuple(text[-n:]) in runs), default=0)


@examples(150)
@given(data=st.data())
def test_nothing_is_missed(data: st.DataObject) -> None:
    """Texts of few tokens in small indexes, asked at some steps only, cut back, with answers of the same owner."""
    max_tokens = data.draw(st.sampled_from([12, 40, 1000]))
    ngram = Ngram(max_tokens, pool_tokens=max_tokens)
    for answer in range(data.draw(st.integers(1, 3))):
        text: list[int] = []
        ngram.begin(0, "ann", 0)
        if answer:
            ngram.rollback(0, 0)
        root = 0
        for _ in range(data.draw(st.integers(1, 60))):
            position = len(text)
            length = data.draw(st.sampled_from([0, *MATCH_LENGTHS]))
            if length and text:
                estimate = ngram.estimate(Node(0, ROOT, root, position))
                found = ngram.draft([Node(0, ROOT, root, position)])[0].tokens
                assert estimate or not found
                if max_tokens == 1000 and estimate < estimate_confidence(length, 1, 1):
                    assert find_longest([*text, root], text) < length
            ngram.commit([Committed(0, position, [root], None)])
            text.append(root)
            root = data.draw(st.integers(0, 3))
            if text and data.draw(st.integers(0, 15)) == 0:
                cut = data.draw(st.integers(1, len(text)))
                ngram.rollback(0, cut)
                del text[cut:]
        ngram.end(0)
    ngram.close()
