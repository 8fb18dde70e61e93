"""What a person wants, as one number for each way to run: the score by which plans are ranked. Pure.

    score = ln(effective parameters)  +  ln(what their age makes of each)
                                      -  slow x ln(pace / speed)   where speed is below the goal's pace
                                      +  more x ln(speed / pace)   where it is above
                                      +  what more context, a whole cache and layers on the GPU are worth

So: the best answers that come at the goal's pace. Below it, halving the speed costs as much as quartering the model
(speed: as taking a third of it; but below what `balanced` wants all goals want speed alike, or `speed` would take the
slower plan); above it, more speed is worth little (quality) or much (speed), and something to `balanced`: models of
2026 think for thousands of tokens before a person reads the first. Differences of 0.01 are about one per cent
of a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from eaglelocal.planner.quality import KV_LOSS

CRAWL, SLOW = 15.0, 2.0  # tokens/s, and what speed is worth below them at least
CTX_WORTH, TIGHT_CTX_WORTH = 0.02, 0.25  # of each doubling above and below COMFORTABLE_CTX
COMFORTABLE_CTX = 8192
WHOLE_WINDOWS_WORTH = 0.005  # any prefix can be used again
UNSEEN_WORTH = -0.03  # a file whose size was computed: it may be larger, or there may be none in the first repository
# Layers in main memory read prompts three or four times slower, for their weights cross the bus with each part of one.
# The speed of answers does not show it, so it counts as that does for `balanced`: 0.25 x ln 3.5.
ON_HOST_WORTH = -0.3


class Term(StrEnum):
    """Of the score."""

    QUALITY = "quality"
    AGE = "age"
    SPEED = "speed"
    CONTEXT = "context"
    CACHE = "cache"
    WINDOWS = "windows"
    HOST = "host"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class Goal:
    """`pace` in tokens/s: reading takes 4 to 6, skimming 15, and a program that waits never has enough."""

    name: str
    pace: float
    slow: float
    more: float

    def worth_of(self, tok_s: float) -> float:
        """Of such a speed."""
        behind = math.log(self.pace / tok_s)
        crawling = max(math.log(CRAWL / tok_s), 0.0)
        return -self.more * behind if behind < 0 else -self.slow * behind - (SLOW - self.slow) * crawling


GOALS: Mapping[str, Goal] = MappingProxyType(
    {
        "quality": Goal("quality", pace=5.0, slow=SLOW, more=0.08),
        "balanced": Goal("balanced", pace=CRAWL, slow=SLOW, more=0.25),
        "speed": Goal("speed", pace=80.0, slow=1.5, more=0.5),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comfort:
    """What of a plan counts besides answers and speed."""

    n_ctx: int
    kv_type: str
    whole_windows: bool
    on_host: bool  # some layers are, though there is a GPU
    is_unseen: bool = False  # nobody saw the file's size

    @property
    def worth(self) -> float:
        return sum(self.terms.values())

    @property
    def terms(self) -> Mapping[Term, float]:
        return {
            Term.CONTEXT: context_worth(self.n_ctx),
            Term.CACHE: math.log(1.0 - KV_LOSS[self.kv_type]),
            Term.WINDOWS: WHOLE_WINDOWS_WORTH if self.whole_windows else 0.0,
            Term.HOST: ON_HOST_WORTH if self.on_host else 0.0,
            Term.UNSEEN: UNSEEN_WORTH if self.is_unseen else 0.0,
        }


def score(goal: Goal, *, quality_b: float, age_worth: float, tok_s: float, comfort: Comfort) -> float:
    return sum(terms(goal, quality_b=quality_b, age_worth=age_worth, tok_s=tok_s, comfort=comfort).values())


def terms(goal: Goal, *, quality_b: float, age_worth: float, tok_s: float, comfort: Comfort) -> Mapping[Term, float]:
    """What the score is the sum of. `age_worth`: of each parameter (planner/age.py)."""
    return {
        Term.QUALITY: math.log(max(quality_b, 1e-3)),
        Term.AGE: math.log(age_worth),
        Term.SPEED: goal.worth_of(tok_s),
        **comfort.terms,
    }


def context_worth(n_ctx: int) -> float:
    doublings = math.log2(n_ctx / COMFORTABLE_CTX)
    return (CTX_WORTH if doublings > 0 else TIGHT_CTX_WORTH) * doublings
