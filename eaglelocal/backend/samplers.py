"""One request's sampler: llama.cpp's sampler chain, or an argmax where the chain would be one.

Sampling runs on the logits in llama.cpp's memory; they are copied to Python only for logprobs.
The chain's order is llama.cpp's own default: bias, penalties, top-k, typical, top-p, min-p, temperature.

llama.cpp copies the whole vocabulary for each draw, and sorts what it must: a millisecond for 150 000 tokens, ten where
top-p stands alone. Where filters leave but few tokens the C part finds those, and the chain draws among them.
"""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from eaglelocal.backend.library import Library, NativeClock
from eaglelocal.core.batch import Floats
from eaglelocal.core.sampling import Sampled, SamplingParams, TokenLogprob
from eaglelocal.errors import EngineError

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data
MOST_RANKED = 1024  # more candidates are found no sooner than llama.cpp has them

RowReader = Callable[[int], Floats]  # an output row of the last decode -> its logits, a view [vocab]


class GreedySampler:
    """Argmax of the logits: what the chain gives at temperature 0 without bias and penalties."""

    problem = None

    def __init__(self, best: Callable[[int], int], read_row: RowReader, logprobs: int | None) -> None:
        self._best, self._read_row, self._logprobs = best, read_row, logprobs

    def accept(self, tokens: Sequence[int]) -> None:
        pass  # nothing remembers

    def sample(self, row: int) -> Sampled:
        token = self._best(row)
        return Sampled(token) if self._logprobs is None else with_logprobs(token, self._read_row(row), self._logprobs)

    def close(self) -> None:
        pass


class Filter(NamedTuple):
    """Which tokens the C part leaves to a chain: so many of the most likely, or (0) what top_p or min_p leave."""

    rank: int
    top_p: float = 1.0
    min_p: float = 0.0


def filter_of(params: SamplingParams, num_touched: int) -> Filter | None:
    """None: any token may be drawn, or nearly any. num_touched: tokens whose logits change before they are ranked."""
    rank = 1 if params.is_greedy else params.top_k
    if rank:
        return Filter(rank) if rank + num_touched <= MOST_RANKED else None
    is_narrow = params.top_p < 1.0 or params.min_p > 0.0
    return Filter(0, params.top_p, params.min_p) if is_narrow and params.typical_p == 1.0 and not num_touched else None


class FilteredSampler:
    """A llama_sampler chain over the tokens that its filters can leave; one random draw a sample.

    draw  of the C part: its arguments behind the context
    """

    problem = None

    def __init__(
        self,
        library: Library,
        params: SamplingParams,
        only: Filter,
        *,
        draw: Callable[..., int],
        read_row: RowReader,
        n_vocab: int,
    ) -> None:
        self._api, self._draw, self._only = library.api, draw, only
        self._read_row, self._logprobs = read_row, params.logprobs
        self._chain = build_chain(library, params, n_vocab, is_cut=not only.rank)
        self._biased = frozenset(token for token, _ in params.logit_bias if 0 <= token < n_vocab)
        self._recent: deque[int] = deque(maxlen=params.repeat_last_n if params.has_penalties else 0)
        num_touched = len(self._biased) + (self._recent.maxlen or 0)
        self._room = np.empty(only.rank + 2 * num_touched if only.rank else 2 * n_vocab, CANDIDATE)
        self._room_at = self._room.ctypes.data

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._api.llama_sampler_accept(self._chain, token)
        self._recent.extend(tokens)

    def sample(self, row: int) -> Sampled:
        if not self._chain:
            raise EngineError("the sampler is closed")
        touched = array("i", self._biased.union(self._recent))
        token = self._draw(self._chain, row, *self._only, len(touched), touched.buffer_info()[0], self._room_at)
        if token < 0:
            raise EngineError(f"no token can be drawn from row {row} of the last decode")
        self._recent.append(token)
        return Sampled(token) if self._logprobs is None else with_logprobs(token, self._read_row(row), self._logprobs)

    def close(self) -> None:
        if self._chain:
            self._api.llama_sampler_free(self._chain)
            self._chain = None


class ChainSampler:
    """A llama_sampler chain over the whole vocabulary; one random draw a sample."""

    problem = None

    def __init__(
        self,
        library: Library,
        context: object,
        params: SamplingParams,
        *,
        read_row: RowReader,
        clock: NativeClock,
        n_vocab: int,
    ) -> None:
        self._api, self._context, self._clock = library.api, context, clock
        self._read_row, self._logprobs = read_row, params.logprobs
        self._chain = build_chain(library, params, n_vocab)

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._api.llama_sampler_accept(self._chain, token)

    def sample(self, row: int) -> Sampled:
        if not self._chain:
            raise EngineError("the sampler is closed")
        self._read_row(row)  # raises where there are no logits; llama.cpp would read them all the same
        with self._clock:
            token = int(self._api.llama_sampler_sample(self._chain, self._context, row))
        return Sampled(token) if self._logprobs is None else with_logprobs(token, self._read_row(row), self._logprobs)

    def close(self) -> None:
        if self._chain:
            self._api.llama_sampler_free(self._chain)
            self._chain = None


def build_chain(library: Library, params: SamplingParams, n_vocab: int, *, is_cut: bool = False) -> object:
    """is_cut: top-p is done where candidates are found."""
    api = library.api
    chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
    add = api.llama_sampler_chain_add
    bias = [(token, value) for token, value in params.logit_bias if 0 <= token < n_vocab]
    if bias:
        array = (api.llama_logit_bias * len(bias))(*(api.llama_logit_bias(t, b) for t, b in bias))
        add(chain, api.llama_sampler_init_logit_bias(n_vocab, len(bias), array))
    if params.has_penalties:
        penalties = (params.repeat_penalty, params.frequency_penalty, params.presence_penalty)
        add(chain, api.llama_sampler_init_penalties(n_vocab, params.repeat_last_n, *penalties))
    if params.is_greedy:
        add(chain, api.llama_sampler_init_greedy())
        return chain
    if params.top_k > 0:
        add(chain, api.llama_sampler_init_top_k(params.top_k))
    if params.typical_p < 1.0:
        add(chain, api.llama_sampler_init_typical(params.typical_p, 1))
    if params.top_p < 1.0 and not is_cut:
        add(chain, api.llama_sampler_init_top_p(params.top_p, 1))
    if params.min_p > 0.0:
        add(chain, api.llama_sampler_init_min_p(params.min_p, 1))
    add(chain, api.llama_sampler_init_temp(params.temperature))
    add(chain, api.llama_sampler_init_dist(seed_of(params)))
    return chain


def seed_of(params: SamplingParams) -> int:
    """llama.cpp takes 32 bits; its all-ones value means "choose one", which is ours to do."""
    seed = int.from_bytes(os.urandom(4), "little") if params.seed is None else params.seed
    return seed % 0xFFFFFFFF


def with_logprobs(token: int, logits: Floats, logprobs: int) -> Sampled:
    top = logits.max()
    norm = float(top) + float(np.log(np.exp(logits - top).sum(dtype=np.float64)))
    best = [TokenLogprob(one, float(logits[one]) - norm) for one in most_likely(logits, logprobs)]
    return Sampled(token, float(logits[token]) - norm, top=tuple(best))


def most_likely(logits: Floats, count: int) -> list[int]:
    """Best first, of equals the earlier; only what may be among them is sorted."""
    first = max(len(logits) - count, 0)
    able = np.flatnonzero(logits >= np.partition(logits, first)[first]) if count else np.empty(0, np.intp)
    best: list[int] = able[np.argsort(-logits[able], kind="stable")[:count]].tolist()
    return best
