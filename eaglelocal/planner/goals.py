"""What a person wants, as one number for each way to run: the score by which plans are ranked. Pure.

    score = ln(effective parameters)  -  SLOW x ln(pace / speed)   where speed is below the goal's pace
                                      +  more x ln(speed / pace)   where it is above
                                      +  what more context is worth

So: the best answers that come at the goal's pace. Below it, halving the speed costs as much as quartering the model;
above it, more speed is worth little (quality) or much (speed). Differences of 0.01 are about one per cent of a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from eaglelocal.planner.quality import KV_LOSS

SLOW = 2.0
CTX_WORTH = 0.03  # of each doubling
WHOLE_WINDOWS_WORTH = 0.005  # any prefix can be used again


@dataclass(frozen=True, slots=True)
class Goal:
    """`pace` in tokens/s: reading takes 4 to 6, skimming 15, and a program that waits never has enough."""

    name: str
    pace: float
    more: float


GOALS: Mapping[str, Goal] = MappingProxyType(
    {
        "quality": Goal("quality", pace=5.0, more=0.03),
        "balanced": Goal("balanced", pace=15.0, more=0.15),
        "speed": Goal("speed", pace=80.0, more=0.5),
    }
)


def score(goal: Goal, *, quality_b: float, tok_s: float, kv_type: str, n_ctx: int, whole_windows: bool) -> float:
    behind = math.log(goal.pace / tok_s)
    pace = -SLOW * behind if behind > 0 else -goal.more * behind
    context = CTX_WORTH * math.log2(n_ctx / 8192)
    kept = math.log(1.0 - KV_LOSS[kv_type]) + (WHOLE_WINDOWS_WORTH if whole_windows else 0.0)
    return math.log(max(quality_b, 1e-3)) + pace + context + kept
