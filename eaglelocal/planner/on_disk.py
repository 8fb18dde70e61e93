"""Which of the models that are here already should answer when nobody named one. Pure: fed with what is on disk.

The same search and score as `eaglelocal plan`, over files instead of the catalogue, so every figure is a header's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from eaglelocal.core.costs import MeasuredCosts
from eaglelocal.core.run_options import RunOptions
from eaglelocal.planner.goals import COMFORTABLE_CTX
from eaglelocal.planner.machine import Rig
from eaglelocal.planner.options import DraftWay, Option
from eaglelocal.planner.plan import kv_types_for, plan, scale_for
from eaglelocal.planner.way import Way, gib, offload_text
from eaglelocal.planner.weighing import Setup

AS_USUAL = RunOptions()


def best_on_disk(
    candidates: Sequence[Option],
    rig: Rig,
    options: RunOptions = AS_USUAL,
    *,
    measured: Mapping[str, MeasuredCosts] | None = None,
) -> Way | None:
    """The way to run that scores best on this machine; None where nothing is here, or nothing that is fits.

    measured  what decodes really cost here, by the reference of an option
    """
    here = [option for option in candidates if option.is_here]
    chosen = plan(here, rig, options, measured=measured).chosen
    return None if chosen is None else with_plain_cache(with_its_draft(chosen.way, rig, options), rig, options)


def with_its_draft(way: Way, rig: Rig, options: RunOptions) -> Way:
    """A draft that is here is loaded where it costs no more than context beyond what is comfortable.

    Whether it pays is measured, not predicted; but no layer leaves the GPU for it, and no cache falls below q8_0.
    """
    draft = draft_of(way.option)
    if way.draft.shape is not None or draft is None:
        return way
    alone = dataclasses.replace(way.option, drafts=(draft,))
    layers = options.gpu_layers if way.gpu_layers is None else way.gpu_layers
    for kv_type in dict.fromkeys((way.setup.kv_type, *(each for each in kv_types_for(options) if each == "q8_0"))):
        alike = dataclasses.replace(
            options, kv_type=kv_type, gpu_layers=layers, n_cpu_moe=way.n_cpu_moe, draft=draft.id
        )
        chosen = plan([alone], rig, alike).chosen
        if chosen is not None and is_comfortable(chosen.way, way):
            return dataclasses.replace(chosen.way, option=way.option)
    return way


def is_comfortable(way: Way, other: Way) -> bool:
    """Has it the other's layers on the GPU, and its context as far as that is no luxury?"""
    return way.offload == other.offload and way.setup.n_ctx >= comfortable(other).n_ctx


def comfortable(way: Way) -> Setup:
    """Its setup with no more context than that."""
    return dataclasses.replace(way.setup, n_ctx=min(way.setup.n_ctx, COMFORTABLE_CTX))


def with_plain_cache(way: Way, rig: Rig, options: RunOptions) -> Way:
    """A quantized cache is for want of memory, not for a little speed: where f16 fits in its place, that is taken."""
    if options.kv_type is not None:
        return way
    plain = dataclasses.replace(way.setup, kv_type="f16")
    fits = scale_for(rig, options).weigh(way.option, way.draft, plain, way.offload).fits
    return dataclasses.replace(way, setup=plain) if fits else way


def why_without(way: Way, rig: Rig, options: RunOptions) -> str:
    """Why the draft that is here is not taken; empty where it is, or where there is none."""
    draft = draft_of(way.option)
    if way.draft.shape is not None or draft is None:
        return ""
    setup = comfortable(way)
    worst = scale_for(rig, options).weigh(way.option, draft, setup, way.offload).worst
    beside = offload_text(way) or f"{setup.n_ctx} tokens"
    lacks = f"{gib(worst.missing_bytes)} on {worst.room.device}"
    return f"a lookup in place of {draft.id}, which lacks {lacks} beside {beside}"


def draft_of(option: Option) -> DraftWay | None:
    """The model that drafts for it."""
    return next((draft for draft in option.drafts if draft.shape is not None), None)
