"""Draws from a few candidates equal draws from the whole vocabulary, and llama.cpp draws where they could not."""

from __future__ import annotations

import ctypes as C
import math

import numpy as np
import numpy.typing as npt
import pytest
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.backend.llama_library import NativeClock, load_library
from eaglelocal.backend.native_step import NONE_FITS, Api, DrawStruct, TargetStruct, fill_struct, make_block_maxima
from eaglelocal.backend.samplers import CANDIDATE, Filter, FilteredChain, WholeChain, add_logprobs, choose_filter
from eaglelocal.core.batch import Floats
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EngineError

LIBRARY = load_library()
NATIVE = LIBRARY.native_step
Ints = npt.NDArray[np.int32]
NUM_GUARDS = 8
SIZES = st.sampled_from([1, 3, 17, 255, 256, 257, 1025, 5000, 20_000])


def candidates(logits: Floats, only: Filter, touched: tuple[int, ...] = ()) -> Ints:
    """The tokens that are left, in order of their number; each must be named once and with its own logit."""
    n = len(logits)
    size = only.rank + 2 * len(touched) if only.rank else 2 * n
    room = np.zeros(size + NUM_GUARDS, CANDIDATE)
    ids, draw = (
        (C.c_int32 * len(touched))(*touched),
        fill_struct(DrawStruct(), **only._asdict(), candidates=room.ctypes.data),
    )
    found = NATIVE.candidates(C.addressof(draw), logits.ctypes.data, n, len(touched), ids, make_block_maxima(n))
    np.testing.assert_array_equal(room["logit"][:found], logits[room["id"][:found]])
    assert not room[size:].view(np.uint8).any(), "written behind the room"
    tokens: Ints = np.sort(room["id"][:found])
    assert len(np.unique(tokens)) == found
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


@examples(150)
@given(data=st.data())
def test_by_rank_those_of_a_stable_sort_are_left_and_what_is_touched(data: st.DataObject) -> None:
    n = data.draw(SIZES)
    logits = shaped(data, n)
    rank = data.draw(st.integers(1, min(n, 300)))
    touched = tuple(data.draw(st.sets(st.integers(0, n - 1), max_size=60)))
    expected = {*np.argsort(-logits, kind="stable")[: rank + len(touched)].tolist(), *touched}
    assert candidates(logits, Filter(rank), touched).tolist() == sorted(expected)


@examples(150)
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


@examples(100)
@given(data=st.data(), min_p=st.floats(1e-6, 1.0))
def test_min_p_leaves_all_that_reach_it_and_hardly_more(data: st.DataObject, min_p: float) -> None:
    logits = shaped(data, data.draw(SIZES))
    left = set(candidates(logits, Filter(0, 1.0, min_p)).tolist())
    below_top = logits.astype(np.float64) - logits.max()
    assert set(np.flatnonzero(below_top >= math.log(min_p)).tolist()) <= left
    assert left <= set(np.flatnonzero(below_top >= math.log(min_p) - 2e-3).tolist())


@pytest.mark.parametrize("only", [Filter(40), Filter(1), Filter(0, 0.9), Filter(0, 1.0, 0.1)])
@pytest.mark.parametrize("n", [3, 20_000])
def test_nan_logits_are_left_out_of_a_draw(only: Filter, n: int) -> None:
    assert len(candidates(np.full(n, math.nan, np.float32), only)) == 0
    mixed = np.full(n, math.nan, np.float32)
    mixed[1] = 2.0
    assert candidates(mixed, only).tolist() == [1]


@pytest.mark.parametrize("only", [Filter(2), Filter(1), Filter(0, 0.9), Filter(0, 1.0, 0.1)])
@pytest.mark.parametrize("n", [3, 20_000])
def test_what_is_infinite_is_a_candidate_all_the_same(only: Filter, n: int) -> None:
    row = np.full(n, -math.inf, np.float32)
    assert candidates(row, only)[0] == 0
    row[1:] = math.nan
    assert candidates(row, only).tolist() == [0]
    row[2] = math.inf
    assert 2 in candidates(row, only)


