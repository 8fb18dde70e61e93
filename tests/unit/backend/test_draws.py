"""Draws from few candidates against the whole vocabulary: what the C part leaves to llama.cpp, and what is drawn."""

from __future__ import annotations

import ctypes as C
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglelocal.backend.hot import Api, TargetStruct, filled, maxima_of
from eaglelocal.backend.library import load_library
from eaglelocal.backend.samplers import CANDIDATE, Filter, FilteredSampler, build_chain, filter_of, with_logprobs
from eaglelocal.core.batch import Floats
from eaglelocal.core.sampling import SamplingParams

LIBRARY = load_library()
HOT = LIBRARY.hot
Ints = npt.NDArray[np.int32]
SIZES = st.sampled_from([1, 3, 17, 255, 256, 257, 1025, 5000, 20_000])


def candidates(logits: Floats, only: Filter, touched: tuple[int, ...] = ()) -> Ints:
    """The tokens that are left, in order of their number; each must be named once and with its own logit."""
    n = len(logits)
    room = np.empty(only.rank + 2 * len(touched) if only.rank else 2 * n, CANDIDATE)
    ids = (C.c_int32 * len(touched))(*touched)
    found = HOT.candidates(logits.ctypes.data, n, *only, len(touched), ids, maxima_of(n), room.ctypes.data)
    np.testing.assert_array_equal(room["logit"][:found], logits[room["id"][:found]])
    tokens: Ints = np.sort(room["id"][:found])
    assert len(np.unique(tokens)) == found > 0
    return tokens


def shaped(data: st.DataObject, n: int) -> Floats:
    """Rows as models give them, and worse: peaked, flat, with ties, with tokens that cannot come."""
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    kind = data.draw(st.sampled_from(["peaked", "flat", "ties", "equal", "barred"]))
    logits = rng.normal(size=n) * {"peaked": 6.0, "flat": 0.5}.get(kind, 3.0)
    if kind == "ties":
        logits = np.round(logits)
    if kind == "equal":
        logits[:] = 1.5
    if kind == "barred":
        logits[rng.random(n) < 0.7] = -math.inf
        logits[rng.integers(n)] = 1.0
    return logits.astype(np.float32)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_by_rank_those_of_a_stable_sort_are_left_and_what_is_touched(data: st.DataObject) -> None:
    n = data.draw(SIZES)
    logits = shaped(data, n)
    rank = data.draw(st.integers(1, min(n, 300)))
    touched = tuple(data.draw(st.sets(st.integers(0, n - 1), max_size=60)))
    expected = {*np.argsort(-logits, kind="stable")[: rank + len(touched)].tolist(), *touched}
    assert candidates(logits, Filter(rank), touched).tolist() == sorted(expected)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), top_p=st.floats(0.0, 0.9999))
def test_top_p_leaves_the_fewest_that_make_up_its_share(data: st.DataObject, top_p: float) -> None:
    logits = shaped(data, data.draw(SIZES))
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    shares = np.exp(logits[order].astype(np.float64) - logits.max())
    sums = np.cumsum(shares / shares.sum())
    left = candidates(logits, Filter(0, top_p))
    fewest, most = (int(np.searchsorted(sums, top_p + slack)) + 1 for slack in (-1e-5, 1e-5))
    assert fewest <= len(left) <= most
    assert logits[left].min() >= logits[order[len(left) - 1]]


@settings(max_examples=100, deadline=None)
@given(data=st.data(), min_p=st.floats(1e-6, 1.0))
def test_min_p_leaves_all_that_reach_it_and_hardly_more(data: st.DataObject, min_p: float) -> None:
    logits = shaped(data, data.draw(SIZES))
    left = set(candidates(logits, Filter(0, 1.0, min_p)).tolist())
    below_top = logits.astype(np.float64) - logits.max()
    assert set(np.flatnonzero(below_top >= math.log(min_p)).tolist()) <= left
    assert left <= set(np.flatnonzero(below_top >= math.log(min_p) - 2e-3).tolist())


