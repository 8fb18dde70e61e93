"""Which of the models that are here already should answer when nobody named one. Pure: fed with what is on disk.

The same search and score as `eaglelocal plan`, over files instead of the catalogue, so every figure is a header's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from eaglelocal.core.costs import MeasuredCosts
from eaglelocal.planner.asked import Asked
from eaglelocal.planner.goals import GOALS
from eaglelocal.planner.machine import Rig
from eaglelocal.planner.options import DraftWay, Option
from eaglelocal.planner.plan import plan, scale_for
from eaglelocal.planner.way import Way, gib

AS_USUAL = Asked(goal=GOALS["balanced"])


def best_on_disk(
    options: Sequence[Option],
    rig: Rig,
    asked: Asked = AS_USUAL,
    *,
    measured: Mapping[str, MeasuredCosts] | None = None,
) -> Way | None:
    """The way to run that scores best on this machine; None where nothing is here, or nothing that is fits.

    measured  what decodes really cost here, by the reference of an option
    """
    here = [option for option in options if option.is_here]
    chosen = plan(here, rig, asked, measured=measured).chosen
    return None if chosen is None else with_plain_cache(with_its_draft(chosen.way, rig, asked), rig, asked)


def with_its_draft(way: Way, rig: Rig, asked: Asked) -> Way:
    """A draft that is here is loaded where there is room for it: whether it pays is measured, not predicted."""
    draft = draft_of(way.option)
    if way.draft.shape is not None or draft is None:
        return way
    fits = scale_for(rig, asked).weigh(way.option, draft, way.setup, way.gpu_layers).fits
    return dataclasses.replace(way, draft=draft) if fits else way


def with_plain_cache(way: Way, rig: Rig, asked: Asked) -> Way:
    """A quantized cache is for want of memory, not for a little speed: where f16 fits in its place, that is taken."""
    if asked.kv_type is not None:
        return way
    plain = dataclasses.replace(way.setup, kv_type="f16")
    fits = scale_for(rig, asked).weigh(way.option, way.draft, plain, way.gpu_layers).fits
    return dataclasses.replace(way, setup=plain) if fits else way


def why_without(way: Way, rig: Rig, asked: Asked) -> str:
    """Why the draft that is here is not taken; empty where it is, or where there is none."""
    draft = draft_of(way.option)
    if way.draft.shape is not None or draft is None:
        return ""
    worst = scale_for(rig, asked).weigh(way.option, draft, way.setup, way.gpu_layers).worst
    room = f"{way.setup.n_ctx} tokens" if way.gpu_layers is None else f"{way.gpu_layers} layers"
    return (
        f"a lookup in place of {draft.id}, which lacks {gib(worst.missing_bytes)} on {worst.room.device} beside {room}"
    )


def draft_of(option: Option) -> DraftWay | None:
    """The model that drafts for it."""
    return next((draft for draft in option.drafts if draft.shape is not None), None)
