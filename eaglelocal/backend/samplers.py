"""Samplers of requests: llama.cpp's sampler chain, or an argmax where that is equivalent.

Sampling runs on the logits in llama.cpp's memory.
The chain's order is llama.cpp's default: bias, penalties, top-k, typical, top-p, min-p, temperature.

For each draw llama.cpp copies the whole vocabulary, and sorts as much as needed, which takes milliseconds for a large
one. If the filters leave few tokens, native code finds those, and the chain draws among them.
"""

from __future__ import annotations

import ctypes as C
import os
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from eaglelocal.backend.llama_library import LlamaLibrary, NativeClock
from eaglelocal.backend.native_step import NONE_FITS, UNKNOWN, DrawStruct, fill_struct
from eaglelocal.core.batch import Floats
from eaglelocal.core.sampling import Sampled, SamplingParams, TokenLogprob
from eaglelocal.errors import EagleLocalError, EngineError

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data
MAX_RANKED = 512  # with more, llama.cpp sorts the whole vocabulary equally fast

RowReader = Callable[[int], Floats]  # an output row of the last decode -> its logits, a view [vocab]


class Argmax:
    """Stands for a chain where an argmax of the logits equals it: at temperature 0 without bias and penalties."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self.draw = draw

    def accept(self, tokens: Sequence[int]) -> None:
        pass  # no state

    def close(self) -> None:
        pass


class Filter(NamedTuple):
    """The tokens that native code leaves to a chain: the `rank` most likely, or (rank 0) by top_p or min_p."""

    rank: int
    top_p: float = 1.0
    min_p: float = 0.0


def choose_filter(params: SamplingParams) -> Filter | None:
    """Return the filter of a request; None if the chain needs the whole vocabulary.

    The chain does if nothing is filtered, or if something changes probabilities before the filters.
    """
    num_touched = len(params.logit_bias) + (params.repeat_last_n if params.has_penalties else 0)
    rank = 1 if params.is_greedy else params.top_k
    if rank:
        return Filter(rank) if rank + num_touched <= MAX_RANKED else None
    filters = params.top_p < 1.0 or params.min_p > 0.0
    return Filter(0, params.top_p, params.min_p) if filters and params.typical_p == 1.0 and not num_touched else None


class LlamaSamplerChain(ABC):
    """A llama_sampler chain and the tokens that it chooses from; one random draw per call."""

    def __init__(
        self, library: LlamaLibrary, params: SamplingParams, n_vocab: int, *, skips_top_p: bool = False
    ) -> None:
        self._api = library.api
        self._handle = build_chain(library, params, n_vocab, skips_top_p=skips_top_p)

    @abstractmethod
    def draw(self, row: int, mask: bytes | None = None) -> int:
        """Draw at an output row of the last decode, among the tokens whose bits are set; NONE_FITS if none is."""

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._api.llama_sampler_accept(self._handle, token)

    def check_open(self) -> None:
        if not self._handle:
            raise EngineError("the sampler is closed")

    def close(self) -> None:
        if self._handle:
            self._api.llama_sampler_free(self._handle)
            self._handle = None


class FilteredChain(LlamaSamplerChain):
    """A chain over the tokens that the request's filters can leave. `draw` is the native function for a context."""

    def __init__(
        self,
        library: LlamaLibrary,
        params: SamplingParams,
        token_filter: Filter,
        *,
        draw: Callable[..., int],
        n_vocab: int,
        is_constrained: bool = False,
    ) -> None:
        super().__init__(library, params, n_vocab, skips_top_p=not token_filter.rank)
        self._draw = draw
        self._biased = frozenset(token for token, _ in params.logit_bias if 0 <= token < n_vocab)
        self._recent: deque[int] = deque(maxlen=params.repeat_last_n if params.has_penalties else 0)
        num_touched = len(self._biased) + (self._recent.maxlen or 0)
        self._candidates = np.empty(
            token_filter.rank + 2 * num_touched if token_filter.rank else 2 * n_vocab, CANDIDATE
        )
        self._masked_logits = np.empty(n_vocab if is_constrained else 0, np.float32)
        candidates_at, masked_at = self._candidates.ctypes.data, self._masked_logits.ctypes.data
        chain_at = C.cast(self._handle, C.c_void_p).value  # type: ignore[arg-type]
        self._struct = fill_struct(
            DrawStruct(), sampler=chain_at, **token_filter._asdict(), candidates=candidates_at, masked_logits=masked_at
        )
        self._address = C.addressof(self._struct)

    def accept(self, tokens: Sequence[int]) -> None:
        super().accept(tokens)
        self._recent.extend(tokens)

    def draw(self, row: int, mask: bytes | None = None) -> int:
        self.check_open()
        if mask is not None and not self._masked_logits.size:
            raise EngineError("the sampler was not made for a constrained answer")
        touched = array("i", self._biased.union(self._recent))
        token = self._draw(self._address, row, len(touched), touched.buffer_info()[0], mask, len(mask or b""))
        if token == UNKNOWN:
            raise EngineError(f"row {row} of the last decode has no logits")
        self._recent.append(token)
        return token