# ---- draws
class OneRow:
    """A context whose only row is an array: what hot_draw asks llama.cpp for."""

    def __init__(self, n: int) -> None:
        self.row = np.zeros(n, np.float32)
        api = Api.from_buffer_copy(NATIVE.api)
        self._logits_row = C.CFUNCTYPE(C.c_void_p, C.c_void_p, C.c_int32)(lambda _, row: self._at(row))
        api.logits_row = C.cast(self._logits_row, C.c_void_p).value
        self._struct = fill_struct(TargetStruct(), api=api, n_vocab=n, block_maxima=make_block_maxima(n))
        self._struct.context = 1

    def _at(self, row: int) -> int | None:
        return int(self.row.ctypes.data) if row == 0 else None

    def draw(self, *asked: object) -> int:
        return int(NATIVE.draw(C.addressof(self._struct), *asked))

    def read(self, row: int) -> Floats:
        return self.row


def few_of(params: SamplingParams, rows: OneRow, *, is_constrained: bool = False) -> FilteredChain:
    only = choose_filter(params)
    assert only is not None
    return FilteredChain(LIBRARY, params, only, draw=rows.draw, n_vocab=len(rows.row), is_constrained=is_constrained)


def all_of(params: SamplingParams, rows: OneRow) -> WholeChain:
    return WholeChain(LIBRARY, None, params, read_row=rows.read, clock=NativeClock(), n_vocab=len(rows.row))


def bits(able: npt.NDArray[np.bool_]) -> bytes:
    return np.packbits(able, bitorder="little").tobytes()


RANKED = [
    SamplingParams(temperature=0.7, top_k=40, top_p=0.95, min_p=0.05, seed=1),
    SamplingParams(temperature=1.3, top_k=5, seed=2),
    SamplingParams(temperature=0.9, top_k=200, typical_p=0.8, seed=3),
    SamplingParams(temperature=0.8, top_k=20, repeat_penalty=1.3, repeat_last_n=8, seed=4),
    SamplingParams(temperature=0.8, top_k=3, frequency_penalty=-1.5, presence_penalty=0.5, seed=5),
    SamplingParams(temperature=0.8, top_k=10, logit_bias=((3, 9.0), (7, -50.0), (9999, 1.0)), seed=6),
    SamplingParams(temperature=0.8, top_k=10, logit_bias=((8, 4.0), (2, 1.0), (8, 4.0)), seed=7),
    SamplingParams(temperature=1.5, min_p=0.1, seed=8),
    SamplingParams(temperature=0.0, repeat_penalty=1.5),
    SamplingParams(temperature=0.0, presence_penalty=2.0, logit_bias=((5, 4.0),)),
    SamplingParams(temperature=0.0, logit_bias=((5, -100.0), (6, 2.5))),
]


@pytest.mark.parametrize("params", RANKED)
@pytest.mark.parametrize("n", [11, 700, 30_000])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.001])
def test_a_draw_by_rank_is_that_of_the_whole_vocabulary(params: SamplingParams, n: int, share: float) -> None:
    """Of that which fits, where an answer is bound."""
    rows, rng = OneRow(n), np.random.default_rng(n)
    few, all_ = few_of(params, rows, is_constrained=True), all_of(params, rows)
    prompt = [n - 1 - i % 3 for i in range(200)]  # longer than the window of any penalty
    few.accept(prompt)
    all_.accept(prompt)
    for _ in range(60):
        rows.row[:] = rng.normal(size=n) * 3 + 2 * (np.arange(n) < 9)  # some come again and again
        able = rng.random(n) < share
        able[rng.integers(n)] = True
        mask = bits(able)
        token = few.draw(0, mask)
        assert token == all_.draw(0, mask) and able[token]
    few.close()
    all_.close()


NARROW = [
    SamplingParams(temperature=1.0, top_p=0.9, seed=1),
    SamplingParams(temperature=0.6, top_p=0.5, min_p=0.02, seed=2),
]


