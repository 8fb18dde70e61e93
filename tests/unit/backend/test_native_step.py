"""The C part's own arithmetic against numpy: ranking rows of logits, and the norms of EAGLE-3.1."""

from __future__ import annotations

import math

import numpy as np
import pytest
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.native_step import DrawStruct, fill_struct, make_block_maxima
from eaglelocal.backend.top_tokens import TopTokens, num_ranked
from eaglelocal.core.batch import Floats, Proposals

NATIVE = load_library().native_step


def ranked(logits: Floats, count: int) -> Proposals:
    choices, maxima = TopTokens(), make_block_maxima(len(logits))
    choices.reserve(count)
    NATIVE.rank(logits.ctypes.data, len(logits), count, maxima, choices.tokens_at, choices.shares_at)
    return choices.read(1, count, count, confident=True)


@examples(60)
@given(data=st.data())
def test_the_most_likely_tokens_are_those_of_a_stable_sort(data: st.DataObject) -> None:
    n = data.draw(st.sampled_from([1, 3, 15, 16, 17, 255, 256, 257, 1025, 5000]))
    count = data.draw(st.integers(1, min(n, 6)))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    logits = rng.integers(-4, 4, n).astype(np.float32)  # many are equal
    before = logits.copy()
    said = ranked(logits, count)
    expected = np.argsort(-before, kind="stable")[:count]
    assert said.tokens == [expected.tolist()]
    weights = np.exp(before[expected] - before.max())
    behind = np.cumsum(weights[::-1])[::-1]
    np.testing.assert_allclose(said.confidences[0], weights / behind, rtol=1e-5)
    np.testing.assert_array_equal(logits, before)


def test_tokens_that_cannot_be_drafted_rank_last_and_stay_as_they_were() -> None:
    logits = np.full(3000, -math.inf, np.float32)  # a head of reduced vocabulary leaves most of them so
    logits[[7, 2500]] = 1.0, 2.0
    before = logits.copy()
    said = ranked(logits, 3)
    assert said.tokens[0][:2] == [2500, 7] and said.confidences[0][2] == 0.0
    np.testing.assert_array_equal(logits, before)


def test_a_second_choice_is_as_sure_as_it_is_next_to_the_worse_ones() -> None:
    """Of the last that is ranked nothing could be said."""
    row = np.array([1.0, 5.0, -4.0, 3.0], np.float32)
    for num_choices in (1, 2):
        choices = TopTokens()
        count = num_ranked(num_choices, len(row), confident=True)
        NATIVE.rank(row.ctypes.data, len(row), count, make_block_maxima(len(row)), choices.tokens_at, choices.shares_at)
        said = choices.read(1, count, num_choices, confident=True)
        assert said.tokens == [[1, 3][:num_choices]]
        np.testing.assert_allclose(said.confidences, [[0.86672, 0.88009][:num_choices]], atol=1e-5)
    assert [num_ranked(n, 99, confident=True) for n in (1, 2, 3, 4)] == [4, 4, 4, 5]
    assert [num_ranked(n, 2, confident=True) for n in (1, 2)] == [2, 2]
    assert [num_ranked(n, 99, confident=False) for n in (1, 2)] == [1, 2]


def test_what_cannot_be_drafted_is_not_sure() -> None:
    for values, sure in (([-math.inf] * 4, [0, 0, 0]), ([-math.inf, 2.0, -math.inf], [1, 0, 0])):
        assert ranked(np.array(values, np.float32), 3).confidences == [sure]


@pytest.mark.parametrize("values", [[math.nan] * 40, [math.nan, 1.0, 3.0, math.nan]])
def test_nan_gives_a_token_all_the_same(values: list[float]) -> None:
    (best,) = ranked(np.array(values, np.float32), 1).tokens[0]
    assert best == (0 if len(values) == 40 else 2)


def rms_norm(row: Floats, eps: float) -> Floats:
    """The plain formula in double precision."""
    mean_square = sum(float(x) ** 2 for x in row) / len(row)
    return np.array([float(x) / (mean_square + eps) ** 0.5 for x in row], np.float32)


@pytest.mark.parametrize("width", [1, 15, 64, 77])
@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.5])
@pytest.mark.parametrize("has_gains", [False, True])
def test_the_norms_of_eagle_3_1(width: int, eps: float, has_gains: bool) -> None:
    rng = np.random.default_rng(0)
    row, out = rng.normal(size=width, scale=30.0).astype(np.float32), np.empty(width, np.float32)
    gains = rng.uniform(0.5, 1.5, width).astype(np.float32)
    NATIVE.norm(row.ctypes.data, width, eps, gains.ctypes.data if has_gains else None, out.ctypes.data)
    np.testing.assert_allclose(out, rms_norm(row, eps) * (gains if has_gains else 1.0), rtol=1e-5)


def test_a_field_that_a_struct_does_not_have_is_an_error() -> None:
    assert fill_struct(DrawStruct(), rank=3).rank == 3
    with pytest.raises(AttributeError, match="DrawStruct has no field top_k"):
        fill_struct(DrawStruct(), top_k=3)
