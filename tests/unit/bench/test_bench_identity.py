"""Texts that differ: where, and whether it is a near-tie."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from doubles.timed_client import TimedAnswer, TimedClient
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.bench.bench_prompts import BenchPrompt
from eaglelocal.bench.prompt_run import Side
from eaglelocal.bench.text_identity import (
    NUM_TOP_TOKENS,
    Difference,
    DifferenceVerdict,
    Flip,
    TextComparer,
    first_difference,
    judge_flip,
    tie_bound,
)
from eaglelocal.core.events import TextPiece
from eaglelocal.core.request import AUTO_SPEC, OFF, ChatRequest, Message
from eaglelocal.core.sampling import GREEDY, Sampled, SamplingParams, TokenLogprob
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.target_resolver import demo_sources

BOUND = 0.05
CHAT = BenchPrompt("x", (Message("user", "hi"),))
IDS = BenchPrompt("x", tokens=(7, 8))
TOKENS = st.lists(st.integers(0, 3), max_size=12)


@given(TOKENS, TOKENS)
def test_the_first_difference_is_the_first(a: list[int], b: list[int]) -> None:
    flip = first_difference(a, b)
    if flip is None:
        assert a == b
    else:
        assert a[: flip.index] == b[: flip.index]
        assert flip.plain != flip.other
        assert a[flip.index : flip.index + 1] == ([] if flip.plain is None else [flip.plain])
        assert b[flip.index : flip.index + 1] == ([] if flip.other is None else [flip.other])


def examined(
    planned_answer: Sequence[TimedAnswer],
    flip: Flip,
    common: Sequence[int],
    *,
    prompt: BenchPrompt = CHAT,
    params: SamplingParams = GREEDY,
) -> tuple[Difference, list[ChatRequest]]:
    """The finding, when the answers to what is asked again are these in turn."""
    waiting = list(planned_answer)
    client = TimedClient(lambda request: waiting.pop(0))
    plain, other = Side("plain", client, OFF), Side("auto", client, AUTO_SPEC)
    difference = TextComparer(plain, bound=BOUND).examine(prompt, params, other=other, flip=flip, common=common)
    assert not waiting
    return difference, client.requests


def test_the_two_best_tokens_close_together_are_a_near_tie() -> None:
    planned_answer = TimedAnswer([1, 2, 5, 9], gaps={2: (6, 0.01)})
    difference, (request,) = examined([planned_answer], Flip(2, 5, 6), [1, 2])
    assert difference == Difference("auto", "x", 2, DifferenceVerdict.NEAR_TIE, pytest.approx(0.01))
    assert (request.messages, request.spec) == (CHAT.messages, OFF)
    assert (request.params.max_tokens, request.params.logprobs) == (3, NUM_TOP_TOKENS)


@pytest.mark.parametrize(
    ("second", "gap", "other"),
    [(6, 0.3, 6), (9, 0.01, 6), (6, 0.01, None)],
    ids=["far apart", "a third token", "an answer that ended"],
)
def test_other_tokens_are_different(second: int, gap: float, other: int | None) -> None:
    difference, _ = examined([TimedAnswer([1, 5], gaps={1: (second, gap)})], Flip(1, 5, other), [1])
    assert (difference.verdict, difference.gap) == (DifferenceVerdict.DIFFERENT, pytest.approx(gap))


@pytest.mark.parametrize(
    ("flip", "verdict", "gap"),
    [
        (Flip(0, 5, 7), DifferenceVerdict.NEAR_TIE, 0.03),  # the best and the third
        (Flip(0, 6, 7), DifferenceVerdict.NEAR_TIE, 0.03),  # the best was taken by neither
        (Flip(0, 5, 8), DifferenceVerdict.DIFFERENT, 0.5),
        (Flip(0, 5, 9), DifferenceVerdict.DIFFERENT, 0.01),
        (Flip(0, 5, None), DifferenceVerdict.DIFFERENT, 0.01),
    ],
)
def test_several_tokens_close_together_are_rivals(flip: Flip, verdict: DifferenceVerdict, gap: float) -> None:
    top = tuple(TokenLogprob(token, -behind, b"") for token, behind in ((5, 0.0), (6, 0.01), (7, 0.03), (8, 0.5)))
    piece = TextPiece(5, "", False, Sampled(5, 0.0, b"", top))
    assert judge_flip(piece, flip, 0.2) == (verdict, pytest.approx(gap))


def test_token_ids_are_asked_from_the_common_prefix() -> None:
    difference, (request,) = examined([TimedAnswer([5], gaps={0: (6, 0.01)})], Flip(2, 5, 6), [1, 2], prompt=IDS)
    assert difference.verdict is DifferenceVerdict.NEAR_TIE
    assert (request.tokens, request.params.max_tokens) == ((7, 8, 1, 2), 1)


def test_a_plain_answer_that_differs_is_asked_with_the_other_side_s_spec() -> None:
    planned_answer = [TimedAnswer([1, 3, 5]), TimedAnswer([1, 2, 5], gaps={2: (6, 0.01)})]
    difference, requests = examined(planned_answer, Flip(2, 5, 6), [1, 2])
    assert difference.verdict is DifferenceVerdict.NEAR_TIE
    assert [request.spec for request in requests] == [OFF, AUTO_SPEC]


def test_an_answer_that_differs_both_times_is_not_examined() -> None:
    difference, _ = examined([TimedAnswer([1, 3, 5]), TimedAnswer([1])], Flip(2, 5, 6), [1, 2])
    assert (difference.verdict, difference.gap) == (DifferenceVerdict.UNKNOWN, None)


def test_drawn_texts_are_not_examined() -> None:
    difference, requests = examined([], Flip(2, 5, 6), [1, 2], params=SamplingParams(temperature=0.7))
    assert difference.verdict is DifferenceVerdict.UNKNOWN
    assert requests == []


@pytest.mark.parametrize(
    ("weights", "kv_type", "bound"),
    [
        ("F32", "f16", 1e-3),
        ("BF16", "f16", 0.05),
        ("Q8_0", "f16", 0.1),
        ("Q4_K", "f16", 0.2),
        ("BF16", "q8_0", 0.1),
        ("F32", "q4_0", 0.2),
        ("F32", "f16,q8_0", 0.1),
        ("F32", "q8_0,q5_1", 0.2),
    ],
)
def test_bounds_by_weights_and_cache(weights: str, kv_type: str, bound: float) -> None:
    assert tie_bound(weights, kv_type) == bound


def test_the_weights_of_the_embedded_model() -> None:
    assert tie_bound(read_header(demo_sources()[0]).main_type, "f16") == 0.05
