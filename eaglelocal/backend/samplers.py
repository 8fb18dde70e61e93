"""One request's sampler: llama.cpp's sampler chain, or an argmax where the chain would be one.

Sampling runs on the logits in llama.cpp's memory; they are copied to Python only for logprobs.
The chain's order is llama.cpp's own default: bias, penalties, top-k, typical, top-p, min-p, temperature.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from eaglelocal.backend.library import Library, NativeClock
from eaglelocal.core.batch import Floats
from eaglelocal.core.sampling import Sampled, SamplingParams, TokenLogprob
from eaglelocal.errors import EngineError

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


class ChainSampler:
    """A llama_sampler chain; one random draw a sample."""

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


def build_chain(library: Library, params: SamplingParams, n_vocab: int) -> object:
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
    if params.top_p < 1.0:
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
    wide = logits.astype(np.float64)
    wide -= wide.max() + np.log(np.exp(wide - wide.max()).sum())
    best: list[int] = np.argsort(-wide, kind="stable")[:logprobs].tolist() if logprobs else []
    return Sampled(token, float(wide[token]), top=tuple(TokenLogprob(i, float(wide[i])) for i in best))