@pytest.mark.parametrize("only", [Filter(40), Filter(1), Filter(0, 0.9), Filter(0, 1.0, 0.1)])
@pytest.mark.parametrize("n", [3, 20_000])
def test_of_numbers_that_are_none_a_token_is_left_all_the_same(only: Filter, n: int) -> None:
    for value in (math.nan, -math.inf, math.inf):
        row = np.full(n, value, np.float32)
        room = np.empty(2 * n + 200, CANDIDATE)
        found = HOT.candidates(row.ctypes.data, n, *only, 0, None, maxima_of(n), room.ctypes.data)
        assert 1 <= found <= n and 0 <= room["id"][0] < n
    mixed = np.full(n, math.nan, np.float32)
    mixed[1] = 2.0
    assert candidates(mixed, only).tolist() == [1]


# ---- draws
class OneRow:
    """A context whose only row is an array: what hot_draw asks llama.cpp for."""

    def __init__(self, n: int) -> None:
        self.row = np.zeros(n, np.float32)
        api = Api.from_buffer_copy(HOT.api)
        self._logits_row = C.CFUNCTYPE(C.c_void_p, C.c_void_p, C.c_int32)(lambda _, row: self._at(row))
        api.logits_row = C.cast(self._logits_row, C.c_void_p).value
        self._struct = filled(TargetStruct(), api=api, n_vocab=n, maxima=maxima_of(n))
        self._struct.context = 1

    def _at(self, row: int) -> int | None:
        return int(self.row.ctypes.data) if row == 0 else None

    def draw(self, *asked: object) -> int:
        return int(HOT.draw(C.addressof(self._struct), *asked))

    def read(self, row: int) -> Floats:
        return self.row


def whole(params: SamplingParams, n: int) -> Callable[[Floats], int]:
    """The same chain over the whole vocabulary, as llama_sampler_sample applies it."""
    api, chain = LIBRARY.api, build_chain(LIBRARY, params, n)

    def draw(logits: Floats) -> int:
        room = np.zeros(n, CANDIDATE)
        room["id"], room["logit"] = np.arange(n), logits
        data = C.cast(room.ctypes.data, C.POINTER(api.llama_token_data))
        array = api.llama_token_data_array(data=data, size=n, selected=-1, sorted=False)
        api.llama_sampler_apply(chain, C.byref(array))
        token = int(array.data[array.selected].id)
        api.llama_sampler_accept(chain, token)
        return token

    return draw


RANKED = [
    SamplingParams(temperature=0.7, top_k=40, top_p=0.95, min_p=0.05, seed=1),
    SamplingParams(temperature=1.3, top_k=5, seed=2),
    SamplingParams(temperature=0.9, top_k=200, typical_p=0.8, seed=3),
    SamplingParams(temperature=0.8, top_k=20, repeat_penalty=1.3, repeat_last_n=8, seed=4),
    SamplingParams(temperature=0.8, top_k=3, frequency_penalty=-1.5, presence_penalty=0.5, seed=5),
    SamplingParams(temperature=0.8, top_k=10, logit_bias=((3, 9.0), (7, -50.0), (9999, 1.0)), seed=6),
    SamplingParams(temperature=0.0, repeat_penalty=1.5),
    SamplingParams(temperature=0.0, presence_penalty=2.0, logit_bias=((5, 4.0),)),
    SamplingParams(temperature=0.0, logit_bias=((5, -100.0), (6, 2.5))),
]


@pytest.mark.parametrize("params", RANKED)
@pytest.mark.parametrize("n", [11, 700, 30_000])
def test_a_draw_by_rank_is_that_of_the_whole_vocabulary(params: SamplingParams, n: int) -> None:
    rows, rng = OneRow(n), np.random.default_rng(n)
    only = filter_of(params, 100)
    assert only is not None
    few = FilteredSampler(LIBRARY, params, only, draw=rows.draw, read_row=rows.read, n_vocab=n)
    draw_of_all = whole(params, n)
    for _ in range(120):
        rows.row[:] = rng.normal(size=n) * 3 + 2 * (np.arange(n) < 9)  # some come again and again
        assert few.sample(0).token == draw_of_all(rows.row)
    few.close()