@pytest.mark.parametrize("params", NARROW)
@pytest.mark.parametrize("n", [11, 700])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_without_a_rank_draws_are_distributed_as_those_of_the_whole_vocabulary(
    params: SamplingParams, n: int, share: float
) -> None:
    """Their order differs, so that a seed gives other tokens; the shares must not."""
    rows, rng, num_draws = OneRow(n), np.random.default_rng(n), 20_000
    rows.row[:] = rng.normal(size=n) * 1.5
    able = rng.random(n) < share
    few = few_of(params, rows, is_constrained=True)
    mask = None if share == 1.0 else bits(able)
    counts = np.bincount([few.draw(0, mask) for _ in range(num_draws)], minlength=n)
    few.close()
    expected = num_draws * distribution(np.where(able, rows.row, -np.inf), params)
    assert not counts[expected == 0].any()
    often = expected >= 5
    chi_square = ((counts - expected)[often] ** 2 / expected[often]).sum()
    freedom = int(often.sum()) - 1
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


def test_equal_logits_take_the_first_token() -> None:
    rows = OneRow(300)
    rows.row[[50, 20, 40, 30]] = 5.0
    chain = few_of(SamplingParams(temperature=0.0, presence_penalty=1.0), rows)
    chain.accept([99, 98, 97])
    assert [chain.draw(0) for _ in range(4)] == [20, 30, 40, 50]
    chain.close()


def test_a_token_that_is_biased_twice_is_biased_by_both() -> None:
    rows = OneRow(300)
    rows.row[10] = 8.0
    params = SamplingParams(temperature=0.0, logit_bias=((50, 6.0), (50, 6.0)))
    chains = few_of(params, rows, is_constrained=True), all_of(params, rows)
    assert [chain.draw(0, bytes([255] * 38)) for chain in chains] == [50, 50]
    for chain in chains:
        chain.close()


def test_rows_without_logits_are_refused_and_where_nothing_fits_nothing_is_drawn() -> None:
    rows = OneRow(50)
    for params in (SamplingParams(top_k=4), SamplingParams(top_p=0.5), SamplingParams(min_p=0.5)):
        chain = few_of(params, rows, is_constrained=True)
        with pytest.raises(EngineError, match="row 3 of the last decode has no logits"):
            chain.draw(3)
        assert chain.draw(0, b"") == chain.draw(0, bytes(7)) == NONE_FITS
        assert chain.draw(0, bytes([0, 0, 16])) == 20
        rows.row[:] = math.nan
        assert chain.draw(0) == 0  # as where the best token is asked for
        rows.row[:] = 0.0
        chain.close()
        chain.close()
        with pytest.raises(EngineError, match="closed"):
            chain.draw(0)
    unbound = few_of(SamplingParams(top_k=4), rows)
    with pytest.raises(EngineError, match="not made for"):
        unbound.draw(0, bytes(7))
    unbound.close()


def test_what_filters_leave_wide_is_left_to_llama_cpp() -> None:
    wide = [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.0, top_p=0.9, logit_bias=((1, 2.0),)),  # shares change with what is touched
        SamplingParams(temperature=1.0, top_p=0.9, repeat_penalty=1.1),
        SamplingParams(temperature=1.0, top_p=0.9, typical_p=0.5),  # comes before top-p
        SamplingParams(top_k=1000, repeat_penalty=1.1),
    ]
    assert list(map(choose_filter, wide)) == [None] * len(wide)
    assert choose_filter(SamplingParams(temperature=0.0, repeat_penalty=1.1)) == Filter(1)


# ---- log-probabilities
@examples(60)
@given(data=st.data(), count=st.integers(0, 20))
def test_log_probabilities_are_those_of_a_stable_sort(data: st.DataObject, count: int) -> None:
    logits = shaped(data, data.draw(SIZES))
    wide = logits.astype(np.float64)
    expected = wide - wide.max() - math.log(np.exp(wide - wide.max()).sum())
    token = int(logits.argmax())
    said = add_logprobs(token, logits, count)
    assert said.logprob == pytest.approx(expected[token], abs=1e-5)
    assert [top.token for top in said.top] == np.argsort(-wide, kind="stable")[:count].tolist()
    np.testing.assert_allclose([top.logprob for top in said.top], expected[[t.token for t in said.top]], atol=1e-5)
