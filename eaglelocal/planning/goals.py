"""Compute the score by which plans are ranked, for the goal that a person chose. Pure.

    score = ln(effective parameters)  +  ln(worth of each by its age)
                                      -  slow x ln(pace / speed)   if speed is below the goal's pace
                                      +  more x ln(speed / pace)   if it is above
                                      +  terms for context, cache type, sliding windows and layers on the GPU

So the score prefers the best answers at the goal's pace. Below the pace, halving the speed costs as much as a model of
half the size for `balanced`, of a third for the other goals; below CRAWL, of a third for all, or `speed` would take the
slower plan. Above it, more speed is worth little for `quality`, much for `speed` and something for `balanced`. Its pace
is that of models that think: they write thousands of tokens before a person reads the first, 2000 of them in 50
seconds. A difference of 0.01 is about one per cent of a model's size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from eaglelocal.core.records import dataclass
from eaglelocal.planning.quality import KV_LOSS

CRAWL, SLOW = 7.0, 2.0  # tokens/s, just ahead of a reader, and the least weight of speed below them
COMFORTABLE_CTX = 8192  # tokens
WORKING_CTX = 16384  # tokens: a few answers of a model that thinks, which writes thousands for each
LONG_CTX = 32768  # tokens; more is worth no other loss
# per halving below COMFORTABLE_CTX, per doubling up to WORKING_CTX, and per doubling above
TIGHT_CTX_WORTH, WORKING_CTX_WORTH, LONG_CTX_WORTH = 0.25, 0.1, 0.05
WHOLE_WINDOWS_WORTH = 0.005  # with full-size caches of window layers any prefix can be reused
UNSEEN_WORTH = -0.03  # a file whose size was computed: it may be larger, or missing in the first repository
BY_NAME_WORTH = -1.0  # a model that the catalog offers by name only: taken where nothing else fits
# Prefill is three or four times slower with layers in RAM, because their weights cross the bus for each chunk. The
# decode speed does not show it, so it costs as much as that factor in speed does for `balanced`: 0.25 x ln 3.5.
ON_HOST_WORTH = -0.3


class Term(StrEnum):
    """A term of the score."""

    QUALITY = "quality"
    AGE = "age"
    SPEED = "speed"
    CONTEXT = "context"
    CACHE = "cache"
    WINDOWS = "windows"
    HOST = "host"
    UNSEEN = "unseen"
    BY_NAME = "by name"


@dataclass(frozen=True, slots=True)
class Goal:
    """The speed that a person wants, and its weight against quality.

    pace  the wanted tokens/s (reading takes 4 to 6, skimming 15; programs use any speed)
    slow  weight of speed below the pace
    more  weight of speed above it
    """

    name: str
    pace: float
    slow: float
    more: float

    def rate_speed(self, tok_s: float) -> float:
        """Return the speed term of the score for this speed."""
        behind = math.log(self.pace / tok_s)
        crawling = max(math.log(CRAWL / tok_s), 0.0)
        return -self.more * behind if behind < 0 else -self.slow * behind - (SLOW - self.slow) * crawling


GOALS: Mapping[str, Goal] = MappingProxyType(
    {
        "quality": Goal("quality", pace=5.0, slow=SLOW, more=0.08),
        "balanced": Goal("balanced", pace=40.0, slow=1.0, more=0.25),
        "speed": Goal("speed", pace=80.0, slow=1.5, more=0.5),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comfort:
    """The properties of a plan that count besides quality and speed."""

    n_ctx: int
    kv_type: str
    swa_full: bool
    on_host: bool  # some layers or experts are in RAM, though there is a GPU
    is_unseen: bool = False  # the file's size was computed
    is_by_name: bool = False  # the catalog offers the model by name only

    @property
    def worth(self) -> float:
        return sum(self.terms.values())

    @property
    def terms(self) -> Mapping[Term, float]:
        return {
            Term.CONTEXT: context_worth(self.n_ctx),
            Term.CACHE: math.log(1.0 - KV_LOSS[self.kv_type]),
            Term.WINDOWS: WHOLE_WINDOWS_WORTH if self.swa_full else 0.0,
            Term.HOST: ON_HOST_WORTH if self.on_host else 0.0,
            Term.UNSEEN: UNSEEN_WORTH if self.is_unseen else 0.0,
            Term.BY_NAME: BY_NAME_WORTH if self.is_by_name else 0.0,
        }


def score(goal: Goal, *, quality_b: float, age_worth: float, tok_s: float, comfort: Comfort) -> float:
    """Return the score, in natural logarithms. Arguments as of `compute_terms`."""
    return sum(compute_terms(goal, quality_b=quality_b, age_worth=age_worth, tok_s=tok_s, comfort=comfort).values())


def compute_terms(
    goal: Goal, *, quality_b: float, age_worth: float, tok_s: float, comfort: Comfort
) -> Mapping[Term, float]:
    """Return the terms of the score. `age_worth`: the value of each parameter by its age (planning/model_age.py)."""
    return {
        Term.QUALITY: math.log(max(quality_b, 1e-3)),
        Term.AGE: math.log(age_worth),
        Term.SPEED: goal.rate_speed(tok_s),
        **comfort.terms,
    }


def context_worth(n_ctx: int) -> float:
    tight = math.log2(min(n_ctx, COMFORTABLE_CTX) / COMFORTABLE_CTX)
    working = math.log2(min(max(n_ctx, COMFORTABLE_CTX), WORKING_CTX) / COMFORTABLE_CTX)
    long = math.log2(min(max(n_ctx, WORKING_CTX), LONG_CTX) / WORKING_CTX)
    return TIGHT_CTX_WORTH * tight + WORKING_CTX_WORTH * working + LONG_CTX_WORTH * long