@pytest.mark.parametrize("params", [
    SamplingParams(temperature=1.0, top_p=0.9, seed=1),
    SamplingParams(temperature=0.6, top_p=0.5, min_p=0.02, seed=2),
    SamplingParams(temperature=1.5, min_p=0.1, seed=3),
])  # fmt: skip
@pytest.mark.parametrize("n", [11, 700])
def test_without_a_rank_draws_are_distributed_as_those_of_the_whole_vocabulary(params: SamplingParams, n: int) -> None:
    """Their order differs, so that a seed gives other tokens; the shares must not."""
    rows, rng, num_draws = OneRow(n), np.random.default_rng(n), 20_000
    rows.row[:] = rng.normal(size=n) * 1.5
    only = filter_of(params, 0)
    assert only is not None and only.rank == 0
    few = FilteredSampler(LIBRARY, params, only, draw=rows.draw, read_row=rows.read, n_vocab=n)
    counts = np.bincount([few.sample(0).token for _ in range(num_draws)], minlength=n)
    few.close()
    expected = num_draws * distribution(rows.row, params)
    assert not counts[expected == 0].any()
    able = expected >= 5
    chi_square = ((counts - expected)[able] ** 2 / expected[able]).sum()
    freedom = int(able.sum()) - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom) + 10


def distribution(logits: Floats, params: SamplingParams) -> npt.NDArray[np.float64]:
    """Top-p, then min-p, then temperature, as the chain has them."""
    wide = logits.astype(np.float64)
    shares = np.exp(wide - wide.max())
    order = np.argsort(-wide)
    sums = np.cumsum(shares[order] / shares.sum())
    kept = np.zeros(len(wide), bool)
    kept[order[: int(np.searchsorted(sums, params.top_p)) + 1]] = True
    kept &= shares >= params.min_p
    weights = np.where(kept, np.exp((wide - wide.max()) / params.temperature), 0.0)
    return weights / weights.sum()


def test_rows_without_logits_are_refused() -> None:
    rows = OneRow(50)
    sampler = FilteredSampler(
        LIBRARY, SamplingParams(top_k=4), Filter(4), draw=rows.draw, read_row=rows.read, n_vocab=50
    )
    with pytest.raises(Exception, match="no token can be drawn from row 3"):
        sampler.sample(3)
    sampler.close()
    with pytest.raises(Exception, match="closed"):
        sampler.sample(0)


def test_what_filters_leave_wide_is_left_to_llama_cpp() -> None:
    assert filter_of(SamplingParams(temperature=1.0), 0) is None
    assert filter_of(SamplingParams(temperature=1.0, top_p=0.9), 3) is None  # shares change with what is touched
    assert filter_of(SamplingParams(temperature=1.0, top_p=0.9, typical_p=0.5), 0) is None  # comes before top-p
    assert filter_of(SamplingParams(top_k=40), 2000) is None
    assert filter_of(SamplingParams(temperature=0.0, repeat_penalty=1.1), 64) == Filter(1)


# ---- log-probabilities
@settings(max_examples=60, deadline=None)
@given(data=st.data(), count=st.integers(0, 20))
def test_log_probabilities_are_those_of_a_stable_sort(data: st.DataObject, count: int) -> None:
    logits = shaped(data, data.draw(SIZES))
    wide = logits.astype(np.float64)
    expected = wide - wide.max() - math.log(np.exp(wide - wide.max()).sum())
    token = int(logits.argmax())
    said = with_logprobs(token, logits, count)
    assert said.logprob == pytest.approx(expected[token], abs=1e-5)
    assert [top.token for top in said.top] == np.argsort(-wide, kind="stable")[:count].tolist()
    np.testing.assert_allclose([top.logprob for top in said.top], expected[[t.token for t in said.top]], atol=1e-5)
