"""The margin rule of these tests: what counts as a near-tie, and what as a difference."""

from __future__ import annotations

import pytest
from doubles.margin import judge

from eaglelocal.core.events import TextPiece
from eaglelocal.core.sampling import Sampled, TokenLogprob

LOGPROBS = {10: -1.0, 11: -1.01, 12: -1.1, 13: -3.0}
PIECE = TextPiece(10, "", False, Sampled(10, -1.0, top=tuple(TokenLogprob(*one) for one in LOGPROBS.items())))


@pytest.mark.parametrize("token", [11, 12])
def test_one_of_several_nearly_equal_tokens_is_a_near_tie(token: int) -> None:
    assert judge(PIECE, token, 4, 0.2).gap == pytest.approx(-1.0 - LOGPROBS[token])


@pytest.mark.parametrize(("token", "words"), [(13, "worse by 2.0"), (14, "none of the 5 best")])
def test_a_worse_token_is_a_difference(token: int, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        judge(PIECE, token, 4, 0.2)
