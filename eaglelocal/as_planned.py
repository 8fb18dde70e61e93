"""What a wish leaves open, settled as the planner would for this machine: target, draft, context, cache and layers.

Without a target it is the best model that was pulled before, never a download, else the embedded one. What a person
said is never changed, and planned with; where nothing fits the wish stays as it is, and loading says what is missing.
The draft that is planned is the draft that is loaded: one without room is left out, and that is said. The embedded
model is planned where it is named (but for its native size) and there is a GPU; what it was trained for is short.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from eaglelocal.catalog.catalog import Catalog, load
from eaglelocal.catalog.reference import Embedded, parse_reference
from eaglelocal.core.plan import NO_ROOM_FOR_IMAGES
from eaglelocal.core.task import Task
from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf.pooling import task_of
from eaglelocal.hub.projectors import AUTO, NONE
from eaglelocal.hub.resolve import DEFAULT_CTX, divided
from eaglelocal.hub.targets import NATIVE, find_target
from eaglelocal.hub.wish import Wish
from eaglelocal.measured import measured_costs
from eaglelocal.options_here import LOOKUP, demo_option, found_option, names_draft, pulled_options
from eaglelocal.planner.asked import Asked, rig_with
from eaglelocal.planner.beside import Needs, rig_beside
from eaglelocal.planner.machine import Rig, rig_of
from eaglelocal.planner.on_disk import AS_USUAL, best_on_disk, why_without
from eaglelocal.planner.options import Option
from eaglelocal.planner.plan import scale_for
from eaglelocal.planner.way import Way, offload_text
from eaglelocal.probe.probe import probe

EMBEDDED = "demo"
# what a model may lose for images that nobody asked for, or other models: little of its speed, and context beyond this
SPEED_KEPT, CTX_KEPT = 0.9, 16384


@dataclasses.dataclass(frozen=True, slots=True)
class Settled:
    """`note`: what was decided, for people; empty where nothing was. `fits`: as far as is known.

    way    None: nothing was planned
    needs  of that way; empty: unknown
    """

    wish: Wish
    note: str = ""
    fits: bool = True
    way: Way | None = None
    needs: Needs = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """`without`: why the draft that is here is left out. `is_blind`: what reads images is, for want of room."""

    way: Way
    needs: Needs
    without: str = ""
    is_blind: bool = False


def as_planned(wish: Wish, *, beside: Needs = ()) -> Settled:
    """The wish with nothing open that the planner decides. Raises UsageError on a reference that is not understood.

    Other mistakes in it are met again, and said, by whoever resolves it; without a target they are raised here.

    beside  what other models of ours will hold. An embedding model's sizes are its own, there is nothing to decide.
    """
    if wish.target is None:
        return _without_target(wish, beside)
    if isinstance(parse_reference(wish.target), Embedded):
        return _embedded(wish, wish.target, beside)
    try:
        catalog = load()
        target = find_target(wish.target, on_progress=lambda fraction, what: None)
        if task_of(target.header) is not Task.TEXT:
            return Settled(wish)
        rig = rig_beside(this_rig(catalog), beside)
        planned = best_of([found_option(target, wish.target, wish, catalog)], rig, wish)
    except EagleLocalError:  # whoever resolves the wish meets it again, and says it
        return Settled(wish)
    return applied(wish, planned)


def _without_target(wish: Wish, beside: Needs) -> Settled:
    catalog = load()
    options = list(pulled_options(wish, catalog))
    planned = best_of(options, rig_beside(this_rig(catalog), beside), wish) if options else None
    if planned is None:
        why = "none of the models on disk fits this machine as it is asked" if options else ""
        return Settled(dataclasses.replace(wish, target=EMBEDDED), why, fits=not options)
    reference = planned.way.option.reference
    found = applied(dataclasses.replace(wish, target=reference), planned)
    others = f", of {len(options)} on disk" if len(options) > 1 else ""
    return dataclasses.replace(found, note=f"{reference}{others}{': ' if found.note else ''}{found.note}")


def _embedded(wish: Wish, reference: str, beside: Needs) -> Settled:
    """Its context and cache stay the usual ones; a large one may need layers in main memory, or go without its head."""
    if reference == NATIVE:
        return Settled(wish)
    try:
        catalog = load()
        rig = rig_beside(this_rig(catalog), beside)
        if not rig.gpus:
            return Settled(wish)
        option = demo_option(reference, wish, catalog)
        planned = best_of([option], rig, wish, most_ctx=DEFAULT_CTX)
    except EagleLocalError:
        return Settled(wish)
    found = applied(wish, planned)
    kv_type = None if wish.kv_type is None and found.wish.kv_type == "f16" else found.wish.kv_type
    return dataclasses.replace(found, wish=dataclasses.replace(found.wish, ctx=wish.ctx, kv_type=kv_type))


def this_rig(catalog: Catalog) -> Rig:
    return rig_of(probe(), catalog.machines)


def best_of(options: list[Option], rig: Rig, wish: Wish, *, most_ctx: int | None = None) -> Planned | None:
    """With what the wish settles; None where nothing fits. Raises UsageError on GPUs that there are not.

    A projector that merely lies beside its model is left out where the model would be slow, another, or short of
    context for its sake.
    """
    seeing = _best_of(options, rig, wish, most_ctx)
    if wish.mmproj != AUTO or not any(option.projector for option in options):
        return seeing
    blind = _best_of([dataclasses.replace(option, projector=None) for option in options], rig, wish, most_ctx)
    if blind is None or (seeing is not None and costs_little(seeing.way, blind.way)):
        return seeing
    return dataclasses.replace(blind, is_blind=True)


def costs_little(less: Way, most: Way) -> bool:
    """Does a model lose little with less memory, compared with the most that it could have?"""
    is_same = less.option.reference == most.option.reference
    is_same &= less.setup.kv_type in (most.setup.kv_type, "f16", "q8_0")
    is_long = less.setup.n_ctx >= min(most.setup.n_ctx, CTX_KEPT)
    return is_same and is_long and less.prediction.spec_tok_s >= SPEED_KEPT * most.prediction.spec_tok_s


def _best_of(options: list[Option], rig: Rig, wish: Wish, most_ctx: int | None) -> Planned | None:
    asked = asked_by(wish)
    # on a processor long contexts are for those who ask: behind them each drafted row attends more slowly
    on_processor = not rig_with(rig, asked).gpus or wish.gpu_layers == 0
    asked = dataclasses.replace(asked, most_ctx=DEFAULT_CTX if on_processor else most_ctx)
    way = best_on_disk(options, rig, asked, measured=measured_costs(options, rig))
    if way is None:
        return None
    needs = scale_for(rig, asked).weigh(way.option, way.draft, way.setup, way.offload).buffers
    return Planned(way, needs, why_without(way, rig, asked))


def asked_by(wish: Wish) -> Asked:
    """Raises UsageError on a split that is none."""
    split, shares = divided(wish.split)
    return dataclasses.replace(
        AS_USUAL,
        ctx=wish.ctx,
        num_slots=wish.parallel,
        kv_type=wish.kv_type,
        gpu_layers=wish.gpu_layers,
        n_cpu_moe=wish.n_cpu_moe,
        device=wish.device,
        split=split,
        shares=shares,
        flash_attention=wish.flash_attn,
        mmproj=wish.mmproj,
        named_draft=wish.draft if names_draft(wish) else "",
    )


def applied(wish: Wish, planned: Planned | None) -> Settled:
    """What was left open, as the way would have it."""
    if planned is None:
        return Settled(wish, fits=False)
    way = planned.way
    settled = dataclasses.replace(
        wish,
        draft=LOOKUP if planned.without else wish.draft,
        draft_reason=planned.without or wish.draft_reason,
        mmproj=NONE if planned.is_blind else wish.mmproj,
        ctx=way.setup.n_ctx if wish.ctx is None else wish.ctx,
        kv_type=way.setup.kv_type if wish.kv_type is None else wish.kv_type,
        gpu_layers=way.gpu_layers if wish.gpu_layers is None else wish.gpu_layers,
        n_cpu_moe=way.n_cpu_moe or None if wish.n_cpu_moe is None else wish.n_cpu_moe,
    )
    return Settled(settled, "; ".join(decisions(wish, settled, planned)), way=way, needs=planned.needs)


def decisions(wish: Wish, settled: Wish, planned: Planned) -> Iterator[str]:
    """What is not as one would expect it."""
    if (wish.gpu_layers, wish.n_cpu_moe) != (settled.gpu_layers, settled.n_cpu_moe):
        yield f"{offload_text(planned.way)}: the GPU cannot hold all"
    if wish.kv_type is None and settled.kv_type not in (None, "f16"):
        yield f"a cache of {settled.kv_type}, for want of memory"
    if planned.is_blind:
        yield NO_ROOM_FOR_IMAGES
    if planned.without:
        yield planned.without
