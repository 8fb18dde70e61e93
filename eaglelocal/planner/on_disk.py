"""Which of the models that are here already should answer when nobody named one. Pure: fed with what is on disk.

The same search and score as `eaglelocal plan`, over files instead of the catalogue, so every figure is a header's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from eaglelocal.core.costs import MeasuredCosts
from eaglelocal.planner.goals import GOALS
from eaglelocal.planner.machine import Rig
from eaglelocal.planner.options import Option
from eaglelocal.planner.plan import Asked, Way, plan
from eaglelocal.planner.weighing import Scale

DEFAULT_GOAL = "balanced"


def best_on_disk(
    options: Sequence[Option],
    rig: Rig,
    *,
    ctx: int | None = None,
    num_slots: int = 1,
    measured: Mapping[str, MeasuredCosts] | None = None,
) -> Way | None:
    """The way to run that scores best on this machine; None where nothing is here, or nothing that is fits.

    ctx       tokens of each slot; None: as the search likes
    measured  what decodes really cost here, by the reference of an option
    """
    here = [option for option in options if option.is_here]
    asked = Asked(goal=GOALS[DEFAULT_GOAL], ctx=ctx, num_slots=num_slots)
    chosen = plan(here, rig, asked, measured=measured).chosen
    return None if chosen is None else with_plain_cache(chosen.way, rig, num_slots=num_slots)


def with_plain_cache(way: Way, rig: Rig, *, num_slots: int) -> Way:
    """A quantized cache is for want of memory, not for a little speed: where f16 fits in its place, that is taken."""
    plain = dataclasses.replace(way.setup, kv_type="f16")
    scale = Scale(rig, num_slots=num_slots, measured={})
    fits = scale.weigh(way.option, way.draft, plain, way.gpu_layers).fits
    return dataclasses.replace(way, setup=plain) if fits else way
