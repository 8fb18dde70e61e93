"""What a wish leaves open, settled as the planner would for this machine: the target, its context, cache and layers.

Without a target it is the best model that was pulled before, never a download, else the embedded one. What a person
said is never changed; where nothing fits the wish stays as it is, and loading says what is missing. The embedded
models stay as they are: they fit anywhere, and nothing is to be planned for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from eaglelocal import locations
from eaglelocal.catalog.catalog import Catalog, load
from eaglelocal.catalog.reference import Embedded, parse_reference
from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.cache import all_models
from eaglelocal.hub.drafts import FoundDraft, find_draft
from eaglelocal.hub.inventory import described
from eaglelocal.hub.resolve import context_size
from eaglelocal.hub.targets import FoundTarget, find_target
from eaglelocal.hub.wish import Wish
from eaglelocal.measured import measured_costs
from eaglelocal.planner.machine import Rig, rig_of
from eaglelocal.planner.on_disk import best_on_disk
from eaglelocal.planner.options import FileDraft, Option, option_of_file
from eaglelocal.planner.plan import Way
from eaglelocal.probe.probe import probe

EMBEDDED = "demo"


@dataclasses.dataclass(frozen=True, slots=True)
class Settled:
    """`note`: what was decided, for people; empty where nothing was."""

    wish: Wish
    note: str = ""


def as_planned(wish: Wish) -> Settled:
    """The wish with nothing open that the planner decides. Raises UsageError on a reference that is not understood."""
    if wish.target is None:
        return _without_target(wish)
    if isinstance(parse_reference(wish.target), Embedded):
        return Settled(wish)
    try:
        target = find_target(wish.target, on_progress=lambda fraction, what: None)
        option = option_of(target, wish.target, wish, load())
    except EagleLocalError:  # whoever resolves the wish meets it again, and says it
        return Settled(wish)
    rig = this_rig()
    measured = measured_costs([option], rig)
    ctx = wanted_ctx(wish, rig, target)
    return applied(wish, best_on_disk([option], rig, ctx=ctx, num_slots=wish.parallel, measured=measured))


def _without_target(wish: Wish) -> Settled:
    catalog = load()
    options = list(pulled_options(wish, catalog))
    rig = this_rig() if options else None
    measured = measured_costs(options, rig) if rig else {}
    way = best_on_disk(options, rig, ctx=wish.ctx, num_slots=wish.parallel, measured=measured) if rig else None
    if way is None:
        why = "none of the models on disk fits this machine as it is asked" if options else ""
        return Settled(dataclasses.replace(wish, target=EMBEDDED), why)
    found = as_planned(dataclasses.replace(wish, target=way.option.reference))
    others = f", of {len(options)} on disk" if len(options) > 1 else ""
    return dataclasses.replace(found, note=f"{way.option.reference}{others}{': ' if found.note else ''}{found.note}")


def pulled_options(wish: Wish, catalog: Catalog) -> Iterator[Option]:
    """Models from hubs that can answer; what cannot be read is passed over, `eaglelocal ls` names it."""
    for model in all_models(locations.hub_cache_dir()):
        if described(model.path).kind != "model":
            continue
        try:
            target = find_target(model.reference, on_progress=lambda fraction, what: None)
            yield option_of(target, model.reference, wish, catalog)
        except EagleLocalError:
            continue


def option_of(target: FoundTarget, reference: str, wish: Wish, catalog: Catalog) -> Option:
    """With the draft that would be used. Raises what `find_draft` raises."""
    draft = find_draft(wish.draft, target) if wish.spec not in ("off", 0) else FoundDraft()
    beside = FileDraft(draft.label, read_header(draft.path)) if draft.path else None
    return option_of_file(target.header, reference=reference, label=target.label, catalog=catalog, draft=beside)


def this_rig() -> Rig:
    return rig_of(probe(), load().machines)


def wanted_ctx(wish: Wish, rig: Rig, target: FoundTarget) -> int | None:
    """On a processor long contexts are for those who ask: behind them each drafted row attends more slowly."""
    return wish.ctx if wish.ctx is not None or rig.gpus else context_size(None, target)


def applied(wish: Wish, way: Way | None) -> Settled:
    """What was left open, as the way would have it."""
    if way is None:
        return Settled(wish)
    settled = dataclasses.replace(
        wish,
        ctx=way.setup.n_ctx if wish.ctx is None else wish.ctx,
        kv_type=way.setup.kv_type if wish.kv_type is None else wish.kv_type,
        gpu_layers=way.gpu_layers if wish.gpu_layers is None else wish.gpu_layers,
    )
    return Settled(settled, ", ".join(decisions(wish, settled, way)))


def decisions(wish: Wish, settled: Wish, way: Way) -> Iterator[str]:
    """What is not as one would expect it."""
    if wish.gpu_layers is None and settled.gpu_layers is not None:
        yield f"{settled.gpu_layers} of {way.option.shape.n_layer + 1} layers on the GPU, the rest does not fit it"
    if wish.kv_type is None and settled.kv_type not in (None, "f16"):
        yield f"a cache of {settled.kv_type}, for want of memory"
