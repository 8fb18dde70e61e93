"""Sampling parameters: how the next token is drawn from the target's distribution. Plain data, no algorithm.

llama.cpp's samplers (backend), or the test double, make the draw. One random draw per emitted token, whatever was
drafted, so a seed gives one text at any draft length and concurrency, except for rounding: a draw on the border of two
tokens may change if rows were computed in another batch, or came from a cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from eaglelocal.core.records import dataclass
from eaglelocal.core.thinking import USUAL, Thinking
from eaglelocal.errors import RequestError

RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 10.0),
    "top_k": (0, 1_000_000),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "repeat_penalty": (0.01, 10.0),
    "frequency_penalty": (-10.0, 10.0),
    "presence_penalty": (-10.0, 10.0),
    "max_tokens": (0, 10_000_000),
    "repeat_last_n": (0, 1_000_000),
}


RECOMMENDED = frozenset({"temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n"})
MIN_TEMPERATURE = 0.001
MAX_BIAS = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The sampling parameters of one request. Neutral defaults: the model's own distribution."""

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = 64  # tokens the penalties look back on, prompt included
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    max_tokens: int | None = None  # None: until the context is full; 0: only read the prompt into the cache
    stop: tuple[str, ...] = ()
    stop_loops: bool = False  # end an answer that repeats itself, see text/loop_guard.py
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; n: the chosen token's and the n most likely
    thinking: Thinking = USUAL
    left_open: frozenset[str] = frozenset()  # fields of RECOMMENDED that the user left unset

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN fails too
                raise RequestError(f"{name} must lie between {low} and {high}, not {value}", parameter=name)
        if 0 < self.temperature < MIN_TEMPERATURE:  # logits / temperature would overflow
            what = f"temperature must be 0 (greedy) or at least {MIN_TEMPERATURE}, not {self.temperature}"
            raise RequestError(what, parameter="temperature")
        for token, bias in self.logit_bias:
            if not abs(bias) <= MAX_BIAS:
                what = f"the logit bias of token {token} must lie within {MAX_BIAS:g}, not {bias}"  # NaN fails too
                raise RequestError(what, parameter="logit_bias")
        if self.logprobs is not None and not 0 <= self.logprobs <= 100:
            raise RequestError(f"logprobs must lie between 0 and 100, not {self.logprobs}", parameter="logprobs")
        if any(not s for s in self.stop):
            raise RequestError("a stop string must not be empty", parameter="stop")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return (self.repeat_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)


def is_valid_value(name: str, value: float) -> bool:
    """Return whether this is a valid value of a field in RANGES."""
    low, high = RANGES[name]
    return low <= value <= high and not (name == "temperature" and 0 < value < MIN_TEMPERATURE)


def fill_recommended(params: SamplingParams, recommended: Mapping[str, float]) -> SamplingParams:
    """Return the parameters with unset fields as the model's makers recommend them.

    recommended  values by field name, all of them valid
    """
    return replace(params, **{name: recommended[name] for name in params.left_open & recommended.keys()})  # type: ignore[arg-type]


def sampling_text(recommended: Mapping[str, float]) -> str:
    """Return the values as text, such as `temperature 0.6, top-k 20`."""
    return ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in recommended.items())


GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A log-probability under the model's own distribution, before temperature, filters and penalties."""

    token: int
    logprob: float
    piece: bytes = b""  # the token's bytes; filled in by engine/running_answer.py


@dataclass(frozen=True, slots=True)
class Sampled:
    """A drawn token. `top` has the most likely tokens, best first, and is empty unless asked for."""

    token: int
    logprob: float | None = None
    piece: bytes = b""  # as in TokenLogprob
    top: tuple[TokenLogprob, ...] = ()