class WholeChain(LlamaSamplerChain):
    """A chain over the whole vocabulary, or over all tokens that a mask admits."""

    def __init__(
        self,
        library: LlamaLibrary,
        context: object,
        params: SamplingParams,
        *,
        read_row: RowReader,
        clock: NativeClock,
        n_vocab: int,
    ) -> None:
        super().__init__(library, params, n_vocab)
        self._context, self._clock = context, clock
        self._read_row, self._n_vocab = read_row, n_vocab

    def draw(self, row: int, mask: bytes | None = None) -> int:
        self.check_open()
        logits = self._read_row(row)  # raises if there are no logits; llama.cpp would read anyway
        if mask is not None:
            return self._draw_masked(logits, mask)
        with self._clock:
            return int(self._api.llama_sampler_sample(self._handle, self._context, row))

    def _draw_masked(self, logits: Floats, mask: bytes) -> int:
        """Draw among the admitted tokens alone: filters work better on a shorter list than with logits of -inf."""
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[: self._n_vocab])
        if not len(allowed):
            return NONE_FITS
        candidates = np.zeros(len(allowed), CANDIDATE)
        candidates["id"], candidates["logit"] = allowed, logits[allowed]
        data = C.cast(candidates.ctypes.data, C.POINTER(self._api.llama_token_data))
        found = self._api.llama_token_data_array(data=data, size=len(allowed), selected=-1, sorted=False)
        with self._clock:
            self._api.llama_sampler_apply(self._handle, C.byref(found))
        token = int(found.data[found.selected].id)
        self._api.llama_sampler_accept(self._handle, token)
        return token


class ChainSampler:
    """A sampler that draws with a chain. Implements core.ports.Sampler."""

    problem: EagleLocalError | None = None

    def __init__(self, chain: Argmax | LlamaSamplerChain, read_row: RowReader, logprobs: int | None) -> None:
        self._draw, self.accept, self.close = chain.draw, chain.accept, chain.close
        self._read_row, self._logprobs = read_row, logprobs

    def sample(self, row: int) -> Sampled:
        return self._describe(self._draw(row), row)

    def force(self, row: int, token: int) -> Sampled | None:
        self.accept([token])
        return self._describe(token, row)

    def _describe(self, token: int, row: int) -> Sampled:
        return Sampled(token) if self._logprobs is None else add_logprobs(token, self._read_row(row), self._logprobs)


def build_chain(library: LlamaLibrary, params: SamplingParams, n_vocab: int, *, skips_top_p: bool = False) -> object:
    """Return a native chain; `skips_top_p`: without top-p, because it was applied when candidates were selected."""
    api = library.api
    chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
    add = api.llama_sampler_chain_add
    bias: dict[int, float] = {}  # summed here: llama.cpp may or may not add duplicates
    for token, value in params.logit_bias:
        if 0 <= token < n_vocab:
            bias[token] = bias.get(token, 0.0) + value
    if bias:
        entries = (api.llama_logit_bias * len(bias))(*(api.llama_logit_bias(t, b) for t, b in bias.items()))
        add(chain, api.llama_sampler_init_logit_bias(n_vocab, len(bias), entries))
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
    if params.top_p < 1.0 and not skips_top_p:
        add(chain, api.llama_sampler_init_top_p(params.top_p, 1))
    if params.min_p > 0.0:
        add(chain, api.llama_sampler_init_min_p(params.min_p, 1))
    add(chain, api.llama_sampler_init_temp(params.temperature))
    add(chain, api.llama_sampler_init_dist(resolve_seed(params)))
    return chain


def resolve_seed(params: SamplingParams) -> int:
    """Return a 32-bit seed, random if none is given; never all ones, for which llama.cpp would choose one itself."""
    seed = int.from_bytes(os.urandom(4), "little") if params.seed is None else params.seed
    return seed % 0xFFFFFFFF


def add_logprobs(token: int, logits: Floats, logprobs: int) -> Sampled:
    top = logits.max()
    norm = float(top) + float(np.log(np.exp(logits - top).sum(dtype=np.float64)))
    best = [TokenLogprob(one, float(logits[one]) - norm) for one in most_likely(logits, logprobs)]
    return Sampled(token, float(logits[token]) - norm, top=tuple(best))


def most_likely(logits: Floats, count: int) -> list[int]:
    """Return the most likely tokens, best first, earlier tokens first if equal. Sorts only the candidates."""
    first = max(len(logits) - count, 0)
    best_or_equal = np.flatnonzero(logits >= np.partition(logits, first)[first]) if count else np.empty(0, np.intp)
    best: list[int] = best_or_equal[np.argsort(-logits[best_or_equal], kind="stable")[:count]].tolist()
    return best
